"""Making the index: finding each sample in HDF5 files whose samples are data sets, or groups of data sets."""

from __future__ import annotations

import math
from array import array as compact_list
from collections.abc import Iterator, Sequence

import numpy as np

from ...base.checks import nearest
from ...base.errors import SourceError
from ...base.specs import AnyArray, rounded_integer
from ..files.file import FileStamp, Locking
from ..files.paths import PackedNames, natural_key
from ..files.remote import Stamp
from ..stored.external import ExternalFiles
from ..stored.hdf5_library import errors_named, h5py, open_file, require_filters
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
        self._others: dict[tuple[FileStamp, ...], int] = {(): 0}

    def add_file(self, stamp: Stamp, locking: Locking, *, allow_external: bool) -> None:
        """Take in the samples of one file, unless those before have enough; raises SourceError."""
        if len(self._names) == self._wanted.limit:
            return
        with open_file(stamp, locking) as file, errors_named(f"{_WHAT}: {stamp.path!r}"):
            # Each data set is looked at once. By default the library keeps 32 MB of such, which take 400 MB in memory.
            config = file.id.get_mdc_config()
            config.max_size = _METADATA_CACHE_BYTES
            file.id.set_mdc_config(config)
            self._external = ExternalFiles(stamp, locking, allowed=allow_external)
            self._direct_in = None if file.userblock_size else h5py.h5o.get_info(file.id).fileno
            for name, entry in _found(file, self._wanted):
                with errors_named(f"{_WHAT}: {stamp.path}:{name}"):
                    self._add_sample(stamp, name, entry)
                if not len(self._names) % _SAMPLES_A_WORD:
                    self._progress.tell(stamp.path, len(self._names))
                if len(self._names) == self._wanted.limit:
                    break
        self._stamps.append(stamp)
        self._starts.append(len(self._names))

    def _add_sample(self, stamp: Stamp, name: str, entry: h5py.HLObject) -> None:
        where = f"{stamp.path}:{name}"
        datasets = {top: _member(entry, path, where) for top, path in self._wanted.data.items()}
        for top, dataset in datasets.items():
            column = self._data[top]
            column.add(dataset, where, stamp, self._direct_in)
            if column.offsets[-1] < 0:
                require_filters(dataset, f"{_WHAT}: {where}")
                others = self._external.stamps(dataset, f"{_WHAT}: {where}")
                if isinstance(stamp, FileStamp) and dataset.file.filename != stamp.path:
                    others = (FileStamp.of(dataset.file.filename), *others)
                column.offsets[-1] = -1 - self._others.setdefault(others, len(self._others))
        for label in self._labels.values():
            label.add((entry, *datasets.values()), where)
        self._names.append(name)

    def index(self) -> SamplesIndex:
        """Return the index of all samples; raises SourceError if there are none."""
        if not self._names:
            kind = f"group with {', '.join(self._wanted.data.values())}" if self._wanted.in_groups else "data set"
            files = ", ".join(stamp.path for stamp in self._stamps)
            raise SourceError(f"{_WHAT}: no samples: no {kind} in {self._wanted.groups} of {files}")
        return SamplesIndex(
            np.array(self._starts, np.int64),
            PackedNames.of(name.encode(errors="surrogateescape") for name in self._names),
            {top: column.indexed(top) for top, column in self._data.items()},
            {top: column.values(len(self._names)) for top, column in self._labels.items()},
            tuple(self._others),
        )


class _DataColumn:
    """One top: where each sample lies, and what all of them must have in common."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.offsets = compact_list("q")
        self._shapes = compact_list("i")
        self._type: h5py.h5t.TypeID | None = None
        self.dtype = np.dtype(np.uint8)
        self._rank = 0
        self._first = ""

    def add(self, dataset: h5py.Dataset, where: str, stamp: Stamp, direct_in: int | None) -> None:
        where = f"{where}/{self._path}" if self._path else where
        shape, stored = dataset.shape, dataset.id.get_type()
        if self._type is None:
            self._begin(dataset, where)
        if stored != self._type and np.dtype(dataset.dtype.str).newbyteorder("=") != self.dtype.newbyteorder("="):
            raise SourceError(f"{_WHAT}: {where} holds {dataset.dtype}, {self._first} {self.dtype}: all need one type")
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
        self.dtype, self._rank = np.dtype(dataset.dtype.str), len(dataset.shape or ())
        # The library converts a type that NumPy does not have: then no sample has this type, and none is read directly.
        self._direct = h5py.h5t.py_create(dataset.dtype, logical=True)

    def _offset(self, dataset: h5py.Dataset, where: str, stamp: Stamp, direct_in: int | None) -> int:
        offset = dataset.id.get_offset()
        # In another file by an external link, chunked, compact, never written: only the library reads it.
        if offset is None or h5py.h5o.get_info(dataset.id).fileno != direct_in:
            return -1
        end = offset + math.prod(dataset.shape) * self.dtype.itemsize
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
            self._path, self.dtype, largest, np.array(self.offsets, np.int64), shapes.copy() if varies else None
        )


class _LabelColumn:
    """The values of one attribute, kept as bytes: a million arrays of one number each would take 100 MB."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bytes = bytearray()
        self._dtype: np.dtype[np.generic] = np.dtype(np.uint8)
        self._shape: tuple[int, ...] = ()
        self._first = ""
        self._type: h5py.h5t.TypeID | None = None

    def add(self, holders: Sequence[h5py.HLObject], where: str) -> None:
        if (like_before := self._like_before(holders[0])) is not None:
            self._bytes += like_before
            return
        value, self._newest = _attribute(holders, self._name, where), where
        if not self._first:
            self._dtype, self._shape, self._first = value.dtype, value.shape, where
            self._type = h5py.h5t.py_create(value.dtype) if value.dtype.kind in "iuf" else None
        if value.shape != self._shape or (value.dtype.kind == "S") != (self._dtype.kind == "S"):
            raise SourceError(
                f"{_WHAT}: attribute {self._name!r} of {where} has {value.shape} {value.dtype}, that of {self._first} "
                f"has {self._shape} {self._dtype}: a label needs the same shape and kind in all samples"
            )
        widened = np.result_type(self._dtype, value.dtype)
        if widened != self._dtype:
            before = np.frombuffer(self._bytes, self._dtype)
            self._dtype, self._type = widened, None
            self._bytes = bytearray(self._in_type(before))
        self._bytes += self._in_type(value)

    def _in_type(self, values: AnyArray) -> bytes:
        """`values` in the type of the column; raises SourceError for integers that this type would round."""
        if (rounded := rounded_integer(values, self._dtype)) is not None:
            raise SourceError(
                f"{_WHAT}: attribute {self._name!r} has several types from {self._first} to {self._newest}: all become "
                f"{self._dtype}, which would round {rounded}: store it as one type in all samples"
            )
        return values.astype(self._dtype, copy=False).tobytes()

    def _like_before(self, holder: h5py.HLObject) -> bytes | None:
        """The attribute's value if it is a number, or an array of them, as the first one was.

        This does half of what h5py does for any attribute: nearly all of a scan's time is spent here.
        """
        if self._type is None or not h5py.h5a.exists(holder.id, self._name.encode()):
            return None
        attribute = h5py.h5a.open(holder.id, self._name.encode())
        if attribute.get_type() != self._type or attribute.shape != self._shape:
            return None
        value = np.empty(self._shape, self._dtype)
        attribute.read(value)
        return value.tobytes()

    def values(self, samples: int) -> AnyArray:
        return np.frombuffer(bytes(self._bytes), self._dtype).reshape(samples, *self._shape)


