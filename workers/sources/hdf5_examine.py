"""Finding out, once and in the trainer, how data sets are stored, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np

from ..errors import SourceError
from ..specs import AnyArray
from .hdf5_dims import Arrangement, without
from .hdf5_layout import Part, StoredArray, ThroughLibrary
from .hdf5_library import find_dataset, longest_element, open_file
from .hdf5_options import HDF5Options

_SCAN_ROWS = 4096


def examine_file(path: str, tops: Sequence[str], options: HDF5Options) -> Part:
    """What the file at `path` holds of `tops`; raises SourceError where that cannot be read."""
    with open_file(path, options.locking, options.chunk_cache_bytes) as file:
        status = Path(path).stat()
        arrays = {top: examine(find_dataset(file, top), top, options.max_length) for top in tops}
    return Part(path, status.st_size, status.st_mtime_ns, arrays)


def examine(dataset: h5py.Dataset, name: str, max_length: int | None) -> StoredArray:
    """How `dataset` is stored; raises SourceError where its type has no array to deliver.

    `max_length`: the longest string (bytes) or array of varying length that there is; None: look through all of them.
    """
    path = dataset.file.filename
    if not dataset.shape:
        raise SourceError(f"source hdf5: {path}:{name} has no axis that counts samples (its shape is {dataset.shape})")
    if dataset.dtype.kind == "O":
        return _examine_varying(dataset, path, name, max_length)
    base, inner = dataset.dtype.subdtype or (dataset.dtype, ())
    if base.kind not in "biufcS":
        raise _unsupported(dataset, path, name)
    return StoredArray(path, name, dataset.shape + inner, np.dtype(base.str), ThroughLibrary("not looked at"))


def _examine_varying(dataset: h5py.Dataset, path: str, name: str, max_length: int | None) -> StoredArray:
    if h5py.check_string_dtype(dataset.dtype) is not None:
        longest = max(max_length or _longest(dataset), 1)
        return StoredArray(path, name, dataset.shape, np.dtype(f"S{longest}"), ThroughLibrary("strings vary in size"))
    element = h5py.check_vlen_dtype(dataset.dtype)
    if element is None or element.kind not in "biuf" or dataset.ndim != 1:
        raise _unsupported(dataset, path, name)
    longest = max_length or _longest(dataset)
    return StoredArray(
        path, name, dataset.shape, np.dtype(element.str), ThroughLibrary("elements vary in size"), longest
    )


def _unsupported(dataset: h5py.Dataset, path: str, name: str) -> SourceError:
    return SourceError(
        f"source hdf5: {path}:{name} holds {dataset.dtype}, which is no array of numbers or strings; "
        "store each field as a data set of its own, or write a Source subclass"
    )


def _longest(dataset: h5py.Dataset) -> int:
    return max(map(longest_element, _blocks(dataset)), default=0)


def _blocks(dataset: h5py.Dataset) -> Iterator[AnyArray]:
    for start in range(0, dataset.shape[0], _SCAN_ROWS):
        yield dataset[start : start + _SCAN_ROWS]


def count_samples(part: Part, arrangements: Mapping[str, Arrangement]) -> int:
    """How many samples `part` has; raises SourceError where its tops do not agree on it."""
    counts = {top: array.shape[arrangements[top].sample_axis] for top, array in part.arrays.items()}
    if len(set(counts.values())) > 1:
        raise SourceError(
            f"source hdf5: {part.path!r}: the data sets differ in length: "
            f"{', '.join(f'{top} has {count}' for top, count in counts.items())}; each needs one entry per sample"
        )
    return next(iter(counts.values()))


def require_alike(first: Part, other: Part, arrangements: Mapping[str, Arrangement]) -> None:
    """Raises SourceError where samples of two files differ in shape or type."""
    for top, array in first.arrays.items():
        theirs, axis = other.arrays[top], arrangements[top].sample_axis
        if _form(array, axis) != _form(theirs, axis):
            raise SourceError(
                f"source hdf5: samples of {top!r} differ between files: {array} has {_say(array, axis)}, "
                f"{theirs} has {_say(theirs, axis)}; all files need the same shape per sample and the same type"
            )


def _form(array: StoredArray, axis: int) -> tuple[object, ...]:
    dtype = "string" if array.dtype.kind == "S" else array.dtype.newbyteorder("=")
    rank_and_shape = (array.longest is None, *without(array.shape, axis)) if len(array.shape) > axis else array.shape
    return dtype, rank_and_shape


def _say(array: StoredArray, axis: int) -> str:
    return f"{without(array.shape, axis)} {array.dtype}"
