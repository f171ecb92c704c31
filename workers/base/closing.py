"""Closing: when a `with` block is left, and of several things, whichever of them fail."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Self


class Closing:
    """`with Thing() as thing:` closes the thing, however the block ends. What the block raises goes on: a device that a
    kernel of the block has broken cannot be closed without an error either."""

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
    """Take every step, in order, even if others raise; then raise the first error.

    An ExitStack would raise the last one, which is often only a consequence of the first.
    """
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
