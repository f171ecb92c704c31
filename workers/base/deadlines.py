"""A deadline for setup in the trainer's main thread, which opens files and runs user hooks on trial.

A named pipe, a lock that is never released or a decode hook that loops would hang the trainer in silence. The trainer
may start no Python thread, and SIGALRM belongs to the user's program. So a POSIX timer of our own sends this thread a
real-time signal that had no handler before. It interrupts waits and Python code, but neither a loop in C nor a wait for
a network file system.
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

_DEBUGGERS = ("bdb", "pydevd")
"""The modules of debuggers that wait for the user. A trace function is no sign of one: coverage sets one, too."""

_moving: Callable[[str], None] | None = None
"""Restarts the current deadline, if there is one."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises PipelineStalled inside the block when `moving` was not called for `seconds`; of two the outer one counts.

    There is none in other threads than the main one, nor on a system without a timer or a free signal.
    """
    global _moving  # noqa: PLW0603 - there is one main thread
    free = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    may = free and _moving is None and threading.current_thread() is threading.main_thread()
    timer, step, failed = ctypes.c_void_p(), "", True
    if may:
        event = struct.pack("Piii44x", 0, free[0], _SIGEV_THREAD_ID, threading.get_native_id())
        with contextlib.suppress(OSError, AttributeError):
            system = ctypes.CDLL("librt.so.1")  # where timers were before glibc 2.34; it finds them in libc since then
            failed = system.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer))
    if failed:
        yield
        return

    def restart(doing: str) -> None:
        nonlocal step
        step, left = doing, min(max(seconds, 1e-3), _ENDLESS_S)
        # Once more each second: a hook may catch the exception and continue.
        system.timer_settime(timer, 0, struct.pack("4l", 1, 0, int(left), int(left % 1 * 1e9)), None)

    def expired(_number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_globals.get("__name__") not in _DEBUGGERS:
            frame = frame.f_back
        if frame is not None:  # the user is at its prompt, for as long as it takes
            restart(step)
        elif _moving is restart:  # else the signal came a moment before the end
            raise PipelineStalled(
                f"setup hung for timeout_s={seconds:g} s{step and ', '}{step}; the traceback says where it was; "
                "raise timeout_s if that may take so long"
            )

    try:
        signal.signal(free[0], expired)
        _moving = restart
        restart("")
        yield
    finally:
        _moving = None
        system.timer_delete(timer)
        signal.signal(free[0], signal.SIG_DFL)


def moving(doing: str = "") -> None:
    """Restart the current deadline, if there is one; `doing`: the step that begins, such as "opening x.h5"."""
    if _moving is not None:
        _moving(doing)
