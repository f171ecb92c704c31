"""HDF5 with one data set, or one group of data sets, per sample: found by an index, read by file offset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...workers.api import (
    AnyArray,
    ArraySpec,
    IndexArray,
    Outlier,
    Paths,
    Positive,
    RaggedRows,
    Rows,
    Tops,
    check_options,
    chosen,
)
from ...workers.base import BlobfeedError, ParameterError, SourceError, text_digest
from ..files import FileStamp, Locking, Stamp, as_bytes, kept, list_hdf5_files, locate_part, stamp_of, stretches
from ..stored import LIBRARY_MODULE, ArrayOptions, FileStore, stored_table
from ..table import Column, OutRows, RecordError, Table, WindowOptions
from .index import IndexedData, SamplesIndex, Wanted
from .progress import Progress

_WHAT = "source hdf5_samples"
_DATA = "data"


class HDF5SamplesOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {hdf5_samples: …}`.

    path: an HDF5 file, a list of them, a glob, or a text file that lists them.
    groups: only what lies in these groups, at any depth; without it everything in the file.
    datasets: if a sample is a group of several data sets, their paths in it; each is a top. Without it each data set is
        a sample, and the top "data".
    labels: attributes of a sample that are tops, as a list of names or a mapping from top to attribute; without it the
        tops that are no data set. They are looked for on the data set or group, then on the group's data sets.
    max_length: if shapes differ, the largest extent of an axis that differs; a larger sample is an error, or replaced
        by `on_error: replace`. Without it there is room for the largest.
    limit: only the first so many samples.
    locking: whether files are locked while open; false for network file systems that cannot lock.
    allow_external: whether external links, external storage and virtual data sets may lead out of the file's folder. A
        file from somebody else could name any file of the machine.
    open_files: files that each loader keeps open at a time; without it a quarter of its descriptors, from 16 to 4,096.
    window: samples are windows of several rows, none beyond its data set; see `window` above. Without boundaries.
    """

    path: Paths
    groups: tuple[str, ...] = ("",)
    datasets: tuple[str, ...] = ()
    labels: tuple[str, ...] | dict[str, str] = ()
    max_length: Positive | None = None
    limit: Positive | None = None
    locking: Locking = None
    allow_external: bool = False
    open_files: Positive | None = None
    window: WindowOptions | None = None