def _found(file: h5py.File, wanted: Wanted) -> Iterator[tuple[str, h5py.HLObject]]:
    """The name of each sample, and its data set or group."""
    seen: set[tuple[int, int]] = set()
    for name in wanted.groups:
        group = file.get(name) if name else file
        if not isinstance(group, h5py.Group):
            raise SourceError(f"{_WHAT}: {file.filename!r} has no group {name!r}{nearest(name, file)}{_held(file)}")
        yield from _walk(group, name.strip("/"), wanted, seen)


def first_sample(group: h5py.Group, datasets: Sequence[str]) -> h5py.HLObject | None:
    """The first data set, or group with `datasets`, at or below `group` by whatever links; raises SourceError."""
    wanted = Wanted({path: path for path in datasets} or {"": ""}, {}, ())
    return next((entry for _, entry in _walk(group, group.name.strip("/"), wanted, set())), None)


def _walk(
    group: h5py.Group, name: str, wanted: Wanted, seen: set[tuple[int, int]]
) -> Iterator[tuple[str, h5py.HLObject]]:
    """The samples at and below `group`, in natural order; a group that is linked more than once is entered once."""
    info = h5py.h5o.get_info(group.id)
    if (info.fileno, info.addr) in seen:
        return
    seen.add((info.fileno, info.addr))
    if wanted.in_groups:
        missing = [path for path in wanted.data.values() if path not in group]
        if not missing:
            yield name, group
            return
        if len(missing) < len(wanted.data):
            raise SourceError(f"{_WHAT}: {group.file.filename}:{name} lacks {', '.join(missing)}{_held(group)}")
    for member in sorted((name.decode(errors="surrogateescape") for name in group.id), key=natural_key):
        path = f"{name}/{member}" if name else member
        entry = _open(group, member, path)
        if isinstance(entry, h5py.Group):
            yield from _walk(entry, path, wanted, seen)
        elif isinstance(entry, h5py.Dataset) and not wanted.in_groups:
            yield path, entry


def _open(group: h5py.Group, member: str, path: str) -> h5py.HLObject | None:
    # The low-level way takes half the time of group[member], and this is done for each sample.
    name = member.encode(errors="surrogateescape")
    try:
        opened = h5py.h5o.open(group.id, name)
    except KeyError as error:
        link = group.get(name, getlink=True)
        target = f" to {link.filename}:{link.path}" if isinstance(link, h5py.ExternalLink) else ""
        raise SourceError(
            f"{_WHAT}: {group.file.filename}:{path} is a link{target} that leads nowhere: {error}"
        ) from None
    if isinstance(opened, h5py.h5d.DatasetID):
        return h5py.Dataset(opened)
    return h5py.Group(opened) if isinstance(opened, h5py.h5g.GroupID) else None


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
    values = label_array(value)
    if values is None:
        raise SourceError(f"{_WHAT}: attribute {name!r} of {where} holds {value!r}: expected numbers or strings")
    return values


def label_array(value: object) -> AnyArray | None:
    """Return an attribute's value as numbers or as strings of bytes; None if it is neither."""
    values = np.asarray(value)
    if values.dtype.kind in "UO" and all(isinstance(text, str | bytes) for text in values.ravel().tolist()):
        # Bytes that are no UTF-8 come as surrogates.
        values = np.char.encode(values.astype(str), "utf-8", "surrogateescape")
    return values.astype(values.dtype.newbyteorder("=")) if values.dtype.kind in "biufcS" else None


def _held(group: h5py.Group) -> str:
    names = [name for name, _ in zip(group, range(_NAMES_IN_A_MESSAGE), strict=False)]
    return f"; it holds {', '.join(names) or 'nothing'}{', …' if len(names) == _NAMES_IN_A_MESSAGE else ''}"
