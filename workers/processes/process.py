"""Functions for processes: waiting for handles, death with the parent, signals, limits, exits in words."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from ..base import BlobfeedError, DescriptorLimitError
from ..transport import TasksLeft, linux, pidfd_send_signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OWN_DESCRIPTORS = Path("/proc/self/fd")
_LOOK_S = 0.005
_START_DESCRIPTORS = 32
"""The descriptors that a trainer needs for one pipeline: 16 while it runs, some more while it starts."""

_START_THREADS = 7
"""The threads at start: two of ZeroMQ in the trainer, the fork server, the assembler with two of its own, the nursery.
ZeroMQ aborts a process in which it cannot start a thread: the trainer would lose everything that it has learnt."""

_THREADS_PER_LOADER = 4
"""The loader's own thread, two of ZeroMQ, and the one that notes the places of samples."""

_ASSEMBLER_DESCRIPTORS = 24
_DESCRIPTORS_PER_LOADER = 5
"""The assembler's descriptors for a loader: process handle, results, and three for the socket of its tasks, since the
next loader's may overlap."""


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; end at once if the parent already has."""
    if linux.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise linux.last_error("prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of all orphans among its descendants from now on."""
    linux.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_group(patience_s: float) -> None:
    """End all processes of this group by SIGTERM; after `patience_s` kill the rest, with this process itself.

    The pause is for resource trackers of multiprocessing and joblib: they ignore SIGTERM and remove the shared memory
    and semaphores of killed processes. `adopt_orphans` must be called before their parents end.
    """
    os.killpg(0, signal.SIGTERM)
    end = time.monotonic() + patience_s
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(_LOOK_S)
    os.killpg(0, signal.SIGKILL)


def leave_signals_to_trainer() -> None:
    """Ignore Ctrl-C, a closed terminal and a scheduler's SIGTERM: the trainer handles them and ends its children.

    A trainer that ignores SIGCHLD would pass that on, and then the kernel would keep no exit codes. So it is reset.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def require_descriptors(loaders: int) -> None:
    """Raise DescriptorLimitError if this process or an assembler with `loaders` loaders would lack descriptors.

    The check comes first, since ZeroMQ aborts a process that runs out of descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        free = soft - len(list(_OWN_DESCRIPTORS.iterdir()))
    except FileNotFoundError as error:
        raise BlobfeedError(
            f"there is no {_OWN_DESCRIPTORS}: loaders need /proc; mount it, or set num_loaders: 0"
        ) from error
    if free < _START_DESCRIPTORS:
        raise DescriptorLimitError(
            f"a pipeline needs {_START_DESCRIPTORS} file descriptors to start, and {max(0, free)} of this process's "
            f"{soft} are free: close some, or raise the limit (ulimit -n)"
        )
    need = _ASSEMBLER_DESCRIPTORS + _DESCRIPTORS_PER_LOADER * loaders
    if hard < need:
        raise DescriptorLimitError(
            f"{loaders} loaders need {need} file descriptors, and the limit is {hard}: "
            "lower num_loaders or the count of remote_loaders, or raise the hard limit (ulimit -Hn)"
        )


def loaders_that_fit(most: int, *, least: int, tasks: TasksLeft | None) -> int:
    """Return the number of loaders, at most `most`, whose processes and threads the control group allows.

    Raises BlobfeedError if fewer than `least` fit: ZeroMQ would abort each loader that gets no thread, again and again.
    """
    if tasks is None or tasks.left >= _START_THREADS + _THREADS_PER_LOADER * most:
        return most
    fit = max(0, tasks.left - _START_THREADS) // _THREADS_PER_LOADER
    if fit < least:
        need = _START_THREADS + _THREADS_PER_LOADER * least
        raise BlobfeedError(
            f"a pipeline of num_loaders={least} needs {need} processes and threads, and the control group "
            f"{tasks.folder} has room for {tasks.left} (pids.max is {tasks.most}): raise the limit (docker run "
            f"--pids-limit), or set num_loaders: {fit}"
        )
    return fit


def require_threads() -> None:
    """Raise BlobfeedError if the threads with which trainer and assembler go on cannot be started.

    It starts threads on trial, since the kernel does not tell how many the user's limit (ulimit -u) leaves. It is meant
    for the time while the fork server's interpreter starts, whose thread has started then.
    """
    if any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    ):
        return  # the C library reserves 64 MB of addresses for a thread, and a stack: the pipeline may need them
    enough = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(_START_THREADS - 1):
            thread = threading.Thread(target=enough.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise too_few_threads(1 + len(started)) from error
    finally:
        enough.set()
        for thread in started:
            thread.join()


def too_few_threads(allowed: int) -> BlobfeedError:
    """Return the error of a system that allows only `allowed` processes and threads for the start."""
    return BlobfeedError(
        f"a pipeline needs {_START_THREADS} processes and threads to start, and {_THREADS_PER_LOADER} for each loader; "
        f"the system allows {allowed}: raise the limit (ulimit -u, docker run --pids-limit), or set num_loaders: 0"
    )


def raise_descriptor_limit() -> None:
    """Let this process and its children open as many files as the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor above the standard streams that is not `kept`."""
    wanted = set(kept)
    for entry in list(_OWN_DESCRIPTORS.iterdir()):
        descriptor = int(entry.name)
        if descriptor > 2 and descriptor not in wanted:
            # One of the names is the listing's own descriptor, closed by now.
            with contextlib.suppress(OSError):
                os.close(descriptor)


def run_and_exit(main: Callable[[], None]) -> None:
    """Run `main` and end this process, also after an exception: a fork must not return into its caller's frames."""
    code = 1
    try:
        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        # os._exit must be reached, even if user code has closed or replaced a stream, or a pipe is broken.
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def wait_for_exit(handle: int, timeout_s: float) -> bool:
    """Wait at most `timeout_s` for the end of the process of the pidfd `handle`; returns true if it has ended."""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def is_stopped(pid: int) -> bool:
    """Return true if the process is stopped, by SIGSTOP or under a debugger."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state in "Tt"


def send_signal(handle: int, number: signal.Signals) -> None:
    """Send a signal to the process of the pidfd `handle`; a process that is already gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        pidfd_send_signal(handle, number)


WHERE_TO_LOOK = (
    "after a SIGKILL look for memory shortage, after a SIGABRT or a failed fork for a limit of processes and threads "
    "(ulimit -u, docker run --pids-limit), after a SIGBUS for a failing disk or a file cut short"
)
"""The advice for a process that has ended, besides its own last words."""


def exit_in_words(returncode: int) -> str:
    """Return `killed by SIGKILL` or `exited with code 3`; `returncode`: as in subprocess, negative for a signal."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
