"""Errors of reading one sample name it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...base.errors import SampleError, SampleTooLargeError, SourceError
from ...base.source import Source


class Naming(msgspec.Struct):
    """What cannot be read in here of the sample `index` becomes a SampleError; one that is too large stays one.

    `kept_in`: the file that the source is. `path`: where the sample itself lies. `member`: a part of the sample.
    A generator would make eight calls of each sample, this makes two.
    """

    source: Source
    index: int
    kept_in: str
    path: Callable[[int], str]
    member: str = ""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        where = self.source.where(self.index) + self.member
        if isinstance(error, SampleTooLargeError):
            raise SampleTooLargeError(f"{where}: {error} (max_height, max_width)") from None
        if isinstance(error, OSError | ValueError | EOFError | MemoryError | SourceError):
            text = f"source {self.source.kind}: {where} cannot be read: {error}"
            raise SampleError(text, source=self.kept_in, index=self.index, path=self.path(self.index)) from error
