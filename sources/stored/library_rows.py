"""Samples that the HDF5 library reads, since their data have no shorter way."""

from __future__ import annotations

import numpy as np

from ...workers.api import AnyArray, IndexArray, RaggedRows, Rows
from ...workers.base import SampleTooLargeError
from ..files import ChunkCache, copy_runs, stretches
from .hdf5_library import h5py, open_dataset, require_filters
from .layout import StoredArray
from .rows import ChunkedRows, regions

_BLOCK_BYTES = 1 << 14


class LibraryRows(ChunkedRows):
    """Samples of one data set, read by h5py a block at a time: the samples of a chunk, or what is read as fast as one.

    Such a block, as wide as the array, is a chunk here. A call of h5py costs 15 µs and more, whether it reads one label
    or a thousand, and a stored chunk is decoded as a whole. Only arrays of varying length are read one by one.
    """

    def __init__(self, file: h5py.File, array: StoredArray, cache: ChunkCache) -> None:
        self._dataset = open_dataset(file, array.name)
        require_filters(self._dataset, str(array))
        axis = array.arrangement.sample_axis
        block = array.chunk_samples or max(1, _BLOCK_BYTES // array.sample_bytes)
        # A block that the cache cannot hold would be read again for each sample: then each sample by itself is better.
        block = block if block * array.sample_bytes <= cache.limit else 1
        super().__init__(array, (*array.shape[:axis], block, *array.shape[axis + 1 :]), cache)

    def read(self, indices: IndexArray, positions: IndexArray, rows: Rows) -> None:
        if isinstance(rows, RaggedRows):
            for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
                rows.put(position, self._dataset[index])
            return
        if self._per_chunk == 1:
            self._read_runs(indices, positions, rows)
            return
        try:
            super().read(indices, positions, rows)
        except Exception:
            # Another sample of the block may be the bad one: then those asked for are still good.
            self._read_runs(indices, positions, rows)

    def read_boxes(self, corners: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        axes = self._dataset.ndim  # elements that are arrays have further ones
        stops = self._stops(corners, rows.shape[1:])
        places = zip(regions(corners, stops), regions(0 * corners, stops - corners), positions, strict=True)
        for wanted, box, position in places:
            rows[position][box] = self._dataset[wanted[:axes]][(..., *wanted[axes:])]

    def _decoded(self, number: int) -> AnyArray:
        return self._read_run(number * self._per_chunk, self._per_chunk)

    def _read_runs(self, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        """In the order in which they are stored, each sample once, runs of neighbours in one call."""
        wanted, first, back = np.unique(indices, return_index=True, return_inverse=True)
        targets = positions[first]
        for start, stop in stretches(wanted, targets, 1):
            to = int(targets[start])
            run = self._read_run(int(wanted[start]), stop - start)
            rows[to : to + stop - start] = np.moveaxis(run, self._axis, 0)
        sources = targets[back]
        repeats = np.flatnonzero(sources != positions)
        copy_runs(rows, sources[repeats], positions[repeats], rows)

    def _read_run(self, start: int, count: int) -> AnyArray:
        run: AnyArray = self._dataset[(*(slice(None),) * self._axis, slice(start, start + count))]
        return _fixed(run, self._dtype) if run.dtype.kind == "O" else run


def _fixed(strings: AnyArray, dtype: np.dtype[np.generic]) -> AnyArray:
    longest = longest_element(strings)
    if longest > dtype.itemsize:
        raise SampleTooLargeError(
            f"a string of {longest} bytes does not fit the declared maximum of {dtype.itemsize}; raise 'max_length'"
        )
    return strings.astype(dtype)


def longest_element(elements: AnyArray) -> int:
    """The length of the longest of `elements`, strings or arrays of varying length."""
    return max(map(len, elements.ravel().tolist()), default=0)
