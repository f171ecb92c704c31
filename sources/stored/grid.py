"""Columns of stored arrays, read by offset if the layout allows; and the table of the kinds that have such arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...workers.api import ArraySpec, Boxes, ConvertedRows, IndexArray, Outlier, RaggedRows
from ...workers.base import BlobfeedError, SourceError, text_digest
from ..files import as_bytes, locate_part, split_by_part
from ..table import Column, OutRows, Store
from .layout import Chunked, ChunkObjects, StoredArray, ThroughLibrary
from .store import FileStore

LIBRARY_MODULE = f"{__package__}.library_rows"
"""The module that a loader imports if some array can be read only by the HDF5 library."""

Parts = Sequence[StoredArray]
"""The samples of one top: those of each array, one array after the other."""

_CUT_FROM_BYTES = 1 << 18
"""Samples from this size on are cut where they are stored: a smaller one is copied in less time than its lines."""

_ONLY_PART = np.zeros(1, np.int64)


class Grid(Column):
    """Tops whose arrays are cut at the same samples: the part that holds a sample is located once for all of them.

    `others`: stores beside `files` that hold values. `span`: as for Resident; only for tops that lie in one piece.
    """

    def __init__(
        self, tops: Mapping[str, Parts], files: FileStore, others: Sequence[Store[Any]] = (), span: int = 0
    ) -> None:
        self._tops, self._files = tops, files
        self.stores = (files, *others)
        self._arrays = arrays = [array for parts in tops.values() for array in parts]
        self._first = next(iter(tops.values()))
        self._starts = np.cumsum([0, *(array.samples for array in self._first)], dtype=np.int64)
        self.samples = int(self._starts[-1])
        self.specs = {top: _spec(parts, span) for top, parts in tops.items()}
        self._rows = {top: _Stretches(parts, files, span or 1) for top, parts in tops.items() if _row_bytes(parts)}
        self._others = {top: parts for top, parts in tops.items() if top not in self._rows}
        held = {tuple(files.number(array.file) for array in parts): None for parts in tops.values()}
        self._numbers = [np.array(numbers) for numbers in held]
        self._only_files = [*dict.fromkeys(number for (number,) in held)] if len(self._first) == 1 else []
        stored = [(array.file.path, [other.path for other in array.others], array.name) for array in arrays]
        self.options = text_digest(repr((stored, [*map(str, (array.arrangement for array in arrays))])))
        self.stores_rows = all(_stores_rows(array) for array in arrays)
        largest = max(tops.values(), key=lambda parts: parts[0].sample_bytes)
        self.chunk_samples = largest[0].chunk_samples
        self.modules = modules_of(arrays)
        self.outliers = {top: found for top, parts in tops.items() if (found := _outlier(parts, self._starts))}

    def only(self, tops: Collection[str]) -> Grid:
        if len(tops) == len(self._tops):
            return self
        return Grid({top: self._tops[top] for top in tops}, self._files, self.stores[1:])

    @property
    def part_ends(self) -> IndexArray:
        return self._starts[1:]

    def spanned(self, length: int) -> Column | None:
        in_one_copy = not self._others and all(rows.are_pieces for rows in self._rows.values())
        return Grid(self._tops, self._files, self.stores[1:], length) if in_one_copy else None

    def where(self, index: int) -> str:
        """Return the first top's array that holds sample `index`, and its number in there."""
        number, local = locate_part(self._starts, index)
        return f"{self._first[number]}[{local}]"

    @cached_property
    def gathered(self) -> Collection[str]:
        self._files.begin()
        rows = {top: rows for top, rows in self._rows.items() if self.specs[top].dtype == np.uint8}
        return {top for top, each in rows.items() if self._files.memory(each.row_bytes) is not None}

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        parts, local = self._located(indices)
        self._use(parts)
        for top, direct in self._rows.items():
            if top in out:
                direct.read(parts, local, positions, out[top])
        for array, top, within, members in self._by_array(indices) if self._others else ():
            if top not in out:
                continue
            rows = _as_stored(out[top], array.arrangement.order)
            _read(self._files, array, within, positions[members], rows)

    @cached_property
    def cuts(self) -> Collection[str]:
        are_large = {top: parts[0].sample_bytes >= _CUT_FROM_BYTES for top, parts in self._tops.items()}
        return {top for top, spec in self.specs.items() if are_large[top] and spec.dtype.kind not in "SU"}

    def read_parts(self, indices: IndexArray, parts: Mapping[str, Boxes], positions: IndexArray, out: OutRows) -> None:
        if whole := {top: out[top] for top in self._tops if top in out and top not in parts}:
            self.read(indices, positions, whole)
        self._use(self._located(indices)[0])
        for array, top, corners, members in self._boxes(indices, parts):
            if top in out:
                read_boxes(self._files, array, corners, positions[members], out[top][:, np.newaxis])

    def will_need_parts(self, indices: IndexArray, parts: Mapping[str, Boxes], *, now: bool = False) -> bool:
        whole = [top for top in self._tops if top not in parts]
        found = [self.only(whole).will_need(indices, now=now)] if whole else []
        for array, top, corners, _ in self._boxes(indices, parts):
            found.append(will_need_boxes(self._files, array, corners, (1, *parts[top].shape), now=now))
        return all(found)

    def _boxes(
        self, indices: IndexArray, parts: Mapping[str, Boxes]
    ) -> Iterator[tuple[StoredArray, str, IndexArray, IndexArray]]:
        """The arrays that hold the parts, the corners of the boxes in each, and their positions in `indices`."""
        for number, local, members in split_by_part(self._starts, indices):
            for top in (top for top in self._tops if top in parts):
                yield self._tops[top][number], top, np.column_stack([local, parts[top].corners[members]]), members

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        parts, local = self._located(indices)
        found = [
            self._files.will_need_at(rows.addresses(parts, local), rows.row_bytes, now=now)
            for rows in self._rows.values()
        ]
        for array, _, within, _ in self._by_array(indices):
            if not isinstance(array.layout, ThroughLibrary):  # only the library knows where they lie
                found.append(self._files.reader(array).will_need(within, now=now))
        return all(found)

    def _located(self, indices: IndexArray) -> tuple[IndexArray, IndexArray]:
        """The part that holds each sample, a single one if there is one part, and the sample's number in there."""
        if len(self._starts) == 2:
            return _ONLY_PART, indices
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        return parts, indices - self._starts[parts]

    def _use(self, parts: IndexArray) -> None:
        if self._only_files:
            self._files.use(self._only_files)
            return
        for numbers in self._numbers:
            self._files.use(np.bincount(numbers[parts]).nonzero()[0].tolist())

    def _by_array(self, indices: IndexArray) -> Iterator[tuple[StoredArray, str, IndexArray, IndexArray]]:
        """The arrays that hold what does not lie in rows: the samples in each, and their positions in `indices`."""
        for number, local, positions in split_by_part(self._starts, indices):
            for top, parts in self._others.items():
                yield parts[number], top, local, positions


