"""Columns of stored arrays, read by offset if the layout allows; and the table of the kinds that have such arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from ...workers.api import ArraySpec, Boxes, ConvertedRows, IndexArray, Outlier, Positive, RaggedRows
from ...workers.base import BlobfeedError, SourceError, text_digest
from ..files import Locking, RemoteStamp, as_bytes, locate_part, split_by_part
from ..table import Column, OutRows, Store, Table, WindowOptions
from .layout import Chunked, ChunkObjects, Dims, StoredArray, ThroughLibrary
from .packing import packing_of
from .store import FileStore

LIBRARY_MODULE = f"{__package__}.library_rows"
"""The module that a loader imports if some array can be read only by the HDF5 library."""

Parts = Sequence[StoredArray]
"""The samples of one top: those of each array, one array after the other."""

_CUT_FROM_BYTES = 1 << 18
"""Samples from this size on are cut where they are stored: a smaller one is copied in less time than its lines."""

_ONLY_PART = np.zeros(1, np.int64)

_log = logging.getLogger("blobfeed")


class ArrayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of stored arrays, whatever their files are.

    limit: only the first so many samples.
    dims: the stored order of the first top's dimensions, such as [n, h, w, c], or a mapping from top to such a list;
        delivered as N×C×D×H×W.
    window: samples are windows of several rows; see `window` above.
    """

    limit: Positive | None = None
    dims: Dims = None
    window: WindowOptions | None = None


def stored_table(
    kind: str,
    tops: Mapping[str, Parts],
    window: WindowOptions | None,
    find: Callable[[str], Parts],
    *,
    limit: int | None = None,
    locking: Locking = None,
    open_files: int | None = None,
    chunk_cache_bytes: int = 0,
    others: Sequence[Store[Any]] = (),
    columns: Sequence[Column] = (),
    order: Sequence[str] = (),
) -> Table:
    """Return the table of these arrays.

    `find`: finds another array, for the boundaries of windows. `others`: further stores that hold values. `columns`:
    further tops; `order`: of all, that of `tops` if it is empty. The rest as for FileStore.
    Raises SourceError if the arrays of a top differ in the shape or type of their samples.
    """
    arrays = [array for parts in tops.values() for array in parts]
    stamps = [stamp for array in arrays for stamp in (array.file, *array.others)]
    files = FileStore(stamps, locking, open_files, _cache_bytes(chunk_cache_bytes, tops, f"source {kind}"))
    for parts in tops.values():
        _require_readable(parts, f"source {kind}")
    # Tops that are cut at the same samples, as those of the same HDF5 files are: samples are located once for all.
    groups: dict[tuple[int, ...], dict[str, Parts]] = {}
    for top, parts in tops.items():
        groups.setdefault(tuple(array.samples for array in parts), {})[top] = parts
    grids = [Grid(group, files, others) for group in groups.values()]
    table = Table(
        kind,
        [*grids, *columns],
        tops=tuple(order or tops),
        held_in=str(arrays[0]),
        where=grids[0].where,
        limit=None if window else limit,
        options=[
            *((array.name, array.arrangement) for array in arrays),
            *(array.packing for array in arrays if array.packing),
            *(column.options for column in columns),
        ],
    )
    if window is None:
        return table
    name = window.boundaries
    bounds = stored_table(kind, {name: find(name)}, None, find, locking=locking) if name else None
    return table.windows(window, bounds, limit)


def by_conventions(tops: Mapping[str, Parts], what: str, *, decode_cf: bool | None) -> Mapping[str, Parts]:
    """Return the arrays as `decode_cf` says: with what their attributes say applied, or as they are stored.

    With None, a warning names the tops that have such attributes. Raises SourceError for attributes that are not as the
    conventions have them.
    """
    if decode_cf:
        return {top: [_with_packing(array, what) for array in parts] for top, parts in tops.items()}
    if decode_cf is None:
        named = {top: next(filter(None, map(_not_applied, parts)), "") for top, parts in tops.items()}
        if said := [f"{top} ({attributes})" for top, attributes in named.items() if attributes]:
            _log.warning(
                "%s: %s: the attributes of %s are not applied, and its numbers come as they are stored: decode_cf: "
                "true applies them, as xarray and netCDF4 do, and decode_cf: false silences this",
                *(what, next(iter(tops.values()))[0].file.path, ", ".join(said)),
            )
    return tops


