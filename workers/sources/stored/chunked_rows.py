"""Samples of an array stored in chunks: gathered where nothing is filtered, else decoded chunk by chunk, each once."""

from __future__ import annotations

import itertools
import math

import numpy as np

from ...base.errors import SourceError
from ...base.specs import AnyArray, IndexArray
from .axes import without
from .chunk_decode import ChunkError, decode_chunk
from .file import RawFile
from .layout import Chunked, StoredArray
from .lru import ChunkCache
from .runs import by_group, copy_runs

_FANCY_BELOW_BYTES = 2048


class ChunkedRows:
    """Samples of an array in chunks; `layout` is the array's, and decoded chunks are kept in `cache`."""

    def __init__(self, file: RawFile, array: StoredArray, layout: Chunked, cache: ChunkCache) -> None:
        sample_axis = array.arrangement.sample_axis
        self._file = file
        self._array = array
        self._layout = layout
        self._dtype = array.dtype
        self._axis = sample_axis
        self._cache = cache
        self._grid = tuple(-(-extent // chunk) for extent, chunk in zip(array.shape, layout.chunk, strict=True))
        # The number of a chunk in the grid is that of its group times the step, plus one of these for its place beside.
        self._group_step = math.prod(self._grid[sample_axis + 1 :])
        numbers = np.arange(len(layout.offsets)).reshape(self._grid)
        self._beside = np.take(numbers, 0, axis=sample_axis).ravel()
        self._per_chunk = layout.chunk[sample_axis]
        self._row_bytes = math.prod(without(layout.chunk, sample_axis)) * array.dtype.itemsize
        self._rows_lie_whole = (
            not layout.filters and sample_axis == 0 and layout.chunk[1:] == array.shape[1:] and array.dtype.isnative
        )

    def read(self, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        """Put sample indices[i] into rows[positions[i]]; the sample's axes are in their stored order."""
        if self._rows_lie_whole and rows.flags.c_contiguous and rows.dtype == self._dtype:
            offsets = self._layout.offsets[indices // self._per_chunk]
            if int(offsets.min()) >= 0:
                offsets = offsets + indices % self._per_chunk * self._row_bytes
                self._file.gather_at(offsets, positions, rows.reshape(len(rows), -1).view(np.uint8))
                return
        self._file.require_intact()
        for group, members in by_group(indices // self._per_chunk):
            self._read_group(group, indices[members] - group * self._per_chunk, positions[members], rows)

    def _read_group(self, group: int, within: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        others, extents = without(self._grid, self._axis), without(self._layout.chunk, self._axis)
        for place in itertools.product(*map(range, others)):
            region = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, extents, strict=True))
            part = rows[(slice(None), *region)]
            clip = tuple(slice(0, extent) for extent in part.shape[1:])
            samples = self._samples((*place[: self._axis], group, *place[self._axis :]))[(slice(None), *clip)]
            if samples[0].nbytes < _FANCY_BELOW_BYTES:
                part[positions] = samples[within]
            else:
                copy_runs(samples, within, positions, part)

    def _samples(self, place: tuple[int, ...]) -> AnyArray:
        """The chunk at `place` of the grid, its sample axis first."""
        number = int(np.ravel_multi_index(place, self._grid))
        offset = int(self._layout.offsets[number])
        if offset < 0:
            return np.moveaxis(np.broadcast_to(self._fill(), self._layout.chunk), self._axis, 0)
        if not self._layout.filters and self._file.maps(self._row_bytes):
            chunk: AnyArray = np.ndarray(self._layout.chunk, self._dtype, buffer=self._file.mapped(), offset=offset)
        else:
            chunk = self._cached(number, offset)
        return np.moveaxis(chunk, self._axis, 0)

    def _fill(self) -> AnyArray:
        return np.frombuffer(self._layout.fill, self._dtype).reshape(())

    def _cached(self, number: int, offset: int) -> AnyArray:
        key = (self._array.file.path, self._array.name, number)
        chunk = self._cache.get(key)
        if chunk is None:
            chunk = self._decoded(number, offset)
            self._cache.put(key, chunk)
        return chunk

    def _decoded(self, number: int, offset: int) -> AnyArray:
        layout, whole = self._layout, math.prod(self._layout.chunk) * self._dtype.itemsize
        stored = self._file.read(offset, whole if layout.sizes is None else int(layout.sizes[number]))
        skipped = 0 if layout.skipped is None else int(layout.skipped[number])
        try:
            data = decode_chunk(stored, layout.filters, skipped, whole)
        except ChunkError as error:
            raise SourceError(f"{self._array}: the chunk at byte {offset} of the file: {error}") from error
        return data.view(self._dtype).reshape(layout.chunk)

    def will_need(self, indices: IndexArray) -> None:
        """Start reading the chunks of these samples, as far as they are not decoded already."""
        layout, groups = self._layout, np.unique(indices // self._per_chunk)
        numbers = (groups[:, None] * self._group_step + self._beside).ravel()
        numbers = numbers[layout.offsets[numbers] >= 0]
        whole = math.prod(layout.chunk) * self._dtype.itemsize
        sizes = np.full(len(numbers), whole) if layout.sizes is None else layout.sizes[numbers].astype(np.int64)
        self._file.will_need(layout.offsets[numbers], sizes)