def axes_of(array: StoredArray) -> list[int]:
    """The stored axes in the order of delivery, before them the one that counts samples."""
    others = [axis for axis in range(len(array.shape)) if axis != array.arrangement.sample_axis]
    order = array.arrangement.order
    return [array.arrangement.sample_axis, *(others if order is None else (others[axis] for axis in order))]


def extents_of(array: StoredArray) -> IndexArray:
    """The array's extents along these axes."""
    return np.array(array.shape, np.int64)[axes_of(array)]


def read_boxes(files: FileStore, array: StoredArray, corners: IndexArray, positions: IndexArray, rows: Any) -> None:
    """Put the boxes with these corners into rows[positions], as far as they lie in the array; axes as `axes_of`."""
    back = np.argsort(axes_of(array))
    if len(corners):
        _read(files, array, corners[:, back], positions, rows.transpose(0, *(back + 1)), are_boxes=True)


def will_need_boxes(
    files: FileStore, array: StoredArray, corners: IndexArray, box: Sequence[int], *, now: bool
) -> bool:
    """Start reading these boxes, as Column.will_need."""
    if not len(corners) or isinstance(array.layout, ThroughLibrary):  # only the library knows where they lie
        return True
    back = np.argsort(axes_of(array))
    return files.reader(array).will_need_boxes(corners[:, back], np.array(box)[back], now=now)


def _read(
    files: FileStore,
    array: StoredArray,
    wanted: IndexArray,
    positions: IndexArray,
    rows: Any,
    *,
    are_boxes: bool = False,
) -> None:
    """Put the samples `wanted` of `array`, or the boxes with these corners, into rows[positions], stored axes in order.

    Raises SourceError that names the array.
    """
    files.watch(map(files.number, array.others))
    try:
        reader = files.reader(array)
        read = reader.read_boxes if are_boxes else reader.read
        if array.packing:
            stored = np.empty((len(positions), *rows.shape[1:]), array.dtype)
            read(wanted, np.arange(len(positions)), stored)
            rows[positions] = array.packing.values(stored)
        else:
            read(wanted, positions, rows)
    except BlobfeedError:
        raise
    except Exception as error:
        raise SourceError(f"{array}: reading samples failed: {error}") from error


