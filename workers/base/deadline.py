"""A deadline for setup in the trainer's main thread, which opens files and runs user hooks on trial.

A named pipe, a device, a lock that is never released or a decode hook that loops would hang the trainer in silence. The
trainer's process may start no Python thread, and SIGALRM, alarm() and setitimer() belong to the user's program. So the
deadline is a POSIX timer of its own. It expires with a real-time signal, sent to this thread, that had no handler
before. Without a hang no signal is sent.

A signal interrupts waits for a file, a socket or a lock, sleeps, and Python code. It cannot interrupt a loop in C, nor
a wait for a network file system whose server is gone (see sources/mounts.py). Only the main thread can have a deadline,
since Python runs signal handlers only there.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from .errors import PipelineStalled

_SIGEV_THREAD_ID = 4
_SIGNALS = range(signal.SIGRTMAX, signal.SIGRTMIN, -1)
_ENDLESS_S = 1e9
"""Thirty years. A timer knows no infinity."""

_AGAIN_S = 1
"""The period of further signals: a hook may catch the exception and continue, so it is raised again."""

_DEBUGGERS = ("bdb", "pydevd")
"""The modules of debuggers that wait for the user: of pdb and ipdb, and of VS Code and PyCharm."""

_restart: Callable[[], None] | None = None
"""Starts the current deadline anew, if there is one."""

_doing = ""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises PipelineStalled inside the block when `moving` was not called for `seconds`.

    The block runs without a deadline in a thread that is not the main one, and if the system has no timer or signal
    left. Inside another deadline only the outer one applies.
    """
    global _restart, _doing  # noqa: PLW0603 - there is one main thread
    number = next((number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL), 0)
    if _restart or not number or threading.current_thread() is not threading.main_thread():
        yield
        return
    timer, event = ctypes.c_void_p(), struct.pack("Piii44x", 0, number, _SIGEV_THREAD_ID, threading.get_native_id())
    try:
        system = ctypes.CDLL("librt.so.1")  # where timers were before glibc 2.34; it finds them in libc since then
        failed = system.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer))
    except (OSError, AttributeError):
        failed = True
    if failed:
        yield
        return

    def restart() -> None:
        left = min(max(seconds, 1e-3), _ENDLESS_S)
        system.timer_settime(timer, 0, struct.pack("4l", _AGAIN_S, 0, int(left), int(left % 1 * 1e9)), None)

    def expired(_number: int, frame: FrameType | None) -> None:
        if _restart is not restart:  # the signal came a moment before the end, and its handler runs now
            return
        if _is_in_debugger(frame):  # the user is at its prompt, for as long as it takes
            restart()
        else:
            raise PipelineStalled(
                f"setup hung for timeout_s={seconds:g} s{_doing and ', '}{_doing}; the traceback says where it was; "
                "raise timeout_s if that may take so long"
            )

    try:
        signal.signal(number, expired)
        _restart, _doing = restart, ""
        restart()
        yield
    finally:
        _restart = None
        system.timer_delete(timer)
        signal.signal(number, signal.SIG_DFL)


def moving(doing: str = "") -> None:
    """Restart the current deadline, if there is one; `doing`: the step that begins, such as "opening x.h5"."""
    global _doing  # noqa: PLW0603 - see above
    if _restart is not None:
        _doing = doing
        _restart()


def _is_in_debugger(frame: FrameType | None) -> bool:
    """Return true inside a debugger's code. A trace function is no sign of one: coverage sets one, too."""
    while frame is not None and frame.f_globals.get("__name__") not in _DEBUGGERS:
        frame = frame.f_back
    return frame is not None
