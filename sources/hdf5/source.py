"""HDF5 with one data set per top: one file or several, any layout, read into the rows of the batch slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...workers.api import Paths, Positive, Tops, check_options
from ..files import Locking, RemoteStamp, Stamp, kept, list_hdf5_files, stamp_of
from ..stored import (
    Arrangement,
    Attributes,
    Chunked,
    ChunkedOptions,
    Parts,
    StoredArray,
    dims_by_top,
    stored_table,
)
from ..table import Table


class HDF5Options(ChunkedOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {hdf5: …}`, beside those of all stored arrays.

    path: an HDF5 file, a list of them, a glob, or a text file that lists them, one a line, as Caffe's HDF5Data takes.
        HDF5 files are known by their signature, not by their name.
    max_length: of strings (bytes) or arrays of varying length; a longer one is an error, or replaced by
        `on_error: replace`. Without it they are all looked at once, at the start.
    locking: whether files are locked while open; false for network file systems that cannot lock.
    allow_external: whether external links, external storage and virtual data sets may lead out of the file's folder. A
        file from somebody else could name any file of the machine.
    open_files: files that each loader keeps open at a time; without it a quarter of its descriptors, from 16 to 4,096.
    """

    path: Paths
    max_length: Positive | None = None
    locking: Locking = None
    allow_external: bool = False
    open_files: Positive | None = None


def open_hdf5(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """The samples of one or several HDF5 files, put end to end; each top is the data set of that name.

    Bytes are read by their offset in the file, without the library, if the layout allows (docs/sources_hdf5.md).
    `options`: the fields of HDF5Options. `tops`: names of data sets; None as `default_tops` says.
    """
    # Imported only here, since it needs h5py: a loader that reads by file offsets is spared that time.
    from .examine import default_tops, examine_file

    checked = check_options(options, HDF5Options, "source hdf5")
    paths = list_hdf5_files(checked.path, base_dir, "source hdf5")
    wanted = tuple(tops or _default_tops(stamp_of(paths[0]), partial(default_tops, locking=checked.locking)))
    dims = dims_by_top(checked.dims, wanted, "source hdf5")
    how: dict[str, Any] = {
        "locking": checked.locking,
        "max_length": checked.max_length,
        "allow_external": checked.allow_external,
        "of_one_length": checked.patch is None,
    }

    def examined(tops: Sequence[str]) -> dict[str, Parts]:
        of_tops = {top: names for top, names in dims.items() if top in tops}
        examine = partial(examine_file, tops=tops, dims=of_tops, **how)
        decided = tuple(tops), sorted(of_tops.items()), checked.max_length
        files = [_examined(stamp_of(path), examine, decided) for path in paths]
        return {top: [arrays[top] for arrays in files] for top in tops}

    return stored_table(
        "hdf5",
        examined(wanted),
        checked,
        lambda name: examined([name])[name],
        locking=checked.locking,
        open_files=checked.open_files,
    )


_Layouts = dict[str, tuple[str, tuple[int, ...], np.dtype[Any], Arrangement, Chunked, Attributes, tuple[str, ...]]]
"""The arrays of one object by top: StoredArray without its file."""


def _default_tops(stamp: Stamp, find: Callable[[Stamp], tuple[str, ...]]) -> tuple[str, ...]:
    """The tops that `find` gives for the file; kept for an object."""
    if not isinstance(stamp, RemoteStamp):
        return find(stamp)
    return kept("hdf5 tops", [stamp], (), tuple[str, ...], partial(find, stamp))


def _examined(
    stamp: Stamp, examine: Callable[[Stamp], dict[str, StoredArray]], options: object
) -> dict[str, StoredArray]:
    """The arrays that `examine` finds; those of an object are kept, since reading its metadata takes many requests."""
    if not isinstance(stamp, RemoteStamp):
        return examine(stamp)
    found: dict[str, StoredArray] = {}

    def make() -> _Layouts | None:
        found.update(examine(stamp))
        plain = {
            top: (array.name, array.shape, array.dtype, array.arrangement, array.layout, array.attributes, array.dims)
            for top, array in found.items()
            if isinstance(array.layout, Chunked)
        }
        return plain if len(plain) == len(found) else None

    index = kept("hdf5", [stamp], options, _Layouts, make)
    if found or index is None:
        return found
    return {
        top: StoredArray(stamp, name, shape, dtype, layout, arrangement=arrangement, attributes=attributes, dims=dims)
        for top, (name, shape, dtype, arrangement, layout, attributes, dims) in index.items()
    }
