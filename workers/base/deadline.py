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
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any

from .errors import PipelineStalled

_SIGEV_THREAD_ID = 4
_SIGNALS = range(signal.SIGRTMAX, signal.SIGRTMIN, -1)
_ENDLESS_S = 1e9
"""Thirty years. A timer knows no infinity."""

_AGAIN_S = 1.0
"""The period of further signals: a hook may catch the exception and continue, so it is raised again."""

_DEBUGGERS = ("bdb", "pydevd")
"""The modules of debuggers that wait for the user: of pdb and ipdb, and of VS Code and PyCharm."""


class _Event(ctypes.Structure):
    """`struct sigevent` of Linux, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("padding", ctypes.c_byte * 44),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec`: again after, first after; seconds and nanoseconds each."""

    _fields_ = (("again_s", ctypes.c_long), ("again_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Deadline:
    """A running timer, started by `restart`; raises OSError if the system has no timer left."""

    def __init__(self, seconds: float, number: int) -> None:
        self.doing = ""
        self._seconds = seconds
        self._number = number
        self._timer = ctypes.c_void_p()
        event = _Event(signo=number, notify=_SIGEV_THREAD_ID, thread_id=threading.get_native_id())
        self._call("timer_create", time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))
        signal.signal(number, self._raise)

    def restart(self) -> None:
        seconds = min(max(self._seconds, 1e-3), _ENDLESS_S)
        when = _Times(int(_AGAIN_S), 0, int(seconds), int(seconds % 1 * 1e9))
        self._call("timer_settime", self._timer, 0, ctypes.byref(when), None)

    def end(self) -> None:
        self._call("timer_delete", self._timer)
        signal.signal(self._number, signal.SIG_DFL)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if _running is not self:  # the signal came a moment before the end, and its handler runs now
            return
        if _is_in_debugger(frame):  # the user is at its prompt, for as long as it takes
            self.restart()
            return
        raise PipelineStalled(
            f"setup hung for timeout_s={self._seconds:g} s{self.doing and ', '}{self.doing}; the traceback says "
            "where it was; raise timeout_s if that may take so long"
        )

    def _call(self, name: str, *arguments: Any) -> None:
        if _function(name)(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")


def _is_in_debugger(frame: FrameType | None) -> bool:
    """Return true inside a debugger's code. A trace function is no sign of one: coverage sets one, too."""
    while frame is not None and frame.f_globals.get("__name__") not in _DEBUGGERS:
        frame = frame.f_back
    return frame is not None


_running: _Deadline | None = None


@cache
def _function(name: str) -> Callable[..., int]:
    for library in (None, "librt.so.1"):  # where it was before glibc 2.34
        with contextlib.suppress(AttributeError, OSError):
            return ctypes.CDLL(library, use_errno=True)[name]
    raise OSError(f"no library has {name}")


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises PipelineStalled inside the block when `moving` was not called for `seconds`.

    The block runs without a deadline in a thread that is not the main one, and if the system has no timer or signal
    left. Inside another deadline only the outer one applies.
    """
    global _running  # noqa: PLW0603 - there is one main thread
    number = next((number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL), None)
    running = None
    if _running is None and number is not None and threading.current_thread() is threading.main_thread():
        with contextlib.suppress(OSError):
            running = _Deadline(seconds, number)
    if running is None:
        yield
        return
    try:
        _running = running
        running.restart()
        yield
    finally:
        _running = None
        running.end()


def moving(doing: str = "") -> None:
    """Restart the current deadline, if there is one; `doing`: the step that begins, such as "opening x.h5"."""
    if _running is not None:
        _running.doing = doing
        _running.restart()
