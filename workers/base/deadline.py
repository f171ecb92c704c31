"""A deadline for what the trainer's own thread does in setup: it opens files, and runs hooks of the user's on trial.

A named pipe, a device, a lock that is never released, a decode hook that loops: without a deadline the trainer would
hang without a word. Its process may start no Python thread, and SIGALRM, alarm() and setitimer() belong to the program.
So this is a POSIX timer of its own: when it is over, this very thread gets a real-time signal for which nobody had a
handler. If nothing hangs, no signal is ever sent.

It breaks into what a signal interrupts: waiting for a file, a socket or a lock, sleeping, and Python code. It cannot
break into a loop in C, nor into the wait for a network file system whose server is gone (see sources/mounts.py). Only
the main thread can have it, since Python runs handlers there and nowhere else.
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
_FOR_EVER_S = 1e9
"""Thirty years: instead of infinity, which a timer does not know."""

_AGAIN_S = 1.0
"""A hook may catch the exception and go on: then it is raised anew."""

_DEBUGGERS = ("bdb", "pydevd")
"""The modules whose functions wait for the user: that of pdb and ipdb, and that of VS Code and PyCharm."""


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
    """Runs from `restart` on; raises OSError if the system gives no timer."""

    def __init__(self, seconds: float, number: int) -> None:
        self.doing = ""
        self._seconds = seconds
        self._number = number
        self._timer = ctypes.c_void_p()
        event = _Event(signo=number, notify=_SIGEV_THREAD_ID, thread_id=threading.get_native_id())
        self._call("timer_create", time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))
        signal.signal(number, self._raise)

    def restart(self) -> None:
        seconds = min(max(self._seconds, 1e-3), _FOR_EVER_S)
        when = _Times(int(_AGAIN_S), 0, int(seconds), int(seconds % 1 * 1e9))
        self._call("timer_settime", self._timer, 0, ctypes.byref(when), None)

    def end(self) -> None:
        self._call("timer_delete", self._timer)
        signal.signal(self._number, signal.SIG_DFL)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if _running is not self:  # the signal came a moment before the end, and its handler runs now
            return
        if _is_in_debugger(frame):  # somebody sits there, for as long as it takes
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
    """Whether code of a debugger runs: coverage sets a trace function, too, and nobody sits there."""
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
    """What runs in here and does not move for `seconds` is broken off by PipelineStalled; see `moving`.

    Nothing is broken off in other threads than the main one, nor if the system has no timer or no signal left. Within
    another deadline that one counts.
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
    """Start the clock of the deadline anew, if there is one; `doing`: what is done now, as in "opening x.h5"."""
    if _running is not None:
        _running.doing = doing
        _running.restart()
