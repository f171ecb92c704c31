"""Making the index: finding each sample in HDF5 files whose samples are data sets, or groups of data sets."""

from __future__ import annotations

import math
from array import array as compact_list
from collections.abc import Iterator, Sequence

import numpy as np

from ...base.checks import nearest
from ...base.errors import SourceError
from ...base.specs import AnyArray
from ..stored.external import ExternalFiles
from ..stored.file import Locking
from ..stored.hdf5_library import h5py
from ..stored.library_rows import errors_named, open_file
from ..stored.paths import PackedNames, natural_key
from ..stored.remote import Stamp
from .index import IndexedData, SamplesIndex, Wanted
from .progress import Progress

_WHAT = "source hdf5_samples"
_NAMES_IN_A_MESSAGE = 10
_SAMPLES_A_WORD = 256
_METADATA_CACHE_BYTES = 8 << 20


class Scan:
    """Collects the samples of one file after the other into an index."""

    def __init__(self, wanted: Wanted, progress: Progress) -> None:
        self._wanted = wanted
        self._progress = progress
        self._stamps: list[Stamp] = []
        self._starts = [0]
        self._names: list[str] = []
        self._data = {top: _DataColumn(path) for top, path in wanted.data.items()}
        self._labels = {top: _LabelColumn(name) for top, name in wanted.labels.items()}

    def add_file(self, stamp: Stamp, locking: Locking, *, allow_external: bool) -> None:
        """Take in the samples of one file; raises SourceError."""
        with open_file(stamp, locking) as file, errors_named(f"{_WHAT}: {stamp.path!r}"):
            # Each data set is looked at once. By default the library keeps 32 MB of such, which take 400 MB in memory.
            config = file.id.get_mdc_config()
            config.max_size = _METADATA_CACHE_BYTES
            file.id.set_mdc_config(config)
            self._external = ExternalFiles(stamp, allowed=allow_external)
            self._direct_in = None if file.userblock_size else h5py.h5o.get_info(file.id).fileno
            for name, entry in _entries(file, self._wanted):
                if len(self._names) == self._wanted.limit:
                    break
                with errors_named(f"{_WHAT}: {stamp.path}:{name}"):
                    self._add_sample(stamp, name, entry)
        self._stamps.append(stamp)
        self._starts.append(len(self._names))

    def _add_sample(self, stamp: Stamp, name: str, entry: h5py.HLObject) -> None:
        where = f"{stamp.path}:{name}"
        datasets = {top: _member(entry, path, where) for top, path in self._wanted.data.items()}
        for top, dataset in datasets.items():
            column, before = self._data[top], len(self._data[top].offsets)
            column.add(dataset, where, stamp, self._direct_in)
            if column.offsets[before] < 0:
                self._external.stamps(dataset, f"{_WHAT}: {where}")
        for label in self._labels.values():
            label.add((entry, *datasets.values()), where)
        self._names.append(name)
        if len(self._names) % _SAMPLES_A_WORD == 0:
            self._progress.tell(stamp.path, len(self._names))

    def index(self) -> SamplesIndex:
        """All that was found; raises SourceError if there is nothing."""
        if not self._names:
            kind = f"group with {', '.join(self._wanted.data.values())}" if self._wanted.in_groups else "data set"
            files = ", ".join(stamp.path for stamp in self._stamps)
            raise SourceError(f"{_WHAT}: no samples: no {kind} in {self._wanted.groups} of {files}")
        return SamplesIndex(
            tuple(self._stamps),
            np.array(self._starts, np.int64),
            PackedNames.of(map(str.encode, self._names)),
            {top: column.indexed(top) for top, column in self._data.items()},
            {top: column.values() for top, column in self._labels.items()},
        )


