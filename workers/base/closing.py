"""Closing at the end of a `with` block, and closing several things although some of them raise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Self


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


def close_all(*steps: Callable[[], object]) -> None:
    """Run every step in order, even if some raise; then raise the first error.

    An ExitStack would raise the last error, which is often only a consequence of the first.
    """
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
