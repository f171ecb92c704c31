"""Finding out, once and in the trainer, how data sets are stored, as far as they can be read without the HDF5 library.

Raises SourceError if a file or a data set is damaged, or does not fit the others.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...workers.api import IndexArray, Outlier
from ...workers.base import SourceError, is_installed, moving
from ..files import FileStamp, Locking, RemoteStamp, Stamp
from ..files.roles import in_order
from ..stored import CF_ATTRIBUTES, Attributes, Chunked, ChunkFilter, Layout, StoredArray, ThroughLibrary, from_names
from ..stored.external import ExternalFiles
from ..stored.hdf5_library import errors_named, find_dataset, h5py, open_file, require_filters

_SCAN_ROWS = 4096
_ZSTD = 32015
_MOST_TOPS = 16
"""With more arrays it is rather a file in which each is a sample."""

_log = logging.getLogger("blobfeed")


def examine_file(
    stamp: Stamp,
    tops: Sequence[str],
    dims: Mapping[str, Sequence[str]],
    *,
    locking: Locking,
    max_length: int | None,
    allow_external: bool,
    of_one_length: bool = True,
) -> dict[str, StoredArray]:
    """The data sets `tops` of the file, those in `dims` with their dimensions as named there.

    `max_length`: the longest string (bytes) or array of varying length that there is; None: look through all of them.
    `of_one_length`: each has an entry for each sample.
    """
    path = stamp.path
    arrays, external = {}, ExternalFiles(stamp, locking, allowed=allow_external)
    with open_file(stamp, locking) as file:
        for top in tops:
            with errors_named(f"source hdf5: {path!r}: data set {top!r}"):
                dataset = find_dataset(file, top)
                others = external.stamps(dataset, f"source hdf5: {path}:{top}")
                arrays[top] = replace(_examine(dataset, stamp, max_length), others=others)
    for top, names in dims.items():
        arrays[top] = replace(arrays[top], arrangement=from_names(names, len(arrays[top].shape), str(arrays[top])))
    counts = {top: array.samples for top, array in arrays.items()}
    if len(set(counts.values())) > 1 and of_one_length:
        raise SourceError(
            f"source hdf5: {path!r}: the data sets differ in length: "
            f"{', '.join(f'{top} has {count}' for top, count in counts.items())}; each needs one entry per sample: "
            "name those of one length in 'tops'"
        )
    return arrays


_said: set[tuple[str, ...]] = set()
"""The default tops that the log has named: of many files alike, as in a `concat`, it names them once."""


def default_tops(stamp: Stamp, locking: Locking) -> tuple[str, ...]:
    """Return "data" and "label"; for a file without "data" all arrays, in the order that their names decide.

    The log names them then.
    Raises SourceError where their lengths differ, or where there are so many that each is rather a sample.
    """
    where = f"source hdf5: {stamp.path!r} has no data set 'data'"
    with open_file(stamp, locking) as file, errors_named(f"source hdf5: {stamp.path!r}"):
        if file.get("data", getlink=True) is not None:
            return "data", "label"
        shapes: dict[str, tuple[int, ...]] = {}
        others: list[str] = []

        def visit(name: str, entry: object) -> bool | None:
            moving(f"looking for data sets in {stamp.path}")
            if isinstance(entry, h5py.Dataset) and entry.shape and holds_values(entry):
                shapes[name] = entry.shape
            elif isinstance(entry, h5py.Dataset):
                others.append(name)
            return True if len(shapes) > _MOST_TOPS else None

        file.visititems(visit)
    held = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if len(shapes) > _MOST_TOPS:
        raise SourceError(
            f"{where}, and more than {_MOST_TOPS} others: name the ones to read in 'tops'; if each is a sample, use "
            "the source hdf5_samples (`blobfeed inspect FILE` says how)"
        )
    if len({shape[0] for shape in shapes.values()}) != 1:
        raise SourceError(
            f"{where}, and its arrays are not of one length; it holds {held or 'no arrays of numbers or strings'}; "
            "name the ones to read in 'tops'"
        )
    tops = in_order(sorted(shapes, key=lambda name: (-math.prod(shapes[name][1:]), name)))
    without = f"; without those that have no number or string for each sample: {', '.join(others)}" if others else ""
    if tops not in _said:
        _said.add(tops)
        _log.warning("%s, so its tops are all its arrays: tops=[%s]%s", where, ", ".join(tops), without)
    return tops


def _examine(dataset: h5py.Dataset, opened: Stamp, max_length: int | None) -> StoredArray:
    # By an external link the data set may lie in another file than the one that was opened.
    stamp = opened if isinstance(opened, RemoteStamp) else FileStamp.of(dataset.file.filename)
    name = dataset.name.lstrip("/")
    where = f"source hdf5: {stamp.path}:{name}"
    if not dataset.shape:
        raise SourceError(f"{where} has no axis that counts samples (its shape is {dataset.shape})")
    if not holds_values(dataset):
        if (element := h5py.check_vlen_dtype(dataset.dtype)) is not None and not element.isnative:
            raise SourceError(
                f"{where} holds arrays of varying length of the type {element.str}, which "
                "h5py reads wrong, since it is not in this machine's byte order: store them in that order"
            )
        raise SourceError(
            f"{where} holds {dataset.dtype}, which is no array of numbers or strings; "
            "store each field as a data set of its own, write a Source subclass, or leave it out: name the others as "
            "tops (--tops in commands)"
        )
    if dataset.dtype.kind == "O":
        layout = ThroughLibrary(dataset.chunks)
        largest = None if max_length or not len(dataset) else Outlier.of(_longest(dataset))
        longest = max_length or (largest.items if largest else 0)
        if h5py.check_string_dtype(dataset.dtype) is not None:
            return StoredArray(stamp, name, dataset.shape, np.dtype(f"S{max(longest, 1)}"), layout, largest=largest)
        element = h5py.check_vlen_dtype(dataset.dtype)
        return StoredArray(stamp, name, dataset.shape, np.dtype(element.str), layout, longest, largest=largest)
    base, inner = dataset.dtype.subdtype or (dataset.dtype, ())
    shape, dtype = dataset.shape + inner, np.dtype(base.str)
    stored, dims = find_layout(dataset, stamp, name), () if inner else _dims(dataset)
    return StoredArray(stamp, name, shape, dtype, stored, attributes=_attributes(dataset), dims=dims)


def _dims(dataset: h5py.Dataset) -> tuple[str, ...]:
    """The names of the axes by their labels or dimension scales, as netCDF-4 writes them; () if some have none."""
    if dataset.is_scale:
        return (dataset.name.rpartition("/")[2],)
    if not {"DIMENSION_LIST", "DIMENSION_LABELS"} & dataset.attrs.keys():
        return ()
    names = [axis.label or (axis[0].name.rpartition("/")[2] if len(axis) else "") for axis in dataset.dims]
    return tuple(names) if all(names) and len(set(names)) == len(names) else ()


def _attributes(dataset: h5py.Dataset) -> Attributes:
    found = {name: np.ravel(dataset.attrs[name]).tolist() for name in CF_ATTRIBUTES if name in dataset.attrs}
    return {name: [each.decode() if isinstance(each, bytes) else each for each in found[name]] for name in found}


def holds_values(dataset: h5py.Dataset) -> bool:
    """Return true if its elements are numbers, strings, or arrays of numbers that h5py reads."""
    try:
        dtype = dataset.dtype
    except TypeError:  # NumPy has no such type
        return False
    if dtype.kind != "O":
        return (dtype.subdtype or (dtype,))[0].kind in "biufcS"
    if h5py.check_string_dtype(dtype) is not None:
        return True
    element = h5py.check_vlen_dtype(dtype)
    # Of those in the other byte order h5py (up to 3.16) gives the bytes as they are, as if they were in this one.
    return element is not None and element.kind in "biuf" and element.isnative and dataset.ndim == 1


def _longest(dataset: h5py.Dataset) -> IndexArray:
    """The length of the longest element of each sample."""
    found = np.empty(dataset.shape[0], np.int64)
    for start in range(0, dataset.shape[0], _SCAN_ROWS):
        moving(f"looking for the longest element of {dataset.file.filename}:{dataset.name}")
        samples = dataset[start : start + _SCAN_ROWS]
        lengths = np.array([*map(len, samples.ravel().tolist())], np.int64).reshape(len(samples), -1)
        found[start : start + len(samples)] = lengths.max(axis=1, initial=0)
    return found


def find_layout(dataset: h5py.Dataset, stamp: Stamp, name: str) -> Layout:
    """Return the layout of `dataset`; raises SourceError if it reaches beyond the end of the file."""
    _, inner = dataset.dtype.subdtype or (None, ())
    chunk = dataset.chunks and dataset.chunks + inner
    if not _is_direct(dataset):
        return ThroughLibrary(chunk)
    if not chunk:
        offset = dataset.id.get_offset()
        if offset is None:  # it was never written: all elements have the fill value
            return ThroughLibrary()
        _require_inside(stamp, name, offset + dataset.id.get_storage_size())
        return Chunked(dataset.shape + inner, np.array([offset]))
    plist = dataset.id.get_create_plist()
    applied = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    numbers = [found[0] for found in applied]
    filters = [_undone_directly(number, values) for number, _, values, _ in applied]
    if None not in filters and not inner:
        return _chunked(dataset, tuple(each for each in filters if each), stamp, name)
    require_filters(dataset, f"source hdf5: {stamp.path}:{name}")
    return ThroughLibrary(chunk, plugin=any(number > h5py.h5z.FILTER_RESERVED for number in numbers))


def _undone_directly(number: int, values: Sequence[int]) -> ChunkFilter | None:
    """Return the filter as it is undone outside the HDF5 library; None if only the library can undo it.

    Without numcodecs that is every filter but gzip.
    """
    if number == h5py.h5z.FILTER_DEFLATE:
        return ChunkFilter("deflate")
    codecs: dict[int, dict[str, object]] = {
        h5py.h5z.FILTER_SHUFFLE: {"id": "shuffle", "elementsize": int(values[0]) if values else 0},
        h5py.h5z.FILTER_FLETCHER32: {"id": "fletcher32"},
        _ZSTD: {"id": "zstd"},  # hdf5plugin 7.1 gives what lay in memory for a damaged chunk, and no error
    }
    if number not in codecs or not is_installed("numcodecs"):
        return None
    return ChunkFilter("numcodecs", codec=json.dumps(codecs[number]))


def _is_direct(dataset: h5py.Dataset) -> bool:
    """Return true if the elements lie in this file (not compact, virtual or external), in a type that NumPy has."""
    return (
        dataset.id.get_create_plist().get_layout() in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED)
        and not dataset.external
        # Whether offsets count from the file's start or from the end of the user block has changed between versions.
        and not dataset.file.userblock_size
        # NumPy has no type with fewer significant bits or another padding.
        and dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype, logical=True)
    )


def _require_inside(stamp: Stamp, name: str, end: int) -> None:
    if end > stamp.size:
        raise SourceError(
            f"source hdf5: {stamp.path!r} is cut short: {name} reaches to byte {end}, the file has {stamp.size}; "
            "copy it again"
        )


def _chunked(
    dataset: h5py.Dataset, filters: tuple[ChunkFilter, ...], stamp: Stamp, name: str
) -> Chunked | ThroughLibrary:
    if _may_be_swizzled(dataset):
        return ThroughLibrary(dataset.chunks)
    grid = tuple(-(-extent // size) for extent, size in zip(dataset.shape, dataset.chunks, strict=True))
    offsets, sizes, skipped = _chunk_index(dataset, grid)
    if offsets.size:
        _require_inside(stamp, name, int((offsets + sizes).max()))
    if filters and _has_unfiltered_edges(dataset, sizes.reshape(grid)):
        return ThroughLibrary(dataset.chunks)
    fill = np.asarray(dataset.fillvalue, dataset.dtype).tobytes()
    kept_sizes = sizes.astype(np.uint32) if filters else None
    return Chunked(dataset.chunks, offsets, fill, filters, kept_sizes, skipped if skipped.any() else None)


def _may_be_swizzled(dataset: h5py.Dataset) -> bool:
    """Return true if the library may give wrong places for the chunks, as with one unlimited axis behind others.

    The index of such a data set, an extensible array, counts that axis first; what lists the chunks counts it in its
    turn (HDF5 1.14.6). Files in the format before HDF5 1.8 have no such index.
    """
    most = dataset.maxshape
    is_behind = most.count(None) == 1 and most[0] is not None
    has_others = any(extent is not None and extent > size for extent, size in zip(most, dataset.chunks, strict=True))
    return is_behind and has_others and h5py.h5o.get_info(dataset.id).hdr.version > 1


def _chunk_index(
    dataset: h5py.Dataset, grid: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
    """For each position in the grid, in C order: the chunk's offset, -1 if there is none, its size, its filter mask.

    Raises ValueError for a damaged index, which would give other bytes of the file as samples: the format before HDF5
    1.10 has no checksum of it, and the library believes it.
    """
    found: list[h5py.h5d.StoreInfo] = []
    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(found.append)
    else:  # HDF5 before 1.12.3, where asking for the n-th chunk takes time O(n)
        found = [dataset.id.get_chunk_info(number) for number in range(dataset.id.get_num_chunks())]
    corners = np.array([chunk.chunk_offset for chunk in found], np.int64).reshape(len(found), len(grid))
    at = np.ravel_multi_index(tuple((corners // dataset.chunks).T), grid)
    number = math.prod(grid)
    offsets, sizes, masks = np.full(number, -1, np.int64), np.zeros(number, np.int64), np.zeros(number, np.uint32)
    offsets[at] = [chunk.byte_offset for chunk in found]
    sizes[at] = [chunk.size for chunk in found]
    masks[at] = [chunk.filter_mask for chunk in found]
    listed = at[np.argsort(offsets[at])]
    share = (offsets[listed][1:] < (offsets + sizes)[listed][:-1]).any()
    whole = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if share or (not dataset.id.get_create_plist().get_nfilters() and (sizes[at] != whole).any()):
        raise ValueError("the index of its chunks is damaged: two share bytes or a place, or the size of one is wrong")
    return offsets, sizes, masks


def _has_unfiltered_edges(dataset: h5py.Dataset, sizes: NDArray[np.int64]) -> bool:
    """Return true if a chunk that extends past the array has the size of its elements; `sizes` in the grid's shape.

    HDF5 has an option to leave such chunks unfiltered, and h5py does not say whether it was.
    """
    whole = math.prod(dataset.chunks) * dataset.dtype.itemsize
    cut = [axis for axis, extent in enumerate(dataset.shape) if extent % dataset.chunks[axis]]
    return any((np.take(sizes, -1, axis=axis) == whole).any() for axis in cut)
