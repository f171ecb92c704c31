"""The columns of a table: values in memory, and records that are parsed once for all of their tops."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from ...workers.api import AnyArray, ArraySpec, Boxes, ConvertedRows, IndexArray, Needed, Needs, Outlier, RaggedRows
from ...workers.base import SampleTooLargeError
from ..files import Place, Store, as_bytes, gather_rows
from .memory import Memory

_Record = TypeVar("_Record")

NeedsOfRow = Callable[[tuple[int, int]], Needed]
"""The needs of one row: takes the (height, width) alone."""

View = Callable[[_Record, NeedsOfRow | None], AnyArray]

OutRows = Mapping[str, Any]
"""Rows by name. Those of a top that the column's `gathered` names may also be ConvertedRows."""

Views = Iterator[Mapping[str, AnyArray]] | Sequence[Mapping[str, AnyArray]] | None


class RecordError(Exception):
    """Sample `index` cannot be read; the table names it. `__cause__`: why. `member`, `path`: where in the sample."""

    def __init__(self, index: int, member: str = "", path: str = "") -> None:
        super().__init__(index)
        self.index = index
        self.member = member
        self.path = path


class Column(ABC):
    """One top of a table, or several that lie together. All methods take sample indices that the table has checked.

    `samples`: their number. `specs`: the shape and type of each top. `stores`: what the table opens, checks, names
    in fingerprints and closes. `modules`: what reading imports beside the stores' modules. `options`: what else decides
    the values on this machine, for fingerprints; its `repr` counts. `stores_rows`, `chunk_samples`, `chunks_are_cheap`,
    `outliers`: as in Source.
    """

    samples: int
    specs: Mapping[str, ArraySpec]
    stores: tuple[Store[Any], ...] = ()
    modules: tuple[str, ...] = ()
    options: object = ()
    stores_rows: bool = False
    chunk_samples: int | None = None
    chunks_are_cheap: bool = False
    outliers: Mapping[str, Outlier] = {}
    may_be_empty: bool = False
    """True if a top may have the size 0, as an attribute of no numbers."""
    reads_ahead: bool = True
    """False if `will_need` has nothing to announce."""

    def __len__(self) -> int:
        return self.samples

    @property
    def gathered(self) -> Collection[str]:
        """The tops whose rows may also be ConvertedRows, as in Source."""
        return ()

    @abstractmethod
    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        """Write sample indices[i] into row positions[i] of each of this column's tops in `out`, for all i.

        `indices`, `positions`: shape (rows,) int64; the positions ascend. `out` has rows of other columns as well, and
        may lack some of this column's tops, but not all.
        Raises RecordError for a sample that cannot be read, SourceError for a file.
        """

    def only(self, tops: Collection[str]) -> Column:
        """Return the column that reads these of its tops alone.

        Called when a table, or windows over its columns, are made; possibly on a column that `only` gave.
        """
        return self

    @property
    def part_ends(self) -> IndexArray:
        """The sample behind the last one of each file, shape (files,): windows do not cross them."""
        return np.array([len(self)])

    def spanned(self, length: int) -> Column | None:
        """Return the column whose sample i has samples i … i + length - 1 of this one, which lie behind each other.

        None if they do not. It is asked only for such i that these lie in one file.
        """
        return None

    @property
    def cuts(self) -> Collection[str]:
        """The tops of which boxes are read in less time than whole samples, as Source.cuts."""
        return ()

    def read_parts(self, indices: IndexArray, parts: Mapping[str, Boxes], positions: IndexArray, out: OutRows) -> None:
        """Write as `read`; of a top in `parts` that is among `cuts`, only that box of each sample."""
        self.read(indices, positions, out)

    def will_need_parts(self, indices: IndexArray, parts: Mapping[str, Boxes], *, now: bool = False) -> bool:
        """Start reading ahead what `read_parts` will read, as `will_need`."""
        return self.will_need(indices, now=now)

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        """Start reading ahead, without waiting; return true if all of it was in memory already.

        `now`: these samples are read next, so all requests to object storage are made. Else some may not be made, if
        enough has been announced.
        """
        return True

    def lend(self, indices: IndexArray, needs: Needs | None = None) -> Views:
        """Return views of these samples, as Source.lend and lend_needed do; None if they must be read.

        `needs` is for the first top alone.
        """
        return None

    def close(self) -> None:  # noqa: B027 - stores are closed by the table
        """Drop decoders and the like."""


class Resident(Column):
    """One top, whose values are the array `name` of `memory`, shape (samples, …).

    `span`: the number of values in a sample, if they are windows, each of which begins one value behind the one before.
    """

    stores_rows = True
    reads_ahead = False

    def __init__(self, top: str, memory: Memory, name: str = "", span: int = 0) -> None:
        self._top, self._memory, self._name, self._span = top, memory, name or top, span
        values = memory[self._name]
        self.samples = len(values)
        self.stores = (memory,)
        self._items = math.prod(values.shape[1:])
        self.specs = {top: ArraySpec((span, *values.shape[1:])[not span :], values.dtype)}

    @property
    def gathered(self) -> Collection[str]:
        return (self._top,) if self.specs[self._top].dtype == np.uint8 else ()

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        values, rows = self._memory[self._name], out[self._top]
        if isinstance(rows, ConvertedRows):
            rows.take(values.reshape(-1), indices * self._items, positions)
        elif self._span:
            memory = values.reshape(-1).view(np.uint8)
            gather_rows(memory, indices * (self._items * values.itemsize), positions, as_bytes(rows))
        elif not len(positions) or int(positions[-1]) - int(positions[0]) >= len(positions):
            rows[positions] = values[indices]
        else:
            first = int(positions[0])
            # "raise" would go through a buffer.
            values.take(indices, axis=0, out=rows[first : first + len(positions)], mode="clip")

    def spanned(self, length: int) -> Column | None:
        return Resident(self._top, self._memory, self._name, length)

    def lend(self, indices: IndexArray, needs: Needs | None = None) -> Views:
        values = self._memory[self._name]
        return [{self._top: values[index, ...]} for index in indices.tolist()]


