"""The end of what holds processes: when it is forgotten, or with the program."""

from __future__ import annotations

import atexit
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from ..workers.base import close_all


class Closable(Protocol):
    """Something that has processes until it is closed."""

    def close(self) -> object:
        """End them. May be repeated."""


_open: set[Closable] = set()


def close_when_forgotten(owner: object, inner: Closable) -> Callable[[], object]:
    """Close `inner` when `owner` is collected, or at exit. The returned function closes them at once."""
    _open.add(inner)
    finalizer = weakref.finalize(owner, _close, inner)
    finalizer.atexit = False  # there a second Ctrl-C would end in "Exception ignored in atexit callback"

    def close() -> None:
        _close(inner)  # a finalizer that was interrupted does nothing when it is called again
        finalizer.detach()

    return close


def _close(inner: Closable) -> None:
    close_all(inner.close, partial(_open.discard, inner))


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in the block: at the end of a program it would only disturb the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)


@atexit.register
def _close_at_exit() -> None:
    with _interrupts_ignored():
        close_all(*(partial(_close, inner) for inner in list(_open)))
