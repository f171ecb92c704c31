"""The trainer's errors, one class per cause."""

from __future__ import annotations

from collections.abc import Collection

from ...workers.api import nearest
from ...workers.base import BlobfeedError


class PrototxtError(BlobfeedError):
    """A prototxt is missing, malformed, or uses what is not supported; the message begins with `file:line:column`.

    `line` and `column` count from 1; both are 0 if the error is about the whole file.
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def not_supported(what: str, given: str, known: Collection[str]) -> str:
    """The text of an error about a name that is none of `known`."""
    return f"{what} {given!r} is not supported{nearest(given, known)}; the known ones are {', '.join(known)}"


class NetError(BlobfeedError):
    """Data does not fit the net: shapes, labels."""


class SolverError(BlobfeedError):
    """Training cannot start or go on: no CUDA device, no loss, a loss that is not finite."""


class SnapshotError(BlobfeedError):
    """A snapshot cannot be written, cannot be read, or belongs to another net."""