def _with_packing(array: StoredArray, what: str) -> StoredArray:
    try:
        return replace(array, packing=packing_of(array.attributes, array.dtype))
    except ValueError as error:
        raise SourceError(f"{what}: {array}: {error}; decode_cf: false reads it as it is stored") from error


def _not_applied(array: StoredArray) -> str:
    """The attributes of an array that would change its values, "" if there are none."""
    try:
        if packing_of(array.attributes, array.dtype) is None:
            return ""
    except ValueError:  # they are named, too
        pass
    return ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in array.attributes.items())


def _require_readable(parts: Parts, what: str) -> None:
    first = parts[0]
    for array in parts:
        if array.form != first.form:
            raise SourceError(
                f"{what}: the samples differ between files: {first} has {first.sample_shape} {first.delivered_dtype}, "
                f"{array} has {array.sample_shape} {array.delivered_dtype}; all files need the same shape per sample "
                "and the same type"
            )
        axis, layout = array.arrangement.sample_axis, array.layout
        is_one_piece = isinstance(layout, Chunked) and layout.chunk == array.shape and not layout.filters
        if axis and is_one_piece and isinstance(array.file, RemoteStamp):
            raise SourceError(
                f"{array}: its samples are counted by axis {axis} of an array in one piece, so each of them is spread "
                "over the whole object; store it with the samples first, or in chunks"
            )


def _cache_bytes(wanted: int, tops: Mapping[str, Parts], what: str) -> int:
    """`wanted`, but enough for one chunk of each top: with less, each sample in turn would decode its whole chunk."""
    needed = {top: max(array.decoded_bytes for array in parts) for top, parts in tops.items()}
    total = sum(needed.values())
    if not 0 < wanted < total:
        return wanted
    _log.warning(
        "%s: a chunk of each top takes %d bytes (%s) and chunk_cache_bytes is %d: each loader keeps %d bytes of "
        "decoded chunks; smaller chunks take less memory, and less time to read in shuffled order",
        *(what, total, ", ".join(f"{top} {size}" for top, size in needed.items() if size), wanted, total),
    )
    return total


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
        self.modules = _modules(arrays)
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
            read_array(self._files, array, within, positions[members], rows)

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
                rows = _as_stored(out[top], array.arrangement.order)
                rows = np.expand_dims(rows, array.arrangement.sample_axis + 1)
                read_array(self._files, array, corners, positions[members], rows, are_boxes=True)

    def will_need_parts(self, indices: IndexArray, parts: Mapping[str, Boxes], *, now: bool = False) -> bool:
        whole = [top for top in self._tops if top not in parts]
        found = [self.only(whole).will_need(indices, now=now)] if whole else []
        for array, top, corners, _ in self._boxes(indices, parts):
            box = array.arrangement.box(parts[top].shape)
            found.append(self._files.reader(array).will_need_boxes(corners, box, now=now))
        return all(found)

    def _boxes(
        self, indices: IndexArray, parts: Mapping[str, Boxes]
    ) -> Iterator[tuple[StoredArray, str, IndexArray, IndexArray]]:
        """The arrays that hold the parts, the corners of the boxes in each, and their positions in `indices`."""
        for number, local, members in split_by_part(self._starts, indices):
            for top in (top for top in self._tops if top in parts):
                array = self._tops[top][number]
                yield array, top, array.arrangement.corners(local, parts[top].of(members)), members

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


def read_array(
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
        self._samples = sum(array.samples for array in parts)
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
        elif self._one_piece >= 0 and len(positions) == len(rows) and self._step_bytes == self.row_bytes:
            self._files.take(self._one_piece, self._samples, local, as_bytes(rows))
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


def _modules(arrays: Parts) -> tuple[str, ...]:
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
