"""Rows of many files gathered in one call: the files are mapped side by side, at addresses that put all rows on a grid.

Going through the files one after the other, Python takes 13 µs for each, and of many files a task has a row or two of
each. Maps begin at whole pages; but of the pages behind each other, one in (row bytes / greatest common divisor of the
page and the row) is such that the rows of a file mapped there lie at whole rows from the first file's. So an index of a
row is an index into one array.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat
from operator import attrgetter, lt, ne
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ...base.errors import SourceError
from ...base.specs import AnyArray, ConvertedRows, IndexArray, Straight
from ...transport.shared_map import AddressRange
from ..files.file import RawFile, in_memory, split_by_part, whole_pages
from .layout import Chunked, Column

_PAGE = mmap.PAGESIZE
_MOST_MAPS = 1 << 14  # a process may have 65,530 by default
_MOST_BYTES = 1 << 44  # of 2⁴⁷ that there are
_CHANGED_NS = attrgetter("st_ctime_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Where each part is mapped: `pages[k]`, counted from the beginning; its rows are grid rows from `rows[k]` on.

    The grid begins `shift` bytes after the beginning, all together takes `size` bytes.
    """

    pages: NDArray[np.int64]
    rows: NDArray[np.int64]
    shift: int
    size: int


def lay_out_grid(offsets: IndexArray, counts: IndexArray, row_bytes: int) -> Grid:
    """A place for each part, `counts[k]` rows that begin at byte offsets[k] of a file; raises ValueError if none fits.

    A row that is a multiple of a part of the page, as 784 is of 16, can only be moved by multiples of that part.
    """
    common = math.gcd(_PAGE, row_bytes)
    shift = int(offsets[0]) % common
    if (offsets % common != shift).any():
        raise ValueError("the rows of two parts fit no grid")
    period = row_bytes // common
    within = offsets % _PAGE
    wanted = (shift - within) // common * pow(_PAGE // common, -1, period) % period
    lengths = -(-(within + counts * row_bytes) // _PAGE)
    pages = np.empty(len(offsets), np.int64)
    end = 0
    for part, (phase, length) in enumerate(zip(wanted.tolist(), lengths.tolist(), strict=True)):
        pages[part] = end + (phase - end) % period
        end = int(pages[part]) + length
    if end * _PAGE > _MOST_BYTES:
        raise ValueError("the parts take more addresses than there are")
    return Grid(pages, (pages * _PAGE + within - shift) // row_bytes, shift, end * _PAGE)


class JoinedColumns:
    """Columns that are cut at the same samples, `starts`, whose arrays all lie in one piece; None if one does not."""

    @classmethod
    def of(
        cls, starts: NDArray[np.int64], columns: Sequence[tuple[str, Column]], most_files: int
    ) -> JoinedColumns | None:
        if len(starts) <= 2 or len(columns) * len(starts) > _MOST_MAPS or not all(_is_whole(one) for _, one in columns):
            return None
        try:
            joined = {top: _JoinedColumn(column) for top, column in columns}
        except (ValueError, OSError):  # there is no grid, or a limit to the address space
            return None
        return cls(starts, joined, most_files)

    def __init__(self, starts: NDArray[np.int64], columns: Mapping[str, _JoinedColumn], most_files: int) -> None:
        self._starts = starts
        self._columns = columns
        arrays = zip(*(column.arrays for column in columns.values()), strict=True)
        self._stamps = [tuple({array.file.path: array.file for array in beside}.values()) for beside in arrays]
        self._keeps_open = sum(map(len, self._stamps)) <= most_files
        self._files: list[Mapping[str, RawFile]] = [{} for _ in self._stamps]
        self._checks = [_Checks(len(self._stamps)) for _ in range(max(map(len, self._stamps)))]
        self._mapped = np.zeros(len(self._stamps), np.bool_)

    def read(self, indices: IndexArray, out: Straight) -> list[int]:
        """Put sample indices[i] into row i of each top; returns the numbers of the parts that were read."""
        numbers, local, used = self._located(indices)
        if not self._mapped[used].all():
            self._map(used)
        self._require_intact(used)
        for top, column in self._columns.items():
            column.take(numbers, local, out[top])
        return used

    def require_unchanged(self, used: Sequence[int]) -> None:
        """Raises SourceError if a file of these parts was changed since it was examined."""
        if self._keeps_open and not any(check.show_a_change(used) for check in self._checks):
            return
        for number in used:
            for stamp in self._stamps[number]:
                file = self._files[number].get(stamp.path)
                stamp.require_unchanged(file.descriptor if file else None)

    def _require_intact(self, used: Sequence[int]) -> None:
        """Before the maps are touched: a file cut short would be SIGBUS."""
        if not self._keeps_open:
            self.require_unchanged(used)
        elif any(check.show_a_cut(used) for check in self._checks):
            for number in used:
                for file in self._files[number].values():
                    file.require_intact()

    def will_need(self, indices: IndexArray) -> bool:
        """Start reading these samples; whether all was in memory already."""
        if self._keeps_open:
            return self._announce(*self._located(indices))
        in_memory = True
        for number, local, _ in split_by_part(self._starts, indices):
            in_memory &= self._announce(np.full_like(local, number), local, [number])
        return in_memory

    def _announce(self, numbers: IndexArray, local: IndexArray, used: Sequence[int]) -> bool:
        files = {number: self._opened(number) for number in used}
        rows = [
            (files[number][column.arrays[number].file.path], offset, size)
            for column in self._columns.values()
            for number, offset, size in column.pages(numbers, local)
        ]
        if all(in_memory(file.descriptor, file.stamp.size, [(offset, size)]) for file, offset, size in rows):
            return True
        for file, offset, size in rows:
            os.posix_fadvise(file.descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        return False

    def _located(self, indices: IndexArray) -> tuple[IndexArray, IndexArray, list[int]]:
        """The part of each sample and its number in there, and all parts."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        used: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
        return numbers, indices - self._starts[numbers], used

    def _map(self, used: Sequence[int]) -> None:
        for number in used:
            if self._mapped[number]:
                continue
            files = self._opened(number)
            for column in self._columns.values():
                array = column.arrays[number]
                try:
                    column.map(number, files[array.file.path].descriptor)
                except OSError as error:
                    raise SourceError(f"{array}: it cannot be mapped: {error.strerror}") from error
            self._mapped[number] = True

    def _opened(self, number: int) -> Mapping[str, RawFile]:
        """The part's files by path. If not all of the source's may stay open, these are closed after use."""
        if files := self._files[number]:
            return files
        files = {stamp.path: RawFile(stamp) for stamp in self._stamps[number]}
        for file in files.values():
            file.expect(scattered=True)
        if self._keeps_open:
            self._files[number] = files
            for check, file in zip(self._checks, cycle(files.values()), strict=False):
                check.add(number, file)
        return files


class _Checks:
    """A file of each part, as columns of numbers: system calls for 1,000 files without Python for each of them.

    That took a third of the time. A part that has fewer files than others has one of them more than once.
    """

    def __init__(self, parts: int) -> None:
        self._descriptors = [-1] * parts
        self._sizes = [0] * parts
        self._changed_ns = [0] * parts

    def add(self, number: int, file: RawFile) -> None:
        self._descriptors[number] = file.descriptor
        self._sizes[number], self._changed_ns[number] = file.stamp.size, file.stamp.ctime_ns

    def show_a_cut(self, used: Sequence[int]) -> bool:
        """Whether a file of these parts is shorter than when it was examined."""
        sizes = map(os.lseek, [self._descriptors[part] for part in used], repeat(0), repeat(os.SEEK_END))
        return any(map(lt, sizes, [self._sizes[part] for part in used]))

    def show_a_change(self, used: Sequence[int]) -> bool:
        """Whether a file of these parts was changed since it was examined, or cannot be asked.

        Whatever changes in an open file, the time of its inode's last change does too.
        """
        try:
            times = map(_CHANGED_NS, map(os.fstat, [self._descriptors[part] for part in used]))
            return any(map(ne, times, [self._changed_ns[part] for part in used]))
        except OSError:
            return True


class _JoinedColumn:
    """One top; raises ValueError if there is no grid, OSError if there is no address space."""

    def __init__(self, column: Column) -> None:
        self.arrays = column.arrays
        self._offsets = np.array([int(cast("Chunked", array.layout).offsets[0]) for array in self.arrays])
        self._row_bytes = self.arrays[0].sample_bytes
        counts = np.diff(column.starts)
        self._grid = grid = lay_out_grid(self._offsets, counts, self._row_bytes)
        self._range = AddressRange(grid.size)
        rows = (grid.size - grid.shift) // self._row_bytes
        self._rows = np.ndarray((rows, self._row_bytes), np.uint8, self._range.array().data, grid.shift)
        self._counts = counts

    def map(self, number: int, descriptor: int) -> None:
        first = int(self._offsets[number]) // _PAGE * _PAGE
        size = int(self._offsets[number]) + int(self._counts[number]) * self._row_bytes - first
        if size:
            self._range.map_file(int(self._grid.pages[number]) * _PAGE, descriptor, first, size)

    def pages(self, numbers: IndexArray, local: IndexArray) -> Iterator[tuple[int, int, int]]:
        """The pages that hold each sample, as the number of its part, offset and size."""
        starts, sizes = whole_pages(self._offsets[numbers] + local * self._row_bytes, self._row_bytes)
        return zip(numbers.tolist(), starts.tolist(), sizes.tolist(), strict=True)

    def take(self, numbers: IndexArray, local: IndexArray, out: AnyArray | ConvertedRows) -> None:
        rows = self._grid.rows[numbers] + local
        if isinstance(out, ConvertedRows):
            out.take(self._rows.reshape(-1), rows * self._row_bytes, np.arange(len(rows)))
            return
        self._rows.take(rows, axis=0, out=out.reshape(len(out), -1).view(np.uint8), mode="clip")


def _is_whole(column: Column) -> bool:
    """Whether each array lies in one piece of bytes that are delivered as they are, in rows that are mapped."""
    dtype = column.spec.dtype
    return all(
        array.rows_are_mapped and array.layout.chunk == array.shape and array.dtype == dtype for array in column.arrays
    )