class _DataColumn:
    """One top: where each sample lies, and what all of them must have in common."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.offsets = compact_list("q")
        self._shapes = compact_list("i")
        self._type: h5py.h5t.TypeID | None = None
        self._dtype = np.dtype(np.uint8)
        self._rank = 0
        self._first = ""

    def add(self, dataset: h5py.Dataset, where: str, stamp: Stamp, direct_in: int | None) -> None:
        where = f"{where}/{self._path}" if self._path else where
        shape, stored = dataset.shape, dataset.id.get_type()
        if self._type is None:
            self._begin(dataset, where)
        if stored != self._type and np.dtype(dataset.dtype.str).newbyteorder("=") != self._dtype.newbyteorder("="):
            raise SourceError(f"{_WHAT}: {where} holds {dataset.dtype}, {self._first} {self._dtype}: all need one type")
        if shape is None or len(shape) != self._rank:
            raise SourceError(
                f"{_WHAT}: {where} has shape {shape}, {self._first} has {self._rank} axes: all need the same number"
            )
        self._shapes.extend(shape)
        self.offsets.append(self._offset(dataset, where, stamp, direct_in) if stored == self._direct else -1)

    def _begin(self, dataset: h5py.Dataset, where: str) -> None:
        if dataset.dtype.kind not in "biufcS":
            raise SourceError(f"{_WHAT}: {where} holds {dataset.dtype}, which is no array of numbers or fixed strings")
        self._type, self._first = dataset.id.get_type(), where
        self._dtype, self._rank = np.dtype(dataset.dtype.str), len(dataset.shape or ())
        # The library converts a type that NumPy does not have: then no sample has this type, and none is read directly.
        self._direct = h5py.h5t.py_create(dataset.dtype, logical=True)

    def _offset(self, dataset: h5py.Dataset, where: str, stamp: Stamp, direct_in: int | None) -> int:
        offset = dataset.id.get_offset()
        # In another file by an external link, chunked, compact, never written: only the library reads it.
        if offset is None or h5py.h5o.get_info(dataset.id).fileno != direct_in:
            return -1
        end = offset + math.prod(dataset.shape) * self._dtype.itemsize
        if end > stamp.size:
            raise SourceError(f"{_WHAT}: {where} reaches to byte {end}, the file has {stamp.size}: it was cut short")
        return int(offset)

    def indexed(self, top: str) -> IndexedData:
        shapes = np.frombuffer(self._shapes, np.int32).reshape(len(self.offsets), self._rank)
        largest = tuple(int(extent) for extent in shapes.max(axis=0))
        if not math.prod(largest):
            raise SourceError(f"{_WHAT}: samples of {top!r} are empty: their shape is {largest}, such as {self._first}")
        varies = bool((shapes != shapes[0]).any())
        return IndexedData(
            self._path, self._dtype, largest, np.array(self.offsets, np.int64), shapes.copy() if varies else None
        )


class _LabelColumn:
    """The values of one attribute, kept as bytes: a million arrays of one number each would take 100 MB."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bytes = bytearray()
        self._dtype: np.dtype[np.generic] | None = None
        self._shape: tuple[int, ...] = ()
        self._first = ""
        self._type: h5py.h5t.TypeID | None = None

    def add(self, holders: Sequence[h5py.HLObject], where: str) -> None:
        if self._add_like_before(holders[0]):
            return
        value = _attribute(holders, self._name, where)
        if self._dtype is None:
            self._dtype, self._shape, self._first = value.dtype, value.shape, where
            self._type = h5py.h5t.py_create(value.dtype) if value.dtype.kind in "iuf" else None
        if value.shape != self._shape or (value.dtype.kind == "S") != (self._dtype.kind == "S"):
            raise SourceError(
                f"{_WHAT}: attribute {self._name!r} of {where} has {value.shape} {value.dtype}, that of {self._first} "
                f"has {self._shape} {self._dtype}: a label needs the same shape and kind in all samples"
            )
        widened = np.result_type(self._dtype, value.dtype)
        if widened != self._dtype:
            self._bytes = bytearray(np.frombuffer(self._bytes, self._dtype).astype(widened).tobytes())
            self._dtype, self._type = widened, None
        self._bytes += value.astype(self._dtype, copy=False).tobytes()

    def _add_like_before(self, holder: h5py.HLObject) -> bool:
        """Add the attribute if it is a number, or an array of them, as the first one was; whether it was.

        This does half of what h5py does for any attribute: nearly all of a scan's time is spent here.
        """
        if self._type is None or not h5py.h5a.exists(holder.id, self._name.encode()):
            return False
        attribute = h5py.h5a.open(holder.id, self._name.encode())
        if attribute.get_type() != self._type or attribute.shape != self._shape:
            return False
        value = np.empty(self._shape, self._dtype)
        attribute.read(value)
        self._bytes += value.tobytes()
        return True

    def values(self) -> AnyArray:
        return np.frombuffer(bytes(self._bytes), self._dtype).reshape(-1, *self._shape)


