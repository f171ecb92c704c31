"""The HDF5 library: opening files, finding data sets, reading data that have no shorter way."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from ...base.checks import nearest
from ...base.deadline import moving
from ...base.errors import BlobfeedError, SampleTooLargeError, SourceError
from ...base.specs import AnyArray, IndexArray, RaggedRows, Rows
from ..files.file import Locking, copy_runs, stretches
from ..files.lru import ChunkCache
from ..files.remote import RangeStream, RemoteStamp, Stamp
from .hdf5_library import h5py
from .layout import StoredArray, ThroughLibrary
from .rows import ChunkedRows

_CACHE_SLOTS = 521
_BLOCK_BYTES = 1 << 14
_NAMES_IN_A_MESSAGE = 20


@contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Turns errors of the HDF5 library and h5py in this block into a SourceError begun by `what`.

    Damaged files make them raise almost anything: OSError, RuntimeError, KeyError, even TokenError and MemoryError.
    """
    try:
        yield
    except BlobfeedError:
        raise
    except Exception as error:
        said = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise SourceError(
            f"{what} cannot be read: {said or type(error).__name__}; check that it was written and copied to its end"
        ) from error


def open_file(stamp: Stamp, locking: Locking) -> h5py.File:
    """The HDF5 file, for reading; raises SourceError that names it."""
    path = stamp.path
    moving(f"opening {path}")
    try:
        if isinstance(stamp, RemoteStamp):
            return h5py.File(RangeStream(stamp), "r")
        return h5py.File(path, "r", locking=locking)
    except BlobfeedError:
        raise
    except FileNotFoundError:
        raise SourceError(f"source hdf5: there is no file {path!r}") from None
    except Exception as error:
        advice = (
            "set locking: false" if "to lock file" in str(error) else "check that it was written and copied to its end"
        )
        text = f"source hdf5: {path!r} cannot be opened as HDF5: {error}; {advice}"
        raise SourceError(text) from error.with_traceback(None)  # h5py's own lines explain nothing


def find_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Return the data set `name`; raises SourceError that lists what the file holds.

    An external link may lead to a named pipe, in which the library waits: the deadline of setup breaks that off.
    """
    moving(f"opening {file.filename}:{name}")
    try:
        entry = file[_encoded(name)]
    except BlobfeedError:
        raise
    except Exception as error:
        raise _missing(file, name, error) from error.with_traceback(None)
    if not isinstance(entry, h5py.Dataset):
        raise SourceError(f"source hdf5: {file.filename!r}:{name} is a {type(entry).__name__.lower()}, not a data set")
    if entry.external:
        del entry  # else it stays open with another prefix
        return _opened(file, name, h5py.h5p.create(h5py.h5p.DATASET_ACCESS))
    return entry


def _encoded(name: str) -> bytes:
    """Return the name's bytes: one that is no UTF-8 comes with surrogates, which h5py does not take."""
    return name.encode(errors="surrogateescape")


def _missing(file: h5py.File, name: str, error: Exception) -> SourceError:
    held: dict[str, str] = {}

    def visit(name: str, entry: object) -> bool | None:
        if isinstance(entry, h5py.Dataset):
            held[name] = f"{name} {entry.shape} {entry.dtype}" if len(held) < _NAMES_IN_A_MESSAGE else "…"
        return True if len(held) > _NAMES_IN_A_MESSAGE else None

    with errors_named(
        f"source hdf5: {file.filename!r}: data set {name!r} cannot be opened ({error}), and what there is"
    ):
        file.visititems(visit)
        linked = file.get(name, getlink=True) is not None
    broken = f"; there is a link of that name, but: {error.args[0] if error.args else error!r}" if linked else ""
    return SourceError(
        f"source hdf5: {file.filename!r} has no data set {name!r}{nearest(name, held)}{broken}; it holds "
        f"{', '.join(held.values()) or 'no data sets'}; name the ones to read in 'tops'"
    )


def require_filters(dataset: h5py.Dataset, where: str) -> None:
    """Have the library undo its filters, if need be with what hdf5plugin adds; raises SourceError begun by `where`.

    The parts of a virtual data set have filters of their own.
    """
    if dataset.is_virtual:
        register_plugins()
    plist = dataset.id.get_create_plist()
    numbers = [plist.get_filter(position)[0] for position in range(plist.get_nfilters())]
    if unknown := [number for number in numbers if not _has_filter(number)]:
        raise SourceError(
            f"{where} is stored with the HDF5 filter {unknown[0]}, which is not available here; `pip install "
            "hdf5plugin` brings the common ones"
        )


def read_whole(dataset: h5py.Dataset, where: str) -> AnyArray:
    """All of `dataset`, in its shape; raises SourceError begun by `where` if a filter is missing.

    Its filters are looked at only if it cannot be read: that takes a tenth of the time of reading a small one.
    """
    try:
        return np.asarray(dataset[()])
    except OSError:
        require_filters(dataset, where)
        return np.asarray(dataset[()])


def _has_filter(number: int) -> bool:
    if not h5py.h5z.filter_avail(number):
        register_plugins()
    return bool(h5py.h5z.filter_avail(number))


@functools.cache  # Python looks again for what it has not found
def register_plugins() -> None:
    """Have the library know lz4, zstd, blosc and more, if hdf5plugin is installed."""
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401 - the import itself registers them


class LibraryRows(ChunkedRows):
    """Samples of one data set, read by h5py a block at a time: the samples of a chunk, or what is read as fast as one.

    Such a block, as wide as the array, is a chunk here. A call of h5py costs 15 µs and more, whether it reads one label
    or a thousand, and a stored chunk is decoded as a whole. Only arrays of varying length are read one by one.
    """

    def __init__(self, file: h5py.File, array: StoredArray, layout: ThroughLibrary, cache: ChunkCache) -> None:
        self._dataset = _open_dataset(file, array, layout)
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


def _open_dataset(file: h5py.File, array: StoredArray, layout: ThroughLibrary) -> h5py.Dataset:
    """The data set, with a library cache for one chunk: else the library would decode it again for each sample."""
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(_CACHE_SLOTS, math.prod(layout.chunk or ()) * array.dtype.itemsize, 1.0)
    try:
        dataset = _opened(file, array.name, access)
    except KeyError as error:
        raise SourceError(f"{array}: the data set was there when it was examined: {error.args[0]}") from error
    require_filters(dataset, str(array))
    return dataset


def _opened(file: h5py.File, name: str, access: h5py.h5p.PropDAID) -> h5py.Dataset:
    """The data set; relative names of external storage mean the file's own folder, as those of external links do.

    By default the library takes them from the working directory, which is another one for each user. Only data sets
    with external storage get this prefix: the library refuses to open a data set twice in a process with two prefixes,
    and the user's own program may have it open.
    """
    with suppress(KeyError):  # another reader may have it open with the prefix
        dataset = h5py.Dataset(h5py.h5d.open(file.id, _encoded(name), access))
        if not dataset.external:
            return dataset
        del dataset
    access.set_efile_prefix(b"${ORIGIN}")
    return h5py.Dataset(h5py.h5d.open(file.id, _encoded(name), access))


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
