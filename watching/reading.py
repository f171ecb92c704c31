"""A reading of a status board: a copy of its memory, by any process that has it."""

from __future__ import annotations

import ctypes
import time

import msgspec

from ..workers.api import CacheCounts
from ..workers.transport import MAGIC, SHORTEST_BITS, Activity, Header, Line, StatusBoard


class Reading(msgspec.Struct, frozen=True):
    """The whole board at one moment, `now_ns` by time.monotonic_ns()."""

    now_ns: int
    header: Header
    lines: tuple[Line, ...]
    """The lines that have had a loader. The time that each has spent lasts up to `now_ns`."""

    @property
    def in_process(self) -> bool:
        """True if there are no loaders: the trainer makes its batches itself."""
        return not self.header.lines

    @property
    def cache_counts(self) -> CacheCounts:
        """The counts of all loaders, including those that have ended."""
        return CacheCounts.total(line.cache_counts for line in self.lines)

    @property
    def running(self) -> list[Line]:
        """The loaders that exist now."""
        return [line for line in self.lines if line.activity != Activity.ABSENT]

    @classmethod
    def of(cls, memory: bytes, now_ns: int) -> Reading | None:
        """Return a reading of the memory of a board; None if it is no board of this version."""
        start = ctypes.sizeof(Header)
        if len(memory) < start:
            return None
        header = Header.from_buffer_copy(memory)
        if header.magic != MAGIC or len(memory) < start + header.lines * ctypes.sizeof(Line):
            return None
        lines = tuple(line for line in (Line * header.lines).from_buffer_copy(memory, start) if line.has_begun)
        for line in lines:
            if line.activity != Activity.ABSENT:
                line.spent_ns[line.activity] += max(0, now_ns - line.since_ns)
        return cls(now_ns, header, lines)


def read_board(board: StatusBoard) -> Reading:
    """Return a reading of this process's own board."""
    reading = Reading.of(board.copy(), time.monotonic_ns())
    assert reading is not None  # this process has made the board itself
    return reading


def bucket_ns(bucket: int) -> tuple[float, float]:
    """Return the times that a bucket of `Line.times` holds: from, and up to."""

    def lower(number: int) -> float:
        return (2 + number % 2) * 2.0 ** (SHORTEST_BITS - 2 + number // 2)

    return lower(bucket) if bucket else 0.0, lower(bucket + 1)
