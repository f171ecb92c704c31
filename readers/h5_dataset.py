"""`H5Dataset`: HDF5 archives with a data set per sample, for torch's own DataLoader."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset

from ..sources.files import Locking, list_hdf5_files, stamp_of
from ..sources.hdf5_samples import open_hdf5_samples
from ..sources.hdf5_samples.scan import first_sample, label_array
from ..sources.stored.hdf5_library import h5py, open_file
from ..workers.api import AnyArray, RaggedRows, Rows, allocate_rows
from ..workers.base import ParameterError, SourceError, absolute, shortens_tracebacks
from .keywords import check_hook

Item = dict[str, Any]


class H5Dataset(Dataset[Item]):
    """Samples that are a data set each, or a group of them, in one HDF5 file or several.

        dataset = H5Dataset("trajectories/*.h5")
        loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4)

    An item is {"data": tensor, "labels": {attribute: value}}; with `datasets` it has a tensor by the path of each. A
    label is a tensor, or, for a string, a str: default_collate makes batches of them. Samples are in natural order,
    trajectory_2 before trajectory_10. Each worker opens the files for itself, never across
    a fork; a batch is read at once (`__getitems__`).

    `h5_paths`: a file, a list of them, a glob, or a text file that lists them.  `limit`: only the first so many
    samples; -1: all.  `groups`: only what lies in these groups.  `datasets`: where a sample is a group of data sets,
    their paths in it.  `labels`: which attributes are labels; by default those that the first sample found has.
    `transform`: a function of the item, run where it is read.  `options`: further options of the source `hdf5_samples`.
    An archive is gone through once, and again when a file has changed: its index is kept in ~/.cache/blobfeed.

    Raises ParameterError and SourceError.
    """

    @shortens_tracebacks
    def __init__(
        self,
        h5_paths: str | Path | Sequence[str | Path],
        limit: int | None = None,
        *,
        groups: str | Sequence[str] = ("",),
        datasets: str | Sequence[str] = (),
        labels: str | Sequence[str] | None = None,
        transform: Callable[[Item], Any] | None = None,
        base_dir: str | Path = ".",
        **options: Any,
    ) -> None:
        self._transform = check_hook("H5Dataset", "transform", transform)
        where = absolute(base_dir)
        every = [h5_paths] if isinstance(h5_paths, str | Path) else h5_paths
        listed = list_hdf5_files(list(map(str, every)), where, "H5Dataset")
        wanted, datasets = _names(groups), _names(datasets)
        locking = options.get("locking")
        self._labels = tuple(_attribute_names(listed, wanted, datasets, locking) if labels is None else _names(labels))
        if "labels" in datasets:
            raise ParameterError(
                "H5Dataset: labels cannot be a data set's name, since an item has its attributes there: for such a "
                "file use BatchReader with the source hdf5_samples"
            )
        if clash := {"data", *datasets, "labels"} & set(self._labels):
            raise ParameterError(
                f"H5Dataset: {', '.join(clash)} cannot be a label's name, since an item has that already: say in "
                "'labels' which attributes you want"
            )
        given = {
            "path": list(listed),
            "groups": wanted,
            "datasets": datasets,
            "labels": list(self._labels),
            "limit": None if limit == -1 else limit,
        }
        self._source = open_hdf5_samples(given | options, base_dir=where)
        for name, spec in self._source.specs.items():
            if not (name in self._labels and spec.dtype.kind == "S"):
                _check_torch_has(name, spec.dtype)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Sample `index`, counted from the end where negative; raises IndexError."""
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples, read together: what a DataLoader asks for where this method is there."""
        wanted = np.array([self._checked(index) for index in indices], np.int64)
        rows = allocate_rows(self._source.specs, len(wanted))
        self._source.read(wanted, rows)
        items = (self._item(rows, place, index) for place, index in enumerate(wanted.tolist()))
        return list(items if self._transform is None else map(self._transform, items))

    def where(self, index: int) -> str:
        """The file of sample `index` and its name in there; raises IndexError."""
        return self._source.where(self._checked(index))

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        self._source.close()

    def _checked(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of an H5Dataset of {len(self)} samples")
        return index % len(self)

    def _item(self, rows: Mapping[str, Rows], place: int, index: int) -> Item:
        item: Item = {name: _tensor(_row(top, place)) for name, top in rows.items() if name not in self._labels}
        item["labels"] = {name: self._label(name, _row(rows[name], place), index) for name in self._labels}
        return item

    def _label(self, name: str, value: AnyArray, index: int) -> Any:
        if value.dtype.kind != "S":
            return _tensor(value)
        try:
            return np.char.decode(value.astype(np.bytes_), "utf-8").tolist()
        except UnicodeDecodeError as error:
            raise SourceError(f"H5Dataset: label {name!r} of {self.where(index)} is not UTF-8: {error}") from error


def _row(rows: Rows, place: int) -> AnyArray:
    if isinstance(rows, RaggedRows):
        # Not a view: rows of a size for the largest sample of all would live as long as the smallest.
        return rows.get(place).copy()
    row: AnyArray = rows[place]
    return row


def _tensor(row: AnyArray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(row))


def _check_torch_has(name: str, dtype: np.dtype[np.generic]) -> None:
    try:
        _tensor(np.empty(0, dtype))
    except TypeError:
        raise ParameterError(
            f"H5Dataset: {name!r} has the type {dtype}, of which torch has no tensors: name other data sets in "
            "'datasets', or store text as an attribute, which may be a label"
        ) from None


def _names(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _attribute_names(
    paths: Sequence[str], groups: Sequence[str], datasets: Sequence[str], locking: Locking
) -> list[str]:
    """The names of the attributes that one sample in the first file with samples has; which sample, HDF5 decides.

    It is the first that comes to hand: the first in natural order would be known after sorting all names. `datasets`:
    the paths of a sample's data sets in its group; empty where each data set is a sample. Raises SourceError.
    """
    inside = [name.strip("/") for name in datasets]
    for path in paths:
        with open_file(stamp_of(path), locking) as file:
            for name in groups:
                group = file.get(name) if name else file
                sample = _first_sample(group, inside) if isinstance(group, h5py.Group) else None
                if sample is not None:
                    holders = [sample, *(sample[path] for path in inside)]
                    attributes = (found for each in holders for found in each.attrs.items())
                    # HDF5 keeps references to dimension scales there too.
                    return list(dict.fromkeys(name for name, value in attributes if label_array(value) is not None))
    kind = f"group with {', '.join(datasets)}" if datasets else "data set"
    raise SourceError(f"H5Dataset: no samples: no {kind} in the groups {list(groups)!r} of {', '.join(paths)}")


def _first_sample(group: h5py.Group, datasets: Sequence[str]) -> h5py.HLObject | None:
    """The first data set, or group that has `datasets`."""

    def visit(name: bytes) -> h5py.HLObject | None:
        entry = group if name == b"." else group[name]
        if not datasets:
            return entry if isinstance(entry, h5py.Dataset) else None
        return entry if isinstance(entry, h5py.Group) and all(path in entry for path in datasets) else None

    # In the order in which they are stored: visititems would sort a million names to find the first one.
    found = h5py.h5o.visit(group.id, visit, order=h5py.h5.ITER_NATIVE)
    return first_sample(group, datasets) if found is None else found  # `visit` follows no soft or external links