def _entries(file: h5py.File, wanted: Wanted) -> Iterator[tuple[str, h5py.HLObject]]:
    for name in wanted.groups:
        group = file.get(name) if name else file
        if not isinstance(group, h5py.Group):
            raise SourceError(f"{_WHAT}: {file.filename!r} has no group {name!r}{nearest(name, file)}{_held(file)}")
        yield from _walk(group, name.strip("/"), wanted, set())


def _walk(
    group: h5py.Group, name: str, wanted: Wanted, seen: set[tuple[int, int]]
) -> Iterator[tuple[str, h5py.HLObject]]:
    """The samples at and below `group`, in natural order; a group that is linked more than once is entered once."""
    info = h5py.h5o.get_info(group.id)
    if (info.fileno, info.addr) in seen:
        return
    seen.add((info.fileno, info.addr))
    if wanted.in_groups and _holds_sample(group, name, wanted):
        yield name, group
        return
    for member in sorted(group, key=natural_key):
        path = f"{name}/{member}" if name else member
        entry = _open(group, member, path)
        if isinstance(entry, h5py.Group):
            yield from _walk(entry, path, wanted, seen)
        elif isinstance(entry, h5py.Dataset) and not wanted.in_groups:
            yield path, entry


def _open(group: h5py.Group, member: str, path: str) -> h5py.HLObject | None:
    # The low-level way takes half the time of group[member], and this is done for each sample.
    try:
        opened = h5py.h5o.open(group.id, member.encode())
    except KeyError as error:
        raise SourceError(f"{_WHAT}: {group.file.filename}:{path} is a link that leads nowhere: {error}") from None
    if isinstance(opened, h5py.h5d.DatasetID):
        return h5py.Dataset(opened)
    return h5py.Group(opened) if isinstance(opened, h5py.h5g.GroupID) else None


def _holds_sample(group: h5py.Group, name: str, wanted: Wanted) -> bool:
    missing = [path for path in wanted.data.values() if path not in group]
    if missing and len(missing) < len(wanted.data):
        raise SourceError(f"{_WHAT}: {group.file.filename}:{name} lacks {', '.join(missing)}{_held(group)}")
    return not missing


def _member(entry: h5py.HLObject, path: str, where: str) -> h5py.Dataset:
    dataset = entry[path] if path else entry
    if not isinstance(dataset, h5py.Dataset):
        raise SourceError(f"{_WHAT}: {where}/{path} is a {type(dataset).__name__.lower()}, not a data set")
    return dataset


def _attribute(holders: Sequence[h5py.HLObject], name: str, where: str) -> AnyArray:
    """The attribute `name` of the first of `holders` that has it, as numbers or as strings of bytes."""
    for holder in holders:
        if name in holder.attrs:
            value = holder.attrs[name]
            break
    else:
        known = sorted({key for holder in holders for key in holder.attrs})
        raise SourceError(
            f"{_WHAT}: {where} has no attribute {name!r}{nearest(name, known)}; it has {', '.join(known) or 'none'}"
        )
    values = np.asarray(value)
    if values.dtype.kind in "UO" and all(isinstance(text, str | bytes) for text in values.ravel().tolist()):
        values = np.char.encode(values.astype(str), "utf-8")
    if values.dtype.kind not in "biufcS":
        raise SourceError(f"{_WHAT}: attribute {name!r} of {where} holds {value!r}: expected numbers or strings")
    return values.astype(values.dtype.newbyteorder("="))


def _held(group: h5py.Group) -> str:
    names = [name for name, _ in zip(group, range(_NAMES_IN_A_MESSAGE), strict=False)]
    return f"; it holds {', '.join(names) or 'nothing'}{', …' if len(names) == _NAMES_IN_A_MESSAGE else ''}"
