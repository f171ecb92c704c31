"""The attributes of the first sample found in an HDF5 archive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..workers.base.errors import SourceError
from ..workers.base.specs import AnyArray
from ..workers.sources.files.remote import stamp_of
from ..workers.sources.stored.hdf5_library import h5py
from ..workers.sources.stored.library_rows import open_file


def attribute_names(path: str, groups: Sequence[str], datasets: Sequence[str]) -> list[str]:
    """The names of the attributes that one sample of the file at `path` has; which sample, HDF5 decides.

    It is the first that comes to hand: the first in natural order would be known after sorting all names. `datasets`:
    the paths of a sample's data sets in its group; empty where each data set is a sample. Raises SourceError.
    """
    with open_file(stamp_of(path), None) as file:
        for name in groups:
            group = file.get(name) if name else file
            holders = _first_sample(group, datasets) if isinstance(group, h5py.Group) else None
            if holders:
                return list(dict.fromkeys(name for holder in holders for name in _label_names(holder)))
    kind = f"group with {', '.join(datasets)}" if datasets else "data set"
    raise SourceError(f"H5Dataset: no samples: no {kind} in the groups {list(groups)!r} of {path!r}")


def _label_names(holder: h5py.HLObject) -> list[str]:
    """Attributes that are numbers or strings: HDF5 keeps references to dimension scales there too."""
    return [name for name, value in holder.attrs.items() if _is_plain(np.asarray(value))]


def _is_plain(value: AnyArray) -> bool:
    return value.dtype.kind in "biufcSU" or all(isinstance(text, str | bytes) for text in value.ravel().tolist())


def _first_sample(group: h5py.Group, datasets: Sequence[str]) -> list[h5py.HLObject] | None:
    """The objects that hold a sample's attributes: the data set, or the group and its data sets."""

    def visit(name: bytes) -> list[h5py.HLObject] | None:
        entry = group if name == b"." else group[name]
        if not datasets:
            return [entry] if isinstance(entry, h5py.Dataset) else None
        if isinstance(entry, h5py.Group) and all(path in entry for path in datasets):
            return [entry, *(entry[path] for path in datasets)]
        return None

    # In the order in which they are stored: visititems would sort a million names to find the first one.
    found: list[h5py.HLObject] | None = h5py.h5o.visit(group.id, visit, order=h5py.h5.ITER_NATIVE)
    return found
