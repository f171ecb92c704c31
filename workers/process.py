"""Small facts about processes: handles that can be waited for, death with the parent, descriptors, exits in words."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_FIRST_PASSED = 10
"""Descriptors for children are moved up here: below 3 they would collide with the child's standard streams, which a
trainer that runs with some of its own closed hands out again."""


def die_with(parent: int) -> None:
    """Be killed by the kernel when the parent process ends; end at once where it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def leave_signals_to_trainer() -> None:
    """Ctrl-C, a closed terminal and a scheduler's SIGTERM are the trainer's business; it ends its children itself.

    A trainer that ignores SIGCHLD would hand that down, and the kernel would then keep no exit codes for us.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def fill_standard_streams() -> None:
    """Put the null device where descriptors 0, 1 and 2 are closed, for good.

    Else the next socket or memory file would get such a number, and what somebody prints would go into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def passable(descriptor: int) -> int:
    """A duplicate of `descriptor` numbered high enough to be handed to a child; the original is closed."""
    duplicate = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_PASSED)
    os.close(descriptor)
    return duplicate


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor above the standard streams that is not `kept`."""
    wanted = set(kept)
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        if descriptor > 2 and descriptor not in wanted:
            # One of the names is the listing's own descriptor, closed by now.
            with contextlib.suppress(OSError):
                os.close(descriptor)


def wait_for_exit(handle: int, timeout_s: float) -> bool:
    """Whether the process that the pidfd `handle` stands for has ended, waiting for it at most `timeout_s`."""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def send_signal(handle: int, number: signal.Signals) -> None:
    """Signal the process that the pidfd `handle` stands for; that it is already gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)


def exit_in_words(returncode: int) -> str:
    """`killed by SIGKILL` or `exited with code 3`; `returncode` as subprocess and waitstatus_to_exitcode give it."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
