"""Files and objects as streams, for libraries that read what they hold through one."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import Any


class SeekableStream(io.RawIOBase):
    """A stream over `size` bytes that are read at offsets."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._position = 0

    @abstractmethod
    def read_at(self, offset: int, target: memoryview) -> int:
        """Fill the beginning of `target` with bytes from `offset` on; returns their number, 0 at the end."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        got = self.read_at(self._position, memoryview(buffer).cast("B"))
        self._position += got
        return got
