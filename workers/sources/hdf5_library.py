"""All that is done through the HDF5 library: opening and examining files, and reading what has no shorter way."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from itertools import pairwise

import h5py  # type: ignore[import-untyped]
import numpy as np

from ..errors import SampleTooLargeError, SourceError
from ..specs import AnyArray, IndexArray, RaggedRows, Rows
from .hdf5_layout import StoredArray
from .hdf5_options import Locking

with contextlib.suppress(ImportError):
    import hdf5plugin  # noqa: F401 - importing it registers lz4, zstd, blosc and more with the HDF5 library


def open_file(path: str, locking: Locking, chunk_cache_bytes: int) -> h5py.File:
    """The HDF5 file at `path`, for reading; raises SourceError that names it."""
    try:
        return h5py.File(path, "r", locking=locking, rdcc_nbytes=chunk_cache_bytes)
    except FileNotFoundError:
        raise SourceError(f"source hdf5: there is no file {path!r}") from None
    except OSError as error:
        advice = "set locking: false" if "lock" in str(error) else "check that it was written and copied to its end"
        raise SourceError(f"source hdf5: {path!r} cannot be opened as HDF5: {error}; {advice}") from error


def find_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """The data set `name`; raises SourceError that lists what the file holds."""
    try:
        entry = file[name]
    except KeyError as error:
        held = dict(_datasets(file))
        near = difflib.get_close_matches(name, held, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        dangling = f"; the library says: {error.args[0]}" if name in file else ""
        raise SourceError(
            f"source hdf5: {file.filename!r} has no data set {name!r}{hint}; it holds "
            f"{', '.join(map(str, held.values())) or 'no data sets'}; name the ones to read in 'tops'{dangling}"
        ) from None
    if not isinstance(entry, h5py.Dataset):
        raise SourceError(f"source hdf5: {file.filename!r}:{name} is a {type(entry).__name__.lower()}, not a data set")
    return entry


def _datasets(file: h5py.File, most: int = 20) -> Iterator[tuple[str, str]]:
    found: dict[str, str] = {}

    def visit(name: str, entry: object) -> bool | None:
        if isinstance(entry, h5py.Dataset):
            found[name] = f"{name} {entry.shape} {entry.dtype}" if len(found) < most else "…"
        return True if len(found) > most else None

    file.visititems(visit)
    yield from found.items()


def open_rows(file: h5py.File, array: StoredArray, sample_axis: int) -> LibraryRows | LibraryRaggedRows:
    """The reader of `array` in the open `file`."""
    dataset = find_dataset(file, array.name)
    return LibraryRows(dataset, sample_axis) if array.longest is None else LibraryRaggedRows(dataset)


class LibraryRows:
    """Rows of one data set, read by h5py in the order in which they are stored, each one once."""

    def __init__(self, dataset: h5py.Dataset, sample_axis: int) -> None:
        self._dataset = dataset
        self._axis = sample_axis

    def read(self, indices: IndexArray, positions: IndexArray, rows: Rows) -> None:
        """Put sample indices[i] into rows[positions[i]]; the sample's axes are in their stored order."""
        assert not isinstance(rows, RaggedRows)
        wanted, first, back = np.unique(indices, return_index=True, return_inverse=True)
        targets = positions[first]
        for start, stop in runs(wanted, targets):
            to = int(targets[start])
            rows[to : to + stop - start] = self._read_run(int(wanted[start]), stop - start, rows.dtype)
        for to, source in zip(positions.tolist(), targets[back].tolist(), strict=True):
            if to != source:
                rows[to] = rows[source]

    def _read_run(self, start: int, count: int, dtype: np.dtype[np.generic]) -> AnyArray:
        selection = (*(slice(None),) * self._axis, slice(start, start + count))
        run: AnyArray = self._dataset[selection]
        if run.dtype.kind == "O":
            run = _fixed(run, dtype)
        return np.moveaxis(run, self._axis, 0)


def longest_element(elements: AnyArray) -> int:
    """The length of the longest of `elements`, strings or arrays of varying length."""
    return max(map(len, elements.ravel().tolist()), default=0)


def _fixed(strings: AnyArray, dtype: np.dtype[np.generic]) -> AnyArray:
    longest = longest_element(strings)
    if longest > dtype.itemsize:
        raise SampleTooLargeError(
            f"a string of {longest} bytes does not fit the declared maximum of {dtype.itemsize}; raise 'max_length'"
        )
    return strings.astype(dtype)


class LibraryRaggedRows:
    """Samples of one data set whose elements are arrays of varying length."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset

    def read(self, indices: IndexArray, positions: IndexArray, rows: Rows) -> None:
        """Put sample indices[i] into rows[positions[i]]."""
        assert isinstance(rows, RaggedRows)
        for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
            rows.put(position, self._dataset[index])


def runs(indices: IndexArray, positions: IndexArray) -> Iterator[tuple[int, int]]:
    """The stretches [start, stop) over which both `indices` and `positions` go up by one."""
    breaks = np.flatnonzero((np.diff(indices) != 1) | (np.diff(positions) != 1)) + 1
    edges = [0, *breaks.tolist(), len(indices)] if len(indices) else [0]
    yield from pairwise(edges)
