"""What the trainer raises on purpose, one class per cause."""

from __future__ import annotations

from ...workers.base.errors import BlobfeedError


class PrototxtError(BlobfeedError):
    """A prototxt is missing, is not well formed, or says what is not supported; the message begins `file:line:column`.

    `line` and `column` count from 1; both are 0 where the file as a whole is meant.
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class BlobError(BlobfeedError, ValueError):
    """A blob was used in a way that real Caffe answers by ending the process."""


class NetError(BlobfeedError):
    """A net that is well formed met data that does not fit it: shapes, labels."""


class SolverError(BlobfeedError):
    """Training cannot go on, or cannot start: no CUDA device, no loss, a loss that is not finite."""


class SnapshotError(BlobfeedError):
    """A snapshot cannot be written, cannot be read, or belongs to another net."""