def open_hdf5_samples(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """Samples that are a data set, or a group of data sets, each, in natural order (trajectory_2 before trajectory_10).

    What lies in one piece is read by its offset in the file, the rest by h5py. If shapes differ between samples, the
    spec varies and has the largest extents.
    `options`: the fields of HDF5SamplesOptions. `tops`: which of "data" (or `datasets`) and labels, in order.
    """
    checked = check_options(options, HDF5SamplesOptions, _WHAT)
    wanted, window = _wanted(checked, tops), checked.window
    stamps = [stamp_of(path) for path in list_hdf5_files(checked.path, base_dir, _WHAT)]
    index = _make_index(stamps, wanted, checked)
    order = tuple(tops or (*wanted.data, *wanted.labels))
    if window is not None:
        _require_all_good(index)
        return _windows(index, stamps, checked, window, order)
    others = [stamp for stamps in index.others for stamp in stamps]
    index = replace(index, data={top: data.up_to(checked.max_length) for top, data in index.data.items()})
    samples = IndexedSamples(index, stamps, FileStore([*stamps, *others], checked.locking, checked.open_files))
    return Table(
        "hdf5_samples",
        [samples],
        tops=order,
        held_in=stamps[0].path,
        where=samples.where,
        options=(wanted, checked.allow_external),
        check=partial(_require_all_good, index),
    )


def _require_all_good(index: SamplesIndex) -> None:
    for text in index.bad.values():
        raise SourceError(text)


class IndexedSamples(Column):
    """The tops of the samples of `index`: data sets in the files `stamps`, and labels, which the index has."""

    may_be_empty = True

    def __init__(self, index: SamplesIndex, stamps: Sequence[Stamp], files: FileStore) -> None:
        self._index, self._stamps, self._files = replace(index, data={}, labels={}), stamps, files
        self._numbers = np.array([files.number(stamp) for stamp in stamps[: len(index.starts) - 1]])
        self.samples = len(index)
        self.stores = (files,)
        self.options = [stamp.path for stamp in stamps]
        begins = files.starts[self._numbers].repeat(np.diff(index.starts))
        self._choose({top: data.from_byte(begins) for top, data in index.data.items()}, index.labels)

    def _choose(self, data: Mapping[str, IndexedData], labels: Mapping[str, AnyArray]) -> None:
        """Read these tops. In `data` offsets are addresses: to add the start of each file took 4 % of a read."""
        self._data, self._labels = data, labels
        self.specs = {top: each.spec for top, each in data.items()} | {
            top: ArraySpec(values.shape[1:], values.dtype) for top, values in labels.items()
        }
        shapes = {top: each.shapes for top, each in data.items() if each.shapes is not None and len(each.shapes)}
        self.outliers = {
            top: Outlier.of(each.prod(axis=1, dtype=np.int64))
            for top, each in shapes.items()
            if (each <= data[top].shape).all()  # else max_length has made the room smaller
        }
        self._by_library = {top for top, each in data.items() if each.needs_library}
        self.stores_rows = not self._by_library
        self.modules = (LIBRARY_MODULE,) if self._by_library else ()

    def only(self, tops: Collection[str]) -> Column:
        column = copy(self)
        column._choose(
            {top: data for top, data in self._data.items() if top in tops},
            {top: values for top, values in self._labels.items() if top in tops},
        )
        return column

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        for bad in self._index.bad.keys() & indices.tolist() if self._index.bad else ():
            raise RecordError(bad) from ValueError(self._index.bad[bad].removeprefix(f"{_WHAT}: "))
        for top, values in self._labels.items():
            if top in out:
                out[top][positions] = values[indices]
        if len(self._numbers) == 1:  # to look for the file of each sample takes 5 µs
            self._files.use(self._numbers.tolist())
        else:
            parts = np.searchsorted(self._index.starts, indices, side="right") - 1
            self._files.use(np.bincount(self._numbers[parts]).nonzero()[0].tolist())
        for top, data in self._data.items():
            if top not in out:
                continue
            samples, at = indices, positions
            if top in self._by_library:
                direct = data.offsets[indices] >= 0
                samples, at = indices[direct], positions[direct]
                for member in np.flatnonzero(~direct).tolist():
                    self._read_by_library(data, int(indices[member]), int(positions[member]), out[top])
            self._read_direct(data, samples, at, out[top])

    def _read_direct(self, data: IndexedData, indices: IndexArray, positions: IndexArray, rows: Any) -> None:
        """Read samples that lie in one piece."""
        addresses = data.offsets[indices]
        if isinstance(rows, RaggedRows):
            assert data.shapes is not None
            shapes = data.shapes[indices].tolist()
            for address, position, shape in zip(addresses.tolist(), positions.tolist(), shapes, strict=True):
                sample = rows.reserve(position, shape)
                if sample.size:
                    self._files.copy_into(address, sample.reshape(-1).view(np.uint8).data)
                if not data.dtype.isnative:
                    sample.byteswap(inplace=True)
            return
        self._files.gather(addresses, positions, as_bytes(rows))
        if not data.dtype.isnative:  # in place: to gather the rows again takes ten times as long
            for start, stop in stretches(positions, positions, 1):
                rows[positions[start] : positions[start] + stop - start].byteswap(inplace=True)

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        found = []
        for data in self._data.values():
            samples = indices[data.offsets[indices] >= 0]  # the library reads the others
            found.append(self._files.will_need_at(data.offsets[samples], data.sizes(samples), now=now))
        return all(found)

    def _read_by_library(self, data: IndexedData, index: int, position: int, rows: Rows) -> None:
        from ..stored.hdf5_library import find_dataset, read_dataset

        name, number = self._index.name(index), locate_part(self._index.starts, index)[0]
        self._files.watch(map(self._files.number, self._index.others[-1 - data.offsets[index]]))
        try:
            file = self._files.open(int(self._numbers[number])).library
            dataset = find_dataset(file, f"{name}/{data.path}" if data.path else name)
            sample = read_dataset(dataset, self.where(index))
            data.require_as_scanned(index, sample)
            if isinstance(rows, RaggedRows):
                rows.put(position, sample)
            else:
                rows[position] = sample
        except Exception as error:
            self._files.finish()  # it may be why
            if isinstance(error, BlobfeedError):
                raise
            raise SourceError(f"{self.where(index)}: reading the sample failed: {error}") from error

    def where(self, index: int) -> str:
        """Return the file of sample `index`, and its name in there."""
        number, _ = locate_part(self._index.starts, index)
        return f"{self._stamps[number].path}:{self._index.name(index)}"


def _windows(
    index: SamplesIndex,
    stamps: Sequence[Stamp],
    options: HDF5SamplesOptions,
    window: WindowOptions,
    order: Sequence[str],
) -> Table:
    """The table of windows: each data set is a sequence of steps, and its labels are those of each of its steps."""
    if window.boundaries is not None:
        raise ParameterError(
            f"{_WHAT}: parameter 'window.boundaries' is {window.boundaries!r}, and here each data set is a sequence of "
            "its own: leave it out"
        )
    files = np.searchsorted(index.starts, np.arange(len(index)), side="right") - 1
    tops = {
        top: [index.array(data, number, stamps[file]) for number, file in enumerate(files.tolist())]
        for top, data in index.data.items()
        if data.shape
    }
    if without := index.data.keys() - tops.keys():
        raise SourceError(
            f"{_WHAT}: the samples of {min(without)!r} are single values, which have no steps for windows"
        )
    ends = np.cumsum([array.samples for array in next(iter(tops.values()))])
    return stored_table(
        "hdf5_samples",
        tops,
        ArrayOptions(window=window, limit=options.limit),
        lambda _: (),
        locking=options.locking,
        open_files=options.open_files,
        columns=[Repeated(index.labels, ends)] if index.labels else (),
        order=order,
    )


class Repeated(Column):
    """Values of sequences, for each of their steps. `ends`: the step behind each sequence."""

    stores_rows = True
    reads_ahead = False
    may_be_empty = True

    def __init__(self, values: Mapping[str, AnyArray], ends: IndexArray) -> None:
        self._values, self._ends, self.samples = values, ends, int(ends[-1])
        self.options = text_digest(repr([(top, each.tobytes()) for top, each in values.items()]))
        self.specs = {top: ArraySpec(each.shape[1:], each.dtype) for top, each in values.items()}

    def only(self, tops: Collection[str]) -> Column:
        return Repeated({top: values for top, values in self._values.items() if top in tops}, self._ends)

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        numbers = np.searchsorted(self._ends, indices, side="right")
        for top, values in self._values.items():
            if top in out:
                out[top][positions] = values[numbers]


def _wanted(options: HDF5SamplesOptions, tops: Tops) -> Wanted:
    """Return what the scan looks for. Tops that are no data set are attributes, which `labels` may rename."""
    data = {path: path.strip("/") for path in options.datasets} or {_DATA: ""}
    if isinstance(options.labels, dict):
        labels = dict(options.labels)
    else:
        labels = {name: name for name in options.labels or (top for top in tops or () if top not in data)}
    if twice := data.keys() & labels.keys():
        raise ParameterError(
            f"{_WHAT}: parameter 'labels' has {min(twice)!r}, which is the name of a data top; give the label another "
            "name, such as {label: attribute}"
        )
    wanted = chosen(dict.fromkeys((*data, *labels)), tops, _WHAT)
    return Wanted(
        # Samples are found by their data, also if only labels are read.
        {top: path for top, path in data.items() if top in wanted} or data,
        {top: name for top, name in labels.items() if top in wanted},
        options.groups,
        None if options.window else options.limit,  # which counts windows then
    )


def _make_index(stamps: Sequence[Stamp], wanted: Wanted, options: HDF5SamplesOptions) -> SamplesIndex:
    def scanned() -> SamplesIndex:
        from .scan import Scan  # it imports h5py, which is not needed if the index is kept and all is read directly

        with Progress() as progress:
            scan = Scan(wanted, progress)
            for stamp in stamps:
                scan.add_file(stamp, options.locking, allow_external=options.allow_external)
        return scan.index()

    return kept("hdf5_samples", stamps, (wanted, options.allow_external), SamplesIndex, scanned, _if_unchanged)


def _if_unchanged(index: SamplesIndex) -> SamplesIndex | None:
    """The index with the other files as they are now, None if one of them was changed since it was scanned."""
    try:
        now = tuple(tuple(FileStamp.of(stamp.path) for stamp in stamps) for stamps in index.others)
    except OSError:
        return None  # a scan says what is missing
    return replace(index, others=now) if _exact(now) == _exact(index.others) else None


def _exact(files: Sequence[Sequence[FileStamp]]) -> list[list[object]]:
    return [[stamp.exact for stamp in stamps] for stamps in files]