@dataclass(frozen=True)
class Field(Generic[_Record]):
    """One top of a record.

    `put(record, row, rows)` writes it into row `row`, or raises ValueError or SampleTooLargeError. `view(record,
    needs)`, if the column is to lend samples, returns it as an array of the spec's type, in any memory; unless `needs`
    is None, as Source.lend_needed does. `modules`, `options`: as in
    Column.
    """

    spec: ArraySpec
    put: Callable[[_Record, int, Any], None]
    view: View[_Record] | None = None
    modules: tuple[str, ...] = ()
    options: object = ()


class Records(Column, Generic[Place, _Record]):
    """Samples that are records: a place in a store → its bytes → parsed once → one row of each top.

    `fields`: the tops that are made of a record. `place`: gives the place of sample `index`; without it the index is
    the place. `parse`: turns the bytes of sample `index` into a record, which is valid until the next one; without it
    the bytes are the record. `path`, `member`: for SampleError. path(index) names the file of the sample.
    member(index, top) names the part of the sample that the top is made of; the top is "" if reading or parsing failed.
    `others`: further stores that hold what `place` and `parse` need.

    Any error of these functions, or of the store, becomes a RecordError. The table makes a SampleError of an OSError,
    ValueError, EOFError, MemoryError or SourceError, and raises any other error as it is.
    """

    def __init__(
        self,
        store: Store[Place],
        samples: int,
        fields: Mapping[str, Field[_Record]],
        *,
        place: Callable[[int], Place] | None = None,
        parse: Callable[[bytes, int], _Record] | None = None,
        path: Callable[[int], str] | None = None,
        member: Callable[[int, str], str] | None = None,
        others: Sequence[Store[Any]] = (),
        modules: Sequence[str] = (),
    ) -> None:
        self.stores = (store, *others)
        self.modules = (*modules, *(name for field in fields.values() for name in field.modules))
        self.options = [field.options for field in fields.values()]
        self.specs = {top: field.spec for top, field in fields.items()}
        self._store = store
        self.samples = samples
        self._place: Callable[[int], Any] = place or int
        self._parse: Callable[[bytes, int], Any] = parse or _as_it_is
        self._fields = fields
        self._path = path
        self._member = member

    def only(self, tops: Collection[str]) -> Column:
        column = copy(self)
        column._fields = {top: field for top, field in self._fields.items() if top in tops}
        column.specs = {top: field.spec for top, field in column._fields.items()}
        return column

    def record(self, index: int) -> bytes:
        """Return the bytes of sample `index` as they are stored; raises RecordError, also if there are none."""
        try:
            if found := self._store.read(self._place(index)):
                return found
            raise ValueError("the file is empty (0 bytes)")
        except Exception as error:
            raise self._error(index) from error

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        puts = [(top, field.put, out[top]) for top, field in self._fields.items() if top in out]
        read, place, parse = self._store.read, self._place, self._parse
        index, top = -1, ""
        try:
            for index, row in zip(indices.tolist(), positions.tolist(), strict=True):
                top = ""
                record = parse(read(place(index)), index)
                for top, put, rows in puts:  # noqa: B007 - for the message
                    put(record, row, rows)
        except Exception as error:
            raise self._error(index, top) from error

    def lend(self, indices: IndexArray, needs: Needs | None = None) -> Views:
        views = {top: field.view for top, field in self._fields.items()}
        return None if None in views.values() else self._views(indices, views, needs)  # type: ignore[arg-type]

    def _views(
        self, indices: IndexArray, views: Mapping[str, View[Any]], needs: Needs | None
    ) -> Iterator[Mapping[str, AnyArray]]:
        for row, index in enumerate(indices.tolist()):
            of_row = None if needs is None else partial(needs, row)
            try:
                record = self._parse(self._store.read(self._place(index)), index)
                sample = {
                    top: view(record, None if number else of_row) for number, (top, view) in enumerate(views.items())
                }
            except Exception as error:
                raise self._error(index) from error
            yield sample

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        return self._store.will_need([self._place(index) for index in indices.tolist()], now=now)

    def _error(self, index: int, top: str = "") -> RecordError:
        member = self._member(index, top) if self._member else ""
        return RecordError(index, member, self._path(index) if self._path else "")


def put_text(text: bytes, row: int, rows: AnyArray) -> None:
    """Write `text` into row `row` of rows of bytes; raises SampleTooLargeError for one that NumPy would cut."""
    if len(text) > rows.dtype.itemsize:
        raise SampleTooLargeError(
            f"a text of {len(text)} bytes does not fit the declared maximum of {rows.dtype.itemsize}; raise max_length"
        )
    rows[row] = text


def put_bytes(data: bytes, row: int, rows: RaggedRows) -> None:
    """Write `data` as row `row`; raises SampleTooLargeError for more than it has room for."""
    try:
        rows.put(row, np.frombuffer(data, np.uint8))
    except SampleTooLargeError as error:
        raise SampleTooLargeError(f"{error} (max_length)") from None


def _as_it_is(record: bytes, _index: int) -> bytes:
    return record
