"""Finding out, once and in the trainer, how data sets are stored, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np

from ...base.errors import SourceError
from ...base.specs import AnyArray
from ..stored.file import FileStamp
from ..stored.layout import StoredArray, ThroughLibrary
from ..stored.library_rows import find_dataset, longest_element, open_file
from .find_layout import find_layout
from .options import HDF5Options

_SCAN_ROWS = 4096


def examine_file(path: str, tops: Sequence[str], options: HDF5Options) -> dict[str, StoredArray]:
    """The data sets `tops` of the file at `path`; raises SourceError where they cannot be read."""
    with open_file(path, options.locking) as file:
        return {top: examine(find_dataset(file, top), options.max_length) for top in tops}


def examine(dataset: h5py.Dataset, max_length: int | None) -> StoredArray:
    """How `dataset` is stored; raises SourceError where its type has no array to deliver.

    `max_length`: the longest string (bytes) or array of varying length that there is; None: look through all of them.
    """
    # By an external link the data set may lie in another file than the one that was opened.
    stamp, name = FileStamp.of(dataset.file.filename), dataset.name.lstrip("/")
    if not dataset.shape:
        raise SourceError(
            f"source hdf5: {stamp.path}:{name} has no axis that counts samples (its shape is {dataset.shape})"
        )
    if dataset.dtype.kind == "O":
        return _examine_varying(dataset, stamp, name, max_length)
    base, inner = dataset.dtype.subdtype or (dataset.dtype, ())
    if base.kind not in "biufcS":
        raise _unsupported(dataset, stamp, name)
    layout, others = find_layout(dataset, stamp, name), _other_files(dataset, stamp, name)
    return StoredArray(stamp, name, dataset.shape + inner, np.dtype(base.str), layout, others=others)


def _other_files(dataset: h5py.Dataset, stamp: FileStamp, name: str) -> tuple[FileStamp, ...]:
    """The other files that a virtual or externally stored data set is made of; raises SourceError where one is missing.

    The library itself would fill the gap that a missing part of a virtual data set leaves with the fill value.
    """
    names = [entry[0] for entry in dataset.external or ()]
    names += [source.file_name for source in dataset.virtual_sources()] if dataset.is_virtual else []
    # "." is the file itself; a name with "%" is a pattern that the library fills with numbers.
    paths = [Path(stamp.path).parent / other for other in dict.fromkeys(names) if other != "." and "%" not in other]
    for path in paths:
        if not path.is_file():
            raise SourceError(f"source hdf5: {stamp.path}:{name} is partly stored in {str(path)!r}, which is not there")
    return tuple(FileStamp.of(str(path)) for path in paths)


def _examine_varying(dataset: h5py.Dataset, stamp: FileStamp, name: str, max_length: int | None) -> StoredArray:
    layout = ThroughLibrary("its elements vary in size", dataset.chunks)
    element = h5py.check_vlen_dtype(dataset.dtype)
    if h5py.check_string_dtype(dataset.dtype) is not None:
        longest = max(max_length or _longest(dataset), 1)
        return StoredArray(stamp, name, dataset.shape, np.dtype(f"S{longest}"), layout)
    if element is None or element.kind not in "biuf" or dataset.ndim != 1:
        raise _unsupported(dataset, stamp, name)
    return StoredArray(stamp, name, dataset.shape, np.dtype(element.str), layout, max_length or _longest(dataset))


def _unsupported(dataset: h5py.Dataset, stamp: FileStamp, name: str) -> SourceError:
    return SourceError(
        f"source hdf5: {stamp.path}:{name} holds {dataset.dtype}, which is no array of numbers or strings; "
        "store each field as a data set of its own, or write a Source subclass"
    )


def _longest(dataset: h5py.Dataset) -> int:
    return max(map(longest_element, _blocks(dataset)), default=0)


def _blocks(dataset: h5py.Dataset) -> Iterator[AnyArray]:
    for start in range(0, dataset.shape[0], _SCAN_ROWS):
        yield dataset[start : start + _SCAN_ROWS]


def require_same_length(arrays: Mapping[str, StoredArray]) -> None:
    """Raises SourceError where the data sets of one file differ in their number of samples."""
    counts = {top: array.samples for top, array in arrays.items()}
    if len(set(counts.values())) > 1:
        path = next(iter(arrays.values())).file.path
        raise SourceError(
            f"source hdf5: {path!r}: the data sets differ in length: "
            f"{', '.join(f'{top} has {count}' for top, count in counts.items())}; each needs one entry per sample"
        )
