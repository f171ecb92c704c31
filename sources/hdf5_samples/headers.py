"""Object headers of data sets read without the library, as far as they are like one that the library has read.

To open a data set and its attribute through h5py takes 130 µs, and an archive has hundreds of thousands of them, nearly
all with the same header but for a few numbers. So the library reads one; its header's bytes are then the pattern that
others must equal, except where the numbers stand: where the values lie, the extents, the attributes' values. A header
that differs in anything else is left to the library. Where the numbers stand is said in the HDF5 file format
specification, version 3.0, IV.A.1.a (object header version 1, which the library writes by default)
and IV.A.2 (its messages).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_PREFIX_BYTES = 16
_REFERENCES = slice(4, 8)
_MESSAGE_BYTES = 8
_NIL, _SPACE, _LAYOUT, _ATTRIBUTE, _CONTINUATION, _OLD_TIME, _TIME = 0x0, 0x1, 0x8, 0xC, 0x10, 0xE, 0x12
_PLAIN = {_NIL, _SPACE, 0x3, 0x4, 0x5, _LAYOUT, _ATTRIBUTE, _CONTINUATION, _OLD_TIME, _TIME}
_IN_ONE_PIECE = 1
_SHARED = 2
_MOST_BYTES = 1 << 14
_MOST_PATTERNS = 8
_MOST_PIECES = 8
_LARGEST_EXTENT = (1 << 31) - 1


class _UnlikeOthers(Exception):
    """The header has something that a pattern does not cover."""


@dataclass(frozen=True, slots=True)
class Found:
    """The headers of some data sets: which were understood and, for those alone, their numbers.

    `offsets`: shape (understood,); `shapes`: shape (understood, axes); `labels`: the bytes of each attribute's value,
    shape (understood, bytes).
    """

    understood: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    shapes: NDArray[np.int64]
    labels: Mapping[str, Bytes]

    def part(self, here: slice) -> Found:
        """Return the part for the data sets `here`, all of them understood."""
        before = int(np.count_nonzero(self.understood[: here.start]))
        inside = slice(before, before + here.stop - here.start)
        labels = {name: values[inside] for name, values in self.labels.items()}
        return Found(self.understood[here], self.offsets[inside], self.shapes[inside], labels)


@dataclass(slots=True)
class _Pattern:
    """The header's pieces: their bytes, and which of these must be equal. Numbers by (piece, position)."""

    pieces: list[Bytes] = field(default_factory=list)
    fixed: list[NDArray[np.bool_]] = field(default_factory=list)
    next_at: list[tuple[int, int]] = field(default_factory=list)
    offset_at: tuple[int, int] | None = None
    shape_at: tuple[int, int] | None = None
    axes: int = 0
    labels_at: dict[str, tuple[int, int, int]] = field(default_factory=dict)


