"""The one class of sources with indices: named columns over stores. Everything that kinds have in common is here."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ...workers.api import (
    AnyArray,
    ArraySpec,
    Boxes,
    IndexArray,
    NamedRows,
    Needs,
    Outlier,
    Source,
    Tops,
    allocate_rows,
    chosen,
    is_ours,
)
from ...workers.base import SourceError, text_digest
from ..files import CONNECTIONS, Store, digest, distinct, require_in_range
from .columns import Column, RecordError, Records, Views
from .memory import Memory
from .naming import sample_error
from .windows import Sequences, WindowOptions, WindowPlaces, sequence_ends, windows_of

_ENOUGH_ROWS = 64
_REMEMBERED = 4
_ROWS_A_WAIT = 32
_BLOCKS_A_PAGE = 8


class Table(Source):
    """Samples whose arrays are the tops of `columns`; all columns have the same length.

    A kind of source is a function that finds its columns and returns a Table; length, specs, reading, lending,
    read-ahead, fingerprints, the naming of bad samples, closing and pickling are the table's.

    `kind`: the key under `source:`. `held_in`: the file or folder that the user named; `where`: the place of sample
    `index`, by default `held_in[index]`. `tops`: the tops to read, in order; None for all. `what`: begins the message
    about an unknown top. `limit`: only the first so many samples. `options`: what else decides the samples, without
    paths, for fingerprints and states; its `repr` counts. `check`: as check_samples. `corners`: as Source.corners.

    Raises ParameterError for an unknown top, SourceError if there are no samples, if columns differ in length, or if
    samples are empty.
    """

    def __init__(
        self,
        kind: str,
        columns: Sequence[Column],
        *,
        held_in: str,
        where: Callable[[int], str] | None = None,
        tops: Tops = None,
        what: str = "",
        limit: int | None = None,
        options: object = (),
        check: Callable[[], None] | None = None,
        corners: Callable[[IndexArray], Mapping[str, IndexArray]] | None = None,
    ) -> None:
        self.kind, self._corners = kind, corners
        self._held_in = held_in
        self._where, self._check = where, check
        known = {top: column for column in columns for top in column.specs}
        wanted = chosen(known, tops, what or f"source {kind}")
        self._columns = columns = [
            column.only([top for top in wanted if top in column.specs])
            for column in columns
            if any(top in column.specs for top in wanted)
        ]
        by_top = {top: column for column in columns for top in column.specs}
        self._specs = {top: by_top[top].specs[top] for top in wanted}
        self._options = options
        self._stores = [*dict.fromkeys(store for column in columns for store in column.stores)]
        self._samples = self._common_length({top: len(by_top[top]) for top in wanted}, limit)
        for top, spec in self._specs.items():
            if not spec.varies and not spec.nbytes and not by_top[top].may_be_empty:
                raise SourceError(f"source {kind}: samples of {top!r} are empty: their shape is {spec.shape}")
        self._parts: list[Column | Store[Any]] = [*columns, *self._stores]
        self.modules = tuple(dict.fromkeys(name for part in self._parts for name in part.modules))
        self.descriptors = tuple(dict.fromkeys(number for store in self._stores for number in store.descriptors))
        self._is_remote = any(store.is_remote for store in self._stores)
        if self._is_remote:
            self.rows_at_once = CONNECTIONS
        # Bound once: rows of 784 bytes are read in less time than their methods would be looked up in.
        self._reads = tuple(column.read for column in columns)
        self._begins = tuple(store.begin for store in self._stores)
        self._finishes = tuple(store.finish for store in self._stores)
        self._ahead = tuple(column.will_need for column in columns if column.reads_ahead)
        self._announcements = _Announcements()

    @property
    def own_arrays(self) -> Mapping[str, AnyArray]:
        """The arrays that the table has copied into memory, by name."""
        copied = [store.arrays for store in self._stores if isinstance(store, Memory)]
        return {name: array for arrays in copied for name, array in arrays.items()}

    def windows(
        self, options: WindowOptions, boundaries: Table | None = None, limit: int | None = None, axis: str = "0"
    ) -> Table:
        """Return the table whose samples are windows over the samples of this one.

        `boundaries`: the table of the array that `options` names. `limit`: only the first so many windows. `axis`: the
        name of the axis that counts the samples.
        Raises SourceError for boundaries that are none, and if no sequence is as long as a window.
        """
        what, files = f"source {self.kind}", self._columns[0].part_ends
        ends = [column.part_ends for column in self._columns]
        if boundaries is not None:
            rows = allocate_rows(boundaries.specs, len(boundaries))
            boundaries.read(np.arange(len(boundaries)), rows)
            boundaries.close()
            (values,) = rows.values()
            found = f"{what}: the boundaries {options.boundaries!r}"
            ends.append(sequence_ends(np.asarray(values), boundaries._columns[0].part_ends, files, found))
        sequences = Sequences(distinct(np.concatenate(ends)), options.length, options.stride, what)
        places = WindowPlaces(self.where, sequences, options.length, axis)
        return Table(
            self.kind,
            windows_of(self._columns, [*self._specs], options, sequences, what),
            held_in=self._held_in,
            where=places,
            corners=places.by_axis,
            tops=[*self._specs],
            limit=limit,
            options=(self._options, options, sequences.digest),
        )

    def _common_length(self, lengths: Mapping[str, int], limit: int | None) -> int:
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{top} has {length}" for top, length in lengths.items())
            raise SourceError(
                f"source {self.kind}: the tops differ in length: {said}; each needs one entry per sample: name those "
                "of one length in 'tops'"
            )
        length = min(lengths.values())
        if not length:
            raise SourceError(f"source {self.kind}: no samples: {self._held_in} is empty")
        return min(limit or length, length)

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    # ---- reading

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        self.read_at(indices, np.arange(len(indices)), out)

    def read_at(self, indices: IndexArray, positions: IndexArray, out: NamedRows) -> None:
        require_in_range(indices, self._samples)
        for begin in self._begins:
            begin()
        if self._is_remote:  # all columns at the same time
            for column in self._columns:
                column.will_need(indices, now=True)
        elif self._ahead:  # the first task of a loader was not announced before
            self._announce(indices)
        reads = self._reads
        if len(out) < len(self._specs):
            reads = tuple(column.read for column in self._columns if any(top in out for top in column.specs))
        try:
            for read in reads:
                read(indices, positions, out)
        except RecordError as error:
            self._raise_named(error)
        self._finish(len(indices))

    @property
    def cuts(self) -> Collection[str]:
        return {top for column in self._columns for top in column.cuts}

    def read_parts(self, indices: IndexArray, parts: Mapping[str, Boxes], out: NamedRows) -> None:
        require_in_range(indices, self._samples)
        for begin in self._begins:
            begin()
        if self._is_remote:  # all columns at the same time
            self._announce_parts(indices, parts, now=True)
        try:
            for column in self._columns:
                column.read_parts(indices, parts, np.arange(len(indices)), out)
        except RecordError as error:
            self._raise_named(error)
        self._finish(len(indices))

    def will_need_parts(self, indices: IndexArray, parts: Mapping[str, Boxes]) -> None:
        for begin in self._begins:
            begin()
        if self._is_remote or self._announcements.are_due(indices):
            in_memory = self._announce_parts(indices, parts)
            self._announcements.note_announced(len(indices), in_memory=in_memory)

    def _announce_parts(self, indices: IndexArray, parts: Mapping[str, Boxes], *, now: bool = False) -> bool:
        found = [column.will_need_parts(indices, parts, now=now) for column in self._columns]
        return all(found)

    def _finish(self, rows: int) -> None:
        """Note that `rows` were read; the stores look whether what they were read from has changed."""
        if self._ahead:
            self._announcements.note_read(rows)
        for finish in self._finishes:
            finish()

    def lend_needed(self, indices: IndexArray, needs: Needs) -> Views:
        return self.lend(indices, needs)

    def lend(self, indices: IndexArray, needs: Needs | None = None) -> Views:
        require_in_range(indices, self._samples)
        for begin in self._begins:
            begin()
        found: list[Any] = []
        for column in self._columns:
            is_first = next(iter(column.specs)) == next(iter(self._specs))
            if (views := column.lend(indices, needs if is_first else None)) is None:
                return None
            found.append(views)
        if self._is_remote:
            for column in self._columns:
                column.will_need(indices, now=True)
        elif self._ahead:
            self._announce(indices)
        samples = self._merged(found, len(indices))
        return list(samples) if all(isinstance(views, Sequence) for views in found) else samples

    def _merged(self, found: Sequence[Iterable[Mapping[str, AnyArray]]], rows: int) -> Iterator[Mapping[str, AnyArray]]:
        try:
            for parts in zip(*found, strict=True):
                arrays = {top: array for part in parts for top, array in part.items()}
                yield {top: arrays[top] for top in self._specs}
        except RecordError as error:
            self._raise_named(error)
        self._finish(rows)

    def will_need(self, indices: IndexArray) -> None:
        require_in_range(indices, self._samples)
        for begin in self._begins:
            begin()
        self._announce(indices)

    def _announce(self, indices: IndexArray) -> None:
        if self._ahead and (self._is_remote or self._announcements.are_due(indices)):
            in_memory = [will_need(indices) for will_need in self._ahead]
            self._announcements.note_announced(len(indices), in_memory=all(in_memory))

    def _raise_named(self, error: RecordError) -> NoReturn:
        cause = error.__cause__
        assert cause is not None
        where = self.where(error.index)
        path = error.path or where
        named = sample_error(cause, self.kind, self._held_in, error.index, where + error.member, path)
        raise named from named.__cause__

    def record(self, top: str, index: int) -> bytes:
        """Return the record that holds `top` of sample `index` as it is stored; raises SampleError.

        Only for a top of a column of records.
        """
        column = next(column for column in self._columns if top in column.specs)
        assert isinstance(column, Records)
        try:
            return column.record(index)
        except RecordError as error:
            self._raise_named(error)

    # ---- what is read

    def where(self, index: int) -> str:
        return self._where(index) if self._where else f"{self._held_in}[{index}]"

    def corners(self, indices: IndexArray) -> Mapping[str, IndexArray]:
        return super().corners(indices) if self._corners is None else self._corners(indices)

    @property
    def runs_user_code(self) -> bool:
        return not all(map(is_ours, (self, *self._parts, self._where or self)))

    @property
    def in_memory(self) -> bool:
        memory = bool(self._stores) and all(isinstance(store, Memory) for store in self._stores)
        return memory and not self.runs_user_code

    @property
    def stores_rows(self) -> bool:
        return not self._is_remote and all(column.stores_rows for column in self._columns)

    @property
    def gathered(self) -> Collection[str]:
        return {top for column in self._columns for top in column.gathered if top in self._specs}

    @property
    def chunk_samples(self) -> int | None:
        """Samples in a chunk of the top with the largest samples, if a chunk is decoded as a whole."""
        return self._largest.chunk_samples

    @property
    def chunks_are_cheap(self) -> bool:
        return self._largest.chunks_are_cheap

    @property
    def outliers(self) -> Mapping[str, Outlier]:
        found = {top: outlier for column in self._columns for top, outlier in column.outliers.items()}
        return {top: found[top] for top in self._specs if top in found and found[top].index < len(self)}

    @property
    def _largest(self) -> Column:
        return max(self._columns, key=lambda column: max(spec.nbytes for spec in column.specs.values()))

    def _content(self) -> dict[str, str]:
        known: dict[str, list[str]] = {}
        for store in self._stores:
            for name, text in store.content(every=False).items():
                known.setdefault(name, []).append(text)
        return {name: "; ".join(texts) for name, texts in known.items()} | {"options": digest(self._options)}

    def fingerprint(self) -> str:
        stores = [store.content(every=True) for store in self._stores]
        specs = [(top, str(spec)) for top, spec in self._specs.items()]
        decided = self._samples, self._options, [column.options for column in self._columns]
        return f"{self.kind}:{text_digest(repr((stores, specs, decided)))}"

    def check_samples(self) -> None:
        if self._check:
            self._check()

    def close(self) -> None:
        # Setup reads one sample again and again, which says nothing about the rows of the run.
        self._announcements = _Announcements()
        for part in self._parts:
            part.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_announcements": None, "_check": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _announcements=_Announcements())


class _Announcements:
    """The samples that are announced to the kernel before they are read: one for all files of a source in a process.

    Tasks are announced, and each row is looked at, until so many rows in a row were found in the page cache: a look
    costs 1 µs, and a row of 784 bytes is read in a fifth of that. A read that waits for the disk for more than
    one row in 32 begins this anew. To look at a few rows of each task is not enough: of a file that is half in memory
    they may say that all of it is.
    """

    def __init__(self) -> None:
        self.warm = False
        self._found = 0
        self._announced: deque[tuple[int, int, int]] = deque(maxlen=_REMEMBERED)
        self._waits = _disk_waits()

    def are_due(self, indices: IndexArray) -> bool:
        """Return true if these samples are to be announced: a task that comes later, or the one that is read next."""
        if self.warm or not len(indices):
            return False
        name = len(indices), int(indices[0]), int(indices[-1])
        if name in self._announced:
            self._announced.remove(name)
            return False
        self._announced.append(name)
        return True

    def note_announced(self, rows: int, *, in_memory: bool) -> None:
        """`rows` were looked at; what the kernel reads of them is no wait of ours."""
        self._found = self._found + rows if in_memory else 0
        self.warm = self._found >= _ENOUGH_ROWS
        self._waits = _disk_waits()

    def note_read(self, rows: int) -> None:
        """`rows` were read: if more than a few of them waited for the disk, the next ones are announced again.

        A few pages are always missing, on a virtual machine whose host takes them away. To wait for one takes as long
        as to look at a hundred rows.
        """
        waits, self._waits = self._waits, _disk_waits()
        if (self._waits - waits) * _ROWS_A_WAIT > rows:
            self._found, self.warm = 0, False


def _disk_waits() -> int:
    """Page faults of this thread that went to the disk, and pages that its own calls had the disk read."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_majflt + used.ru_inblock // _BLOCKS_A_PAGE
