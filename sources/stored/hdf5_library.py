"""h5py, kept apart from another HDF5 library in the same process; opening its files and finding data sets in them.

All modules import h5py from here.

A program that embeds Python may be linked to an HDF5 library of its own, as the `caffe train` binary is, and a wheel
of h5py brings another one. The dynamic linker would bind the wheel's symbols to the program's library, and the import
would end in "ValueError: Not a datatype". RTLD_DEEPBIND has each library look into its own dependencies first. It is
set only if there is such a library, since libraries loaded in this way do not see, for example, a replaced malloc.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np  # before h5py, which needs it too: it is to be imported in the usual way

from ...workers.api import AnyArray, nearest
from ...workers.base import BlobfeedError, SourceError, is_in_program, moving
from ..files import Locking, RangeStream, RemoteStamp, Stamp

_before = sys.getdlopenflags()
if "h5py" not in sys.modules and is_in_program("H5open"):
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
try:
    import h5py  # type: ignore[import-untyped]
finally:
    sys.setdlopenflags(_before)

__all__ = ["errors_named", "find_dataset", "h5py", "open_dataset", "open_file", "read_dataset", "require_filters"]

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
        return open_dataset(file, name)
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


def read_dataset(dataset: h5py.Dataset, where: str) -> AnyArray:
    """All of `dataset`, in its shape; raises SourceError begun by `where` if a filter is missing.

    Its filters are looked at only if it cannot be read: that takes a tenth of the time of reading a small one.
    """
    try:
        value = dataset[()]
    except OSError:
        require_filters(dataset, where)
        value = dataset[()]
    # A single text comes without the zeros behind it, and NumPy would take its length for the type's.
    return np.asarray(value, dataset.dtype if isinstance(value, bytes) else None)


def _has_filter(number: int) -> bool:
    if not h5py.h5z.filter_avail(number):
        register_plugins()
    return bool(h5py.h5z.filter_avail(number))


@functools.cache  # Python looks again for what it has not found
def register_plugins() -> None:
    """Have the library know lz4, zstd, blosc and more, if hdf5plugin is installed."""
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401 - the import itself registers them


def open_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """The data set, whose external storage is looked for from the file's own folder, as external links are.

    Raises KeyError. By default the library looks from the working directory, which is another one for each user. Only
    data sets with external storage get this prefix: the library refuses to open a data set twice in a process with two
    prefixes, and the user's own program may have it open.
    """
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    with suppress(KeyError):  # another reader may have it open with the prefix
        dataset = h5py.Dataset(h5py.h5d.open(file.id, _encoded(name), access))
        if not dataset.external:
            return dataset
        del dataset
    access.set_efile_prefix(b"${ORIGIN}")
    return h5py.Dataset(h5py.h5d.open(file.id, _encoded(name), access))
