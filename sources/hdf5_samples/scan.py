"""Making the index: finding each sample in HDF5 files whose samples are data sets, or groups of data sets."""

from __future__ import annotations

import itertools
import math
import sys
from array import array as compact_list
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...workers.api import AnyArray, nearest, rounded_integer
from ...workers.base import SourceError
from ..files import FileStamp, Locking, PackedNames, RemoteStamp, Stamp, natural_key
from ..stored.external import ExternalFiles
from ..stored.hdf5_library import errors_named, h5py, open_file, require_filters
from .headers import Found, HeaderReader
from .index import IndexedData, SamplesIndex, Wanted
from .progress import Progress

_WHAT = "source hdf5_samples"
_NAMES_IN_A_MESSAGE = 10
_MEMBERS_AT_ONCE = 256
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
        self._bad: dict[int, str] = {}

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
            with nullcontext() if isinstance(stamp, RemoteStamp) else Path(stamp.path).open("rb") as raw:
                self._headers = self._header_reader(file, raw.fileno(), stamp) if raw else None
                shown = len(self._names)
                for found in _found(file, self._wanted, self._headers):
                    if isinstance(found, _Samples):
                        self._add_samples(found)
                    elif isinstance(found, _Bad):
                        if not self._names:
                            raise SourceError(found.text)
                        self._add_bad(found.name, found.text)
                    else:
                        self._add_sample(stamp, found)
                    if len(self._names) >= shown + _SAMPLES_A_WORD:
                        shown = len(self._names)
                        self._progress.tell(stamp.path, shown)
                    if len(self._names) == self._wanted.limit:
                        break
        self._stamps.append(stamp)
        self._starts.append(len(self._names))

    def _header_reader(self, file: h5py.File, descriptor: int, stamp: Stamp) -> HeaderReader | None:
        """Return the reader of headers, if samples are data sets and addresses are written as it expects them."""
        usual = self._direct_in is not None and file.id.get_create_plist().get_sizes() == (8, 8)
        labels = list(self._wanted.labels.values())
        return HeaderReader(descriptor, stamp.size, labels) if usual and not self._wanted.in_groups else None

    def _add_sample(self, stamp: Stamp, found: _Sample) -> None:
        where = f"{stamp.path}:{found.name}"
        try:
            with errors_named(f"{_WHAT}: {where}"):
                values = self._looked_at(stamp, found.entry, where)
        except SourceError as error:
            if not self._names:
                raise
            self._add_bad(found.name, str(error))
            return
        for label, value in zip(self._labels.values(), values, strict=True):
            label.add(value)
        self._names.append(found.name)
        if self._headers and found.address >= 0:
            self._learn(self._headers, found)

    def _add_bad(self, name: str, text: str) -> None:
        """Take in a sample that is not like those before it, so that reading it is an error, which says `text`.

        In the columns it has what the one before it has: nobody reads that.
        """
        for column in self._data.values():
            column.repeat_last(len(self._names))
        for label in self._labels.values():
            label.repeat_last(len(self._names))
        self._bad[len(self._names)] = text
        self._names.append(name)

    def _looked_at(self, stamp: Stamp, entry: h5py.HLObject, where: str) -> list[AnyArray | bytes]:
        """Add the data of a sample, and return its labels; raises SourceError, maybe when some data have been added."""
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
        return [label.look((entry, *datasets.values()), where) for label in self._labels.values()]

    def _learn(self, headers: HeaderReader, found: _Sample) -> None:
        """Have the headers of other data sets compared with this one's."""
        (column,) = self._data.values()
        labels = {label.name: label.last for label in self._labels.values() if label.last is not None}
        if column.offsets[-1] >= 0 and len(labels) == len(self._labels):
            headers.learn(found.address, column.offsets[-1], found.entry.shape, column.dtype.itemsize, labels)

    def _add_samples(self, found: _Samples) -> None:
        room = (self._wanted.limit or sys.maxsize) - len(self._names)
        (column,) = self._data.values()
        column.add_many(found.read.offsets[:room], found.read.shapes[:room])
        for label in self._labels.values():
            label.add_many(found.read.labels[label.name][:room])
        self._names += found.names[:room]

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
            self._bad,
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    """`address`: of the object's header in the file, -1 if a link leads to it that has none."""

    name: str
    entry: h5py.HLObject
    address: int


