"""Closing at the end of a `with` block, and closing several things although some of them raise, or Ctrl-C comes."""

from __future__ import annotations

import os
import signal
from abc import abstractmethod
from collections.abc import Callable
from typing import Self

from .errors import PipelineClosed

_process = os.getpid()
"""Kept, since every batch asks for it several times, and the kernel takes 0.7 µs to answer."""


def _note_fork() -> None:
    global _process  # noqa: PLW0603 - there is one process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


class OwnProcess:
    """The process that has made `what`: a fork of it may neither use nor close that. `advice`: what to do there."""

    def __init__(self, what: str, advice: str) -> None:
        self._process, self._what, self._advice = _process, what, advice

    @property
    def is_this(self) -> bool:
        """False in a fork."""
        return _process == self._process

    def require(self) -> None:
        """Raise PipelineClosed in a fork."""
        if _process != self._process:
            raise PipelineClosed(
                f"{self._what} belongs to process {self._process}, and this is process {_process}, a fork of it: "
                f"{self._advice}"
            )


class Closing:
    """A context manager that closes itself.

    An exception of the block takes precedence over one of `close`, which becomes its note: after a broken kernel, for
    example, closing the device fails too, and the kernel is the cause.
    """

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.close()
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"closing the {type(self).__name__} raised {type(second).__name__}: {second}")

    def __getstate__(self) -> object:
        raise TypeError(
            f"a {type(self).__name__} has processes and memory of its own, so it cannot be copied or pickled, as for a "
            "worker of a DataLoader: make another one by the same arguments, in the process that reads from it"
        )


class interrupts_deferred:  # noqa: N801 - as contextlib's are named
    """Defers Ctrl-C to the end of a block in which processes, sockets or memory come into somebody's hands, or go.

    Where it may strike it leaves what a restart removes: a batch that was taken and not received, a message that was
    read and not noted. But a process of which nobody has the handle would stay, and a context waits endlessly for a
    socket that is not registered. So it waits where processes start, and in `close_all`, and nowhere else.
    Other threads than the main one are never interrupted.
    """

    def __enter__(self) -> None:
        self._came = False
        handler = signal.getsignal(signal.SIGINT)
        self._handler = handler if callable(handler) else None
        if self._handler is not None:
            try:
                signal.signal(signal.SIGINT, self._note)
            except ValueError:  # not the main thread
                self._handler = None

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._came:
                self._handler(signal.SIGINT, None)

    def _note(self, _number: int, _frame: object) -> None:
        self._came = True


def close_all(*steps: Callable[[], object]) -> None:
    """Run every step in order, even if some raise; then raise the first error. Ctrl-C waits for the last step.

    An ExitStack would raise the last error, which is often only a consequence of the first.
    """
    first: BaseException | None = None
    with interrupts_deferred():
        for step in steps:
            try:
                step()
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first