class _Stretches:
    """One top whose samples are delivered as they are stored, each one stretch of `row_bytes` bytes.

    `span`: as many samples are read as one.
    """

    def __init__(self, parts: Parts, files: FileStore, span: int) -> None:
        self._step_bytes = _row_bytes(parts)
        self.row_bytes = self._step_bytes * span
        self._files = files
        layouts = [array.layout for array in parts if isinstance(array.layout, Chunked)]
        counts = [len(layout.offsets) for layout in layouts]
        self._first_chunk = np.cumsum([0, *counts], dtype=np.int64)[:-1]
        self._per_chunk = np.array([max(1, layout.chunk[0]) for layout in layouts], np.int64)
        starts = [int(files.starts[files.number(array.file)]) for array in parts]
        self._chunks = np.concatenate([start + each.offsets for start, each in zip(starts, layouts, strict=True)])
        self.are_pieces = set(counts) == {1}
        # The address of the first sample, if all of them lie behind each other.
        self._one_piece = int(self._chunks[0]) if counts == [1] else -1

    def read(self, parts: IndexArray, local: IndexArray, positions: IndexArray, rows: Any) -> None:
        if isinstance(rows, ConvertedRows):
            memory = self._files.memory(self.row_bytes)
            assert memory is not None
            rows.take(memory, self.addresses(parts, local), positions)
        else:
            self._files.gather(self.addresses(parts, local), positions, as_bytes(rows))

    def addresses(self, parts: IndexArray, local: IndexArray) -> IndexArray:
        """Return the address of sample local[i] of part parts[i], for all i."""
        addresses: IndexArray
        if self._one_piece >= 0:
            addresses = local * self._step_bytes + self._one_piece
        elif self.are_pieces:
            addresses = self._chunks[parts] + local * self._step_bytes
        else:
            chunk, within = np.divmod(local, self._per_chunk[parts])
            addresses = self._chunks[self._first_chunk[parts] + chunk] + within * self._step_bytes
        return addresses


def _row_bytes(parts: Parts) -> int:
    """Bytes of a sample if all are delivered as they are stored, each one stretch; else 0."""
    sizes = {array.sample_bytes if array.delivers_rows else 0 for array in parts}
    return sizes.pop() if len(sizes) == 1 else 0


def _spec(parts: Parts, span: int) -> ArraySpec:
    # Strings of varying length are as long as the longest of their file: the longest of all holds each.
    dtype = max((array.delivered_dtype for array in parts), key=lambda dtype: dtype.itemsize)
    if parts[0].longest is not None:
        return ArraySpec((max(array.longest or 0 for array in parts),), dtype, varies=True)
    return ArraySpec((span, *parts[0].sample_shape)[not span :], dtype)


def _outlier(parts: Parts, starts: IndexArray) -> Outlier | None:
    """The sample with the longest element in all parts; None if they were not looked at."""
    found = [(start, array.largest) for start, array in zip(starts.tolist(), parts, strict=False) if array.largest]
    if not found:
        return None
    start, largest = max(found, key=lambda each: each[1].items)
    return Outlier(start + largest.index, largest.items, float(np.median([each.median for _, each in found])))


def _stores_rows(array: StoredArray) -> bool:
    return (
        isinstance(array.layout, Chunked)
        and not array.layout.filters
        and not array.packing
        and (array.lies_in_rows or not array.file.on_network)  # there others are mapped, or whole chunks are read
    )


def modules_of(arrays: Parts) -> tuple[str, ...]:
    """The modules that reading these arrays imports."""
    filtered = [array.layout.filters for array in arrays if isinstance(array.layout, Chunked | ChunkObjects)]
    by_library = [array.layout for array in arrays if isinstance(array.layout, ThroughLibrary)]
    wanted = {
        LIBRARY_MODULE: bool(by_library),
        "hdf5plugin": any(layout.plugin for layout in by_library),
        "numcodecs": any(applied.kind == "numcodecs" for filters in filtered for applied in filters),
    }
    return tuple(name for name, is_needed in wanted.items() if is_needed)


def _as_stored(rows: Any, order: tuple[int, ...] | None) -> Any:
    """A view of delivered rows, shape (rows, *delivered), with the sample's axes in their stored order."""
    if order is None or isinstance(rows, RaggedRows):
        return rows
    back = sorted(range(len(order)), key=order.__getitem__)
    return rows.transpose(0, *(axis + 1 for axis in back))
