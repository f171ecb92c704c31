"""How the HDF5 library has laid out a data set in its file, as far as its bytes can be read without it."""

from __future__ import annotations

import math

import h5py  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from ...base.errors import SourceError
from ..stored.file import FileStamp
from ..stored.layout import Chunked, ChunkFilter, Contiguous, Layout, ThroughLibrary
from ..stored.library_rows import has_filter

_DIRECT_FILTERS = {
    h5py.h5z.FILTER_DEFLATE: "deflate",
    h5py.h5z.FILTER_SHUFFLE: "shuffle",
    h5py.h5z.FILTER_FLETCHER32: "fletcher32",
}


def find_layout(dataset: h5py.Dataset, stamp: FileStamp, name: str) -> Layout:
    """Where the elements of `dataset` lie; raises SourceError where that is beyond the end of the file."""
    _, inner = dataset.dtype.subdtype or (None, ())
    chunk = dataset.chunks and dataset.chunks + inner
    reason = _why_not_direct(dataset)
    if reason:
        return ThroughLibrary(reason, chunk)
    if not chunk:
        return _contiguous(dataset, stamp, name)
    plist = dataset.id.get_create_plist()
    applied = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    numbers = [found[0] for found in applied]
    if set(numbers) <= set(_DIRECT_FILTERS) and not inner:
        return _chunked(dataset, tuple(_direct_filter(found[0], found[2]) for found in applied), stamp, name)
    _require_filters(numbers, stamp, name)
    plugin = any(number > h5py.h5z.FILTER_RESERVED for number in numbers)
    return ThroughLibrary(f"its filters {numbers} are undone by the library", chunk, plugin)


def _why_not_direct(dataset: h5py.Dataset) -> str:
    plist = dataset.id.get_create_plist()
    if plist.get_layout() not in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED):
        return "it is neither contiguous nor chunked (compact or virtual)"
    if dataset.external:
        return "its bytes are in other files (external storage)"
    if dataset.file.userblock_size:
        # Whether offsets count from the file's start or from the end of the user block has changed between versions.
        return "the file has a user block"
    if dataset.id.get_type() != h5py.h5t.py_create(dataset.dtype, logical=True):
        return "its type has no equal in NumPy (fewer significant bits, another padding)"
    return ""


def _contiguous(dataset: h5py.Dataset, stamp: FileStamp, name: str) -> Layout:
    offset = dataset.id.get_offset()
    if offset is None:
        return ThroughLibrary("it was never written: all elements have the fill value")
    _require_inside(stamp, name, offset + dataset.id.get_storage_size())
    return Contiguous(offset)


def _require_filters(numbers: list[int], stamp: FileStamp, name: str) -> None:
    unknown = [number for number in numbers if not has_filter(number)]
    if unknown:
        raise SourceError(
            f"source hdf5: {stamp.path}:{name} is stored with the HDF5 filter {unknown[0]}, which is not to be had "
            "here; `pip install hdf5plugin` brings the common ones"
        )


def _require_inside(stamp: FileStamp, name: str, end: int) -> None:
    if end > stamp.size:
        raise SourceError(
            f"source hdf5: {stamp.path!r} is cut short: {name} reaches to byte {end}, the file has {stamp.size}; "
            "copy it again"
        )


def _direct_filter(number: int, values: tuple[int, ...]) -> ChunkFilter:
    kind = _DIRECT_FILTERS[number]
    if kind == "shuffle":
        return ChunkFilter("shuffle", values[0])
    return ChunkFilter("deflate" if kind == "deflate" else "fletcher32")


def _chunked(
    dataset: h5py.Dataset, filters: tuple[ChunkFilter, ...], stamp: FileStamp, name: str
) -> Chunked | ThroughLibrary:
    grid = tuple(-(-extent // size) for extent, size in zip(dataset.shape, dataset.chunks, strict=True))
    offsets, sizes, skipped = _chunk_index(dataset, grid)
    if offsets.size:
        _require_inside(stamp, name, int((offsets + sizes).max()))
    if filters and _has_unfiltered_edges(dataset, sizes.reshape(grid)):
        return ThroughLibrary("chunks at the edge may be stored unfiltered", dataset.chunks)
    fill = np.asarray(dataset.fillvalue, dataset.dtype).tobytes()
    kept_sizes = sizes.astype(np.uint32) if filters else None
    return Chunked(dataset.chunks, offsets, fill, filters, kept_sizes, skipped if skipped.any() else None)


def _chunk_index(
    dataset: h5py.Dataset, grid: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
    """For each place of the grid, in C order: the chunk's offset, -1 where there is none, its size, its filter mask."""
    found = _stored_chunks(dataset)
    places = np.array([chunk.chunk_offset for chunk in found], np.int64).reshape(len(found), len(grid))
    at = np.ravel_multi_index(tuple((places // dataset.chunks).T), grid)
    number = math.prod(grid)
    offsets, sizes, masks = np.full(number, -1, np.int64), np.zeros(number, np.int64), np.zeros(number, np.uint32)
    offsets[at] = [chunk.byte_offset for chunk in found]
    sizes[at] = [chunk.size for chunk in found]
    masks[at] = [chunk.filter_mask for chunk in found]
    return offsets, sizes, masks


def _stored_chunks(dataset: h5py.Dataset) -> list[h5py.h5d.StoreInfo]:
    if not hasattr(dataset.id, "chunk_iter"):  # HDF5 before 1.12.3, where asking for the n-th chunk takes time O(n)
        return [dataset.id.get_chunk_info(number) for number in range(dataset.id.get_num_chunks())]
    found: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(found.append)
    return found


def _has_unfiltered_edges(dataset: h5py.Dataset, sizes: NDArray[np.int64]) -> bool:
    """Whether a chunk that sticks out of the array has just the size of its elements, `sizes` in the grid's shape.

    HDF5 can be told to leave such chunks unfiltered, and h5py cannot tell whether it was.
    """
    whole = math.prod(dataset.chunks) * dataset.dtype.itemsize
    cut = [axis for axis, extent in enumerate(dataset.shape) if extent % dataset.chunks[axis]]
    return any((np.take(sizes, -1, axis=axis) == whole).any() for axis in cut)
