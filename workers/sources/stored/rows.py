"""Samples of a stored array into rows, without a library."""

from __future__ import annotations

import itertools
import math
from functools import cached_property

import numpy as np

from ...base.errors import SourceError
from ...base.specs import AnyArray, IndexArray
from .chunk_decode import ChunkError, decode_chunk
from .file import Bytes, RawFile, maps
from .layout import Chunked, StoredArray, without
from .lru import ChunkCache
from .runs import by_group, copy_runs

_BLOCK_ITEMS = 1 << 16
_FANCY_BELOW_BYTES = 2048


class StoredRows:
    """Samples of an array in chunks, or in one piece: gathered if nothing is filtered, else decoded chunk by chunk.

    `layout` is the array's; decoded chunks are kept in `cache`.
    """

    def __init__(self, file: RawFile, array: StoredArray, layout: Chunked, cache: ChunkCache) -> None:
        self._file = file
        self._array = array
        self._layout = layout
        self._dtype = array.dtype
        self._axis = axis = array.arrangement.sample_axis
        self._cache = cache
        self._grid = tuple(-(-extent // chunk) for extent, chunk in zip(array.shape, layout.chunk, strict=True))
        self._per_chunk = layout.chunk[axis]
        self._row_bytes = math.prod(without(layout.chunk, axis)) * array.dtype.itemsize
        self._chunk_bytes = self._row_bytes * self._per_chunk
        self._in_one_piece = not layout.filters and layout.chunk == array.shape and int(layout.offsets[0]) >= 0
        self._rows_lie_whole = not layout.filters and axis == 0 and layout.chunk[1:] == array.shape[1:]

    def read(self, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        """Put sample indices[i] into rows[positions[i]], positions ascending; the axes are in their stored order."""
        if self._rows_lie_whole and rows.flags.c_contiguous and rows.dtype == self._dtype:
            as_bytes = rows.reshape(len(rows), -1).view(np.uint8)
            first, last = int(positions[0]), int(positions[-1])
            if self._in_one_piece and maps(self._row_bytes) and last - first + 1 == len(positions):
                self._byte_rows.take(indices, axis=0, out=as_bytes[first : last + 1], mode="clip")
                return
            offsets = self._offsets(indices)
            if offsets is not None:
                self._file.gather_at(offsets, positions, as_bytes)
                return
        if self._in_one_piece and self._axis and self._axis == len(self._grid) - 1:
            self._read_across(indices, positions, rows)
            return
        for group, members in by_group(indices // self._per_chunk):
            self._read_group(group, indices[members] - group * self._per_chunk, positions[members], rows)

    @cached_property
    def _byte_rows(self) -> Bytes:
        offset = int(self._layout.offsets[0])
        return np.ndarray((self._per_chunk, self._row_bytes), np.uint8, self._file.mapped(), offset)

    def _offsets(self, indices: IndexArray) -> IndexArray | None:
        """Where in the file these samples begin, if rows lie whole; None if one of their chunks was never written."""
        if self._in_one_piece:
            return indices * self._row_bytes + int(self._layout.offsets[0])
        chunks: IndexArray = self._layout.offsets[indices // self._per_chunk]
        return None if int(chunks.min()) < 0 else chunks + indices % self._per_chunk * self._row_bytes

    def _read_across(self, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        """Samples are counted by the last axis: neighbours in memory belong to different samples.

        So each stretch of memory is read once for all samples, which is eight times as fast as each sample by itself
        (3×224×224 bytes of 500, 64 at a time).
        """
        whole = self._mapped(int(self._layout.offsets[0]))
        samples, inner = whole.shape[-1], whole.shape[1:-1]
        step = max(1, _BLOCK_ITEMS // math.prod(inner))
        for start in range(0, len(whole), step):
            block = whole[start : start + step]
            taken = block.reshape(-1, samples).take(indices, axis=1, mode="clip").T
            rows[positions, start : start + step] = taken.reshape(len(indices), len(block), *inner)

    def _read_group(self, group: int, within: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        """All chunks that hold samples group * _per_chunk + `within`, side by side."""
        others, extents = without(self._grid, self._axis), without(self._layout.chunk, self._axis)
        for beside in itertools.product(*map(range, others)):
            region = tuple(slice(at * size, (at + 1) * size) for at, size in zip(beside, extents, strict=True))
            part = rows[(slice(None), *region)]
            clip = tuple(slice(0, extent) for extent in part.shape[1:])
            samples = self._samples((*beside[: self._axis], group, *beside[self._axis :]))[(slice(None), *clip)]
            if samples[0].nbytes < _FANCY_BELOW_BYTES:
                part[positions] = samples[within]
            else:
                copy_runs(samples, within, positions, part)

    def _samples(self, at: tuple[int, ...]) -> AnyArray:
        """The chunk at position `at` of the grid, its sample axis first."""
        number, layout = int(np.ravel_multi_index(at, self._grid)), self._layout
        offset = int(layout.offsets[number])
        chunk: AnyArray
        if offset < 0:
            chunk = np.broadcast_to(np.frombuffer(layout.fill, self._dtype).reshape(()), layout.chunk)
        elif self._in_one_piece or (not layout.filters and maps(self._row_bytes)):
            chunk = self._mapped(offset)
        else:
            key = (self._array.file.path, self._array.name, number)
            chunk = self._cache.get_or_make(key, self._decoded, number, offset)
        return np.moveaxis(chunk, self._axis, 0)

    def _mapped(self, offset: int) -> AnyArray:
        return np.ndarray(self._layout.chunk, self._dtype, self._file.mapped(), offset)

    def _decoded(self, number: int, offset: int) -> AnyArray:
        layout = self._layout
        stored = self._file.read(offset, self._chunk_bytes if layout.sizes is None else int(layout.sizes[number]))
        skipped = 0 if layout.skipped is None else int(layout.skipped[number])
        try:
            data = decode_chunk(stored, layout.filters, skipped, self._chunk_bytes)
        except ChunkError as error:
            raise SourceError(f"{self._array}: the chunk at byte {offset} of the file: {error}") from error
        return data.view(self._dtype).reshape(layout.chunk)

    def will_need(self, indices: IndexArray) -> bool:
        """Start reading these samples, or the chunks that hold them; whether all was in memory already."""
        if self._rows_lie_whole:
            offsets = self._offsets(indices)
            if offsets is not None:
                return self._file.will_need(offsets, self._row_bytes)
        elif self._in_one_piece:  # each sample is spread over the whole file
            return True
        groups, layout = np.unique(indices // self._per_chunk), self._layout
        offsets = layout.offsets.reshape(self._grid).take(groups, axis=self._axis).ravel()
        stored = offsets >= 0
        if layout.sizes is None:
            return self._file.will_need(offsets[stored], self._chunk_bytes)
        sizes = layout.sizes.reshape(self._grid).take(groups, axis=self._axis).ravel()
        return self._file.will_need(offsets[stored], sizes[stored].astype(np.int64))