@dataclass(frozen=True, slots=True)
class _Bad:
    """A sample that lacks something. `text`: what is wrong with it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class _Samples:
    """Data sets whose headers were read without the library."""

    names: list[str]
    read: Found


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

    def repeat_last(self, samples: int) -> None:
        """Add once more what the last of so many samples has; what has been added behind it goes."""
        del self.offsets[samples:], self._shapes[samples * self._rank :]
        self.offsets.append(-1)
        self._shapes.extend(self._shapes[(samples - 1) * self._rank :])

    def add_many(self, offsets: NDArray[np.int64], shapes: NDArray[np.int64]) -> None:
        """Data sets with the type and the number of axes of those before."""
        self.offsets.frombytes(offsets.tobytes())
        self._shapes.frombytes(shapes.astype(np.int32).tobytes())

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
    """The values of one attribute, kept as bytes: a million arrays of one number each would take 100 MB.

    `last`: the last value, if it is stored as it is kept.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.last: bytes | None = None
        self._bytes = bytearray()
        self._dtype: np.dtype[np.generic] = np.dtype(np.uint8)
        self._shape: tuple[int, ...] = ()
        self._first = ""
        self._type: h5py.h5t.TypeID | None = None

    def look(self, holders: Sequence[h5py.HLObject], where: str) -> AnyArray | bytes:
        """The value of a sample, as bytes if it is like the first one; raises SourceError."""
        self.last = self._like_before(holders[0])
        if self.last is not None:
            return self.last
        value, self._newest = _attribute(holders, self.name, where), where
        if not self._first:
            self._dtype, self._shape, self._first = value.dtype, value.shape, where
            self._stored = value.dtype
            self._type = h5py.h5t.py_create(value.dtype) if value.dtype.kind in "iuf" else None
        if value.shape != self._shape or (value.dtype.kind == "S") != (self._dtype.kind == "S"):
            raise SourceError(
                f"{_WHAT}: attribute {self.name!r} of {where} has {value.shape} {value.dtype}, that of {self._first} "
                f"has {self._shape} {self._dtype}: a label needs the same shape and kind in all samples"
            )
        return value

    def add(self, value: AnyArray | bytes) -> None:
        """Add what `look` gave; raises SourceError for integers that the type of all would round."""
        if isinstance(value, bytes):
            self._bytes += value
            return
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
                f"{_WHAT}: attribute {self.name!r} has several types from {self._first} to {self._newest}: all become "
                f"{self._dtype}, which would round {rounded}: store it as one type in all samples"
            )
        return values.astype(self._dtype, copy=False).tobytes()

    def repeat_last(self, samples: int) -> None:
        """Add once more what the last of so many samples has."""
        self._bytes += self._bytes[len(self._bytes) // samples * (samples - 1) :]

    def _like_before(self, holder: h5py.HLObject) -> bytes | None:
        """The attribute's value if it is a number, or an array of them, as the first one was.

        This does half of what h5py does for any attribute: nearly all of a scan's time is spent here.
        """
        if self._type is None or not h5py.h5a.exists(holder.id, self.name.encode()):
            return None
        attribute = h5py.h5a.open(holder.id, self.name.encode())
        if attribute.get_type() != self._type or attribute.shape != self._shape:
            return None
        value = np.empty(self._shape, self._dtype)
        attribute.read(value)
        return value.tobytes()

    def add_many(self, values: NDArray[np.uint8]) -> None:
        """Values of the first one's type and shape, as bytes, shape (values, bytes of one)."""
        self._bytes += self._in_type(values.view(self._stored))

    def values(self, samples: int) -> AnyArray:
        return np.frombuffer(bytes(self._bytes), self._dtype).reshape(samples, *self._shape)


def _found(file: h5py.File, wanted: Wanted, headers: HeaderReader | None) -> Iterator[_Sample | _Samples | _Bad]:
    seen: set[tuple[int, int]] = set()
    for name in wanted.groups:
        group = file.get(name) if name else file
        if not isinstance(group, h5py.Group):
            raise SourceError(f"{_WHAT}: {file.filename!r} has no group {name!r}{nearest(name, file)}{_held(file)}")
        yield from _walk(group, name.strip("/"), wanted, headers, seen)


def first_sample(group: h5py.Group, datasets: Sequence[str]) -> h5py.HLObject | None:
    """The first data set, or group with `datasets`, at or below `group` by whatever links; raises SourceError."""
    wanted = Wanted({path: path for path in datasets} or {"": ""}, {}, ())
    found = next(_walk(group, group.name.strip("/"), wanted, None, set()), None)
    if isinstance(found, _Bad):
        raise SourceError(found.text)
    return found.entry if isinstance(found, _Sample) else None


def _walk(
    group: h5py.Group, name: str, wanted: Wanted, headers: HeaderReader | None, seen: set[tuple[int, int]]
) -> Iterator[_Sample | _Samples | _Bad]:
    """The samples at and below `group`, in natural order; a group that is linked more than once is entered once."""
    info = h5py.h5o.get_info(group.id)
    if (info.fileno, info.addr) in seen:
        return
    seen.add((info.fileno, info.addr))
    if wanted.in_groups:
        missing = [path for path in wanted.data.values() if path not in group]
        if not missing:
            yield _Sample(name, group, -1)
            return
        if len(missing) < len(wanted.data):
            yield _Bad(name, f"{_WHAT}: {group.file.filename}:{name} lacks {', '.join(missing)}{_held(group)}")
            return
    for members, addresses, read in _in_runs(_links(group), headers):
        paths = [f"{name}/{member}" if name else member for member in members]
        if read is not None:
            yield _Samples(paths, read)
            continue
        for path, member, address in zip(paths, members, addresses, strict=True):
            try:
                entry = _open(group, member, path)
            except SourceError as error:
                if wanted.in_groups:  # it need not be a sample
                    raise
                yield _Bad(path, str(error))
                continue
            if isinstance(entry, h5py.Group):
                yield from _walk(entry, path, wanted, headers, seen)
            elif isinstance(entry, h5py.Dataset) and not wanted.in_groups:
                yield _Sample(path, entry, address)


def _in_runs(
    links: Mapping[str, int], headers: HeaderReader | None
) -> Iterator[tuple[list[str], list[int], Found | None]]:
    """The members in natural order, with their addresses; together those whose headers were read, or were not."""
    ordered = sorted(links, key=natural_key)
    for first in range(0, len(ordered), _MEMBERS_AT_ONCE):
        members = ordered[first : first + _MEMBERS_AT_ONCE]
        addresses = [links[member] for member in members]
        found = headers.read(np.array(addresses)) if headers else None
        if found is None:
            yield members, addresses, None
            continue
        edges = np.flatnonzero(np.diff(found.understood)) + 1
        for start, stop in itertools.pairwise([0, *edges.tolist(), len(members)]):
            here = slice(start, stop)
            yield members[here], addresses[here], found.part(here) if found.understood[start] else None


def _links(group: h5py.Group) -> dict[str, int]:
    """The group's members, and where their headers are; -1 for a link that says it by name."""
    links: dict[str, int] = {}

    def note(name: bytes, info: h5py.h5l.LinkInfo) -> None:
        links[name.decode(errors="surrogateescape")] = info.u if info.type == h5py.h5l.TYPE_HARD else -1

    group.id.links.iterate(note, info=True)
    return links


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