class HeaderReader:
    """Headers of the HDF5 file `descriptor`, `size` bytes long. `labels`: the attributes wanted."""

    def __init__(self, descriptor: int, size: int, labels: Sequence[str]) -> None:
        self._descriptor = descriptor
        self._size = size
        self._labels = labels
        self._patterns: list[tuple[_Pattern, int]] = []

    def learn(
        self, address: int, offset: int, shape: Sequence[int], item_bytes: int, labels: Mapping[str, bytes]
    ) -> None:
        """Take the header at `address` as a pattern, if it says what the library has found there.

        `labels`: each attribute's value as it is stored; its message may be longer, up to a multiple of 8 bytes.
        """
        if len(self._patterns) == _MOST_PATTERNS:
            return
        try:
            pattern = self._parsed(address)
        except _UnlikeOthers:
            return
        for name, (piece, start, _) in pattern.labels_at.items():
            pattern.labels_at[name] = piece, start, start + len(labels[name])
        self._patterns.append((pattern, item_bytes))
        found = self._read(np.array([address]), pattern, item_bytes)
        if not (
            found.understood.all()
            and found.offsets.tolist() == [offset]
            and found.shapes.tolist() == [list(shape)]
            and all(found.labels[name].tobytes() == labels[name] for name in self._labels)
        ):
            self._patterns.pop()

    def read(self, addresses: NDArray[np.int64]) -> Found | None:
        """Read the headers at `addresses` (-1: there is none); returns None if not one was understood."""
        for pattern, item_bytes in reversed(self._patterns):
            found = self._read(addresses, pattern, item_bytes)
            if found.understood.any():
                return found
        return None

    def _parsed(self, address: int) -> _Pattern:
        pattern = _Pattern()
        prefix = os.pread(self._descriptor, _PREFIX_BYTES, address)
        if len(prefix) < _PREFIX_BYTES or prefix[0] != 1:
            raise _UnlikeOthers
        todo = [(address, _PREFIX_BYTES + int.from_bytes(prefix[8:12], "little"))]
        while todo:
            start, size = todo.pop(0)
            piece = np.frombuffer(os.pread(self._descriptor, min(size, _MOST_BYTES), start), np.uint8)
            if len(piece) < size:
                raise _UnlikeOthers
            number = len(pattern.pieces)
            if number == _MOST_PIECES:
                raise _UnlikeOthers
            pattern.pieces.append(piece)
            pattern.fixed.append(np.ones(size, np.bool_))
            if not number:
                pattern.fixed[0][_REFERENCES] = False
            for kind, at, length in _messages(piece.tobytes(), 0 if number else _PREFIX_BYTES):
                todo += self._noted(pattern, number, kind, at, length)
        if pattern.offset_at is None or pattern.shape_at is None or len(pattern.labels_at) < len(self._labels):
            raise _UnlikeOthers
        return pattern

    def _noted(self, pattern: _Pattern, number: int, kind: int, at: int, length: int) -> list[tuple[int, int]]:
        """Take down a message's numbers; returns the piece that it leads to, if it does."""
        fixed, data = pattern.fixed[number], pattern.pieces[number][at : at + length].tobytes()
        if kind == _SPACE:
            start = at + (8 if data[0] == 1 else 4)
            pattern.shape_at, pattern.axes = (number, start), data[1]
            fixed[start : start + 8 * data[1] * (1 + (data[2] & 1))] = False  # the largest extents do not matter
        elif kind == _LAYOUT:
            if data[0] not in (3, 4) or data[1] != _IN_ONE_PIECE:
                raise _UnlikeOthers
            pattern.offset_at = number, at + 2
            fixed[at + 2 : at + 18] = False
        elif kind == _ATTRIBUTE:
            name, value = _attribute(data)
            fixed[at + value : at + length] = False
            if name in self._labels:
                pattern.labels_at[name] = number, at + value, at + length
        elif kind == _CONTINUATION:
            pattern.next_at.append((number, at))
            fixed[at : at + 8] = False
            return [(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:16], "little"))]
        elif kind in (_NIL, _OLD_TIME, _TIME):
            fixed[at : at + length] = False
        return []

    def _read(self, addresses: NDArray[np.int64], pattern: _Pattern, item_bytes: int) -> Found:
        good = addresses >= 0
        pieces: list[Bytes] = []
        for number, (expected, fixed) in enumerate(zip(pattern.pieces, pattern.fixed, strict=True)):
            starts = addresses if not number else _numbers(pieces, *pattern.next_at[number - 1])[:, 0]
            rows = self._rows(np.where(good, starts, -1), len(expected))
            good = good & (rows[:, fixed] == expected[fixed]).all(axis=1)
            pieces.append(rows)
        assert pattern.offset_at is not None
        assert pattern.shape_at is not None
        offsets, sizes = _numbers(pieces, *pattern.offset_at, 2).T
        shapes = _numbers(pieces, *pattern.shape_at, pattern.axes)
        # Values that were never written have no place, and a file that was cut short does not hold them.
        good = good & (offsets >= 0) & (sizes >= 0) & (offsets <= self._size - sizes)
        good &= ((shapes >= 0) & (shapes <= _LARGEST_EXTENT)).all(axis=1)
        good &= shapes.prod(axis=1, dtype=np.float64) * item_bytes == sizes
        labels = {name: pieces[n][good, start:stop] for name, (n, start, stop) in pattern.labels_at.items()}
        return Found(good, offsets[good], shapes[good], labels)

    def _rows(self, starts: NDArray[np.int64], size: int) -> Bytes:
        """`size` bytes from each of `starts`, zeros where there are none; read and not mapped, as files may be cut."""
        empty = bytes(size)
        read = (os.pread(self._descriptor, size, start) if start >= 0 else empty for start in starts.tolist())
        return np.frombuffer(b"".join(row.ljust(size, b"\0") for row in read), np.uint8).reshape(-1, size)


def _messages(piece: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """The kind of each message of a piece, the position of its data and their length."""
    while at + _MESSAGE_BYTES <= len(piece):
        kind, length, flags = struct.unpack_from("<HHB", piece, at)
        if kind not in _PLAIN or (flags & _SHARED and kind == _ATTRIBUTE):
            raise _UnlikeOthers
        yield kind, at + _MESSAGE_BYTES, length
        at += _MESSAGE_BYTES + length


def _attribute(data: bytes) -> tuple[str, int]:
    """An attribute's name, and where in its message the value begins."""
    version, flags = data[0], data[1]
    if version not in (1, 2, 3) or (version > 1 and flags):
        raise _UnlikeOthers
    sizes: tuple[int, ...] = struct.unpack_from("<HHH", data, 2)
    start = 9 if version == 3 else 8
    name = data[start : start + sizes[0]].rstrip(b"\0").decode(errors="surrogateescape")
    return name, start + sum(-(-size // 8) * 8 if version == 1 else size for size in sizes)


def _numbers(pieces: Sequence[Bytes], piece: int, at: int, count: int = 1) -> NDArray[np.int64]:
    """Numbers of 8 bytes, shape (headers, count); what does not fit a signed one is negative."""
    return np.ascontiguousarray(pieces[piece][:, at : at + 8 * count]).view("<i8")
