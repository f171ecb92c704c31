"""Row groups of Parquet files and record batches of Arrow files, read one by one with the wanted columns alone."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from ...workers.api import IndexArray, Outlier
from ...workers.base import BlobfeedError, SourceError
from ..files import RawFile, RemoteFile, Stamp, examined_stamp, kept
from ..stored import FileStore
from .forms import Form, described, form_of
from .values import Values

Raw = RawFile | RemoteFile

_ARROW_FILE = b"ARROW1\0\0"
_NOTHING = np.empty(0, np.uint8)
_NO_PLACES = np.empty((0, 2), np.int64)
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


class _Lengths(NamedTuple):
    """The lengths of a column's longest lists in a row group, and the row with the most items."""

    lengths: tuple[int, ...]
    largest: Outlier


class GroupFiles:
    """The row groups of all files, put end to end.

    `paths`: files or URLs. `store`: their bytes. `rows`: of each row group, int64 of shape (groups,). Raises
    SourceError for files that cannot be read.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self._stamps = [examined_stamp(path, "source parquet") for path in paths]
        self.store = FileStore(self._stamps)
        try:
            self._parts = [_examined(self._raw(stamp)) for stamp in self._stamps]
        except SourceError:
            self.store.close()
            raise
        self.rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in self._parts)])
        if not self.rows.any():
            raise SourceError(f"source parquet: no samples: {', '.join(paths)} has no rows")
        self._places: dict[int, IndexArray] = {}
        self._groups = [(file, group) for file, part in enumerate(self._parts) for group in range(len(part.rows))]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the first file. Not in a pickled copy: its types may be those of a library to be imported."""
        return self._parts[0].schema

    def choose(self, forms: Mapping[str, Form]) -> None:
        """Read the columns of these forms alone; raises SourceError for one that another file has not, or otherwise."""
        self._forms = forms
        for path, part in zip(self.paths, self._parts, strict=True):
            for name, form in forms.items():
                first, number = self.schema.field(name), part.schema.get_field_index(name)
                field = part.schema.field(number) if number >= 0 else None
                is_like_first = field and field.type == first.type and form_of(field, f"source parquet: {path}") == form
                if not is_like_first:
                    other = f"is {described(field)}" if field else "is missing"
                    raise SourceError(
                        f"source parquet: column {name!r} is {described(first)} in {self.paths[0]} and {other} in "
                        f"{path}: all files need the same columns"
                    )

    def where(self, group: int) -> str:
        file, number = self._groups[group]
        return f"{self.paths[file]} row group {number}"

    def lengths(self, name: str) -> tuple[list[int], Outlier]:
        """The lengths of a column's longest lists, from the outermost inwards, and the row with the most items.

        Each file is looked through once.
        """
        found: list[_Lengths] = []
        for file, stamp in enumerate(self._stamps):
            groups = [group for group, (number, _) in enumerate(self._groups) if number == file and self.rows[group]]
            found += kept(
                "parquet",
                [stamp],
                (name, self._forms[name].sizes),
                list[_Lengths],
                partial(self._lengths, name, groups),
            )
        rows = self.rows[self.rows > 0]
        number = max(range(len(found)), key=lambda group: found[group].largest.items)
        largest = found[number].largest
        medians = np.repeat([each.largest.median for each in found], rows)
        outlier = Outlier(int(rows[:number].sum()) + largest.index, largest.items, float(np.median(medians)))
        return [max(lengths) for lengths in zip(*(each.lengths for each in found), strict=True)], outlier

    def _lengths(self, name: str, groups: Sequence[int]) -> list[_Lengths]:
        columns = [self.decoded(group, [name])[name] for group in groups]
        return [_Lengths(values.lengths(), Outlier.of(values.sizes())) for values in columns]

    def decoded(self, group: int, columns: Collection[str] = ()) -> Mapping[str, Values]:
        """The chosen columns of a row group, or `columns` alone; raises SourceError for a damaged one."""
        file, number = self._groups[group]
        columns = columns or self._forms
        try:
            read = self._parts[file].read(self.file_of(group), number, self._parts_read(columns))
            if read.num_rows != self.rows[group]:
                raise ValueError(f"it has {read.num_rows} rows, and {self.rows[group]} by the file's metadata")
            return {name: Values(read.column(name), self._forms[name]) for name in columns}
        except BlobfeedError:
            raise
        except Exception as error:  # pyarrow has more than ValueError and OSError for what is damaged
            raise SourceError(f"{self.where(group)} cannot be decoded: {error}") from error

    def _parts_read(self, columns: Iterable[str]) -> list[str]:
        """Return the parts of these columns that are read: of pictures, the bytes and not their paths."""
        return [f"{name}.bytes" if self._forms[name].is_picture else name for name in columns]

    def file_of(self, group: int) -> Raw:
        """The open file of a row group; raises SourceError for one that was cut short."""
        stamp = self._stamps[self._groups[group][0]]
        self.store.use([self.store.number(stamp)])
        return self._raw(stamp)

    def _raw(self, stamp: Stamp) -> Raw:
        return self.store.open(self.store.number(stamp)).raw

    def will_need(self, groups: Sequence[int], *, now: bool = False) -> bool:
        """Start reading these row groups, as Column.will_need."""
        addresses, sizes = np.concatenate([_NO_PLACES, *map(self._places_of, groups)]).T
        return self.store.will_need_at(addresses, sizes, now=now)

    def _places_of(self, group: int) -> IndexArray:
        """Return the address and the size of each piece of a row group that is read."""
        if (found := self._places.get(group)) is None:
            file, number = self._groups[group]
            places = self._parts[file].places(self._raw(self._stamps[file]), number, self._parts_read(self._forms))
            start = self.store.starts[self.store.number(self._stamps[file])]
            found = self._places[group] = places + np.array([start, 0])
        return found


def _examined(raw: Raw) -> ParquetGroups | ArrowGroups:
    try:
        return ParquetGroups(raw) if raw.read(0, 4).tobytes() == b"PAR1" else ArrowGroups(raw)
    except Exception as error:  # pyarrow has more than ValueError and OSError for what is damaged
        raise SourceError(
            f"source parquet: {raw.stamp.path!r} cannot be read as a Parquet or Arrow file: {error}; write or fetch a "
            "cut or damaged one again"
        ) from error


class ParquetGroups:
    """A Parquet file. `rows`: of each row group, int64 of shape (groups,)."""

    def __init__(self, raw: Raw) -> None:
        self._metadata = pq.read_metadata(_Stream(raw))
        self.schema = self._metadata.schema.to_arrow_schema()
        groups = range(self._metadata.num_row_groups)
        self.rows = np.array([self._metadata.row_group(group).num_rows for group in groups], np.int64)
        if (rows := int(self.rows.sum())) != self._metadata.num_rows or (self.rows < 0).any():
            raise ValueError(f"its row groups have {rows} rows together, and the file says {self._metadata.num_rows}")

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": None, "rows": self.rows, "_metadata": None}

    def places(self, raw: Raw, group: int, columns: Sequence[str]) -> IndexArray:
        """Offsets and sizes of these columns in a row group, shape (pieces, 2).

        They are what pyarrow asks for when it reads them, and is refused. Its own `row_group(…).column(…)` would end
        the process by SIGABRT where damaged metadata contradict each other; a read raises.
        """
        asked: list[tuple[int, int]] = []
        with suppress(Exception):  # reading the rows raises it, too
            file = self._opened(raw, asked)
            leaves = (file.schema.column(number).path for number in range(len(file.schema)))
            for leaf in leaves:
                if f"{leaf}.".startswith(tuple(f"{name}." for name in columns)):
                    with suppress(OSError):  # the refusal
                        file.read_row_group(group, columns=[leaf], use_threads=False)
        return np.array(asked, np.int64).reshape(-1, 2)

    def read(self, raw: Raw, group: int, columns: Sequence[str]) -> pa.RecordBatch:
        """These columns of a row group; raises ValueError, OSError and others of pyarrow's."""
        table = self._opened(raw).read_row_group(group, columns=list(columns), use_threads=False)
        batches = table.combine_chunks().to_batches()
        if len(batches) != 1:
            raise ValueError("a column has more than 2 GB in one row group: write smaller ones")
        return batches[0]

    def _opened(self, raw: Raw, asked: list[tuple[int, int]] | None = None) -> pq.ParquetFile:
        if self._metadata is None:
            self._metadata = pq.read_metadata(_Stream(raw))
        # Without pyarrow's own threads, and with a read for each column: those were announced.
        return pq.ParquetFile(
            _Stream(raw, asked), metadata=self._metadata, pre_buffer=False, page_checksum_verification=True
        )


class ArrowGroups:
    """A file in Arrow's stream or file format, mapped: of a batch only the pages of the wanted rows are read."""

    def __init__(self, raw: Raw) -> None:
        if isinstance(raw, RemoteFile):
            raise ValueError("Arrow files are read from disk alone: copy it, or write Parquet files")
        size = raw.stamp.size
        if not raw.read(max(0, size - 8), min(8, size)).tobytes().endswith((_STREAM_END, _ARROW_FILE[:6])):
            raise ValueError("it ends without an end mark")
        self.schema, messages = _messages(raw)
        self.rows = np.array([pa.ipc.read_record_batch(each, self.schema).num_rows for each in messages], np.int64)
        self._messages: tuple[Raw, pa.Schema, list[pa.Message]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": None, "rows": self.rows, "_messages": None}

    def places(self, _raw: Raw, _group: int, _columns: Sequence[str]) -> IndexArray:
        """Nothing is announced: whole batches may be much more than their wanted rows."""
        return _NO_PLACES

    def read(self, raw: Raw, group: int, _columns: Sequence[str]) -> pa.RecordBatch:
        """A record batch; raises ValueError, OSError and others of pyarrow's."""
        if self._messages is None or self._messages[0] is not raw:
            self._messages = raw, *_messages(raw)
        _, schema, messages = self._messages
        batch = pa.ipc.read_record_batch(messages[group], schema)
        batch.validate()  # else a damaged length would be read beyond the end
        return batch


def _messages(raw: Raw) -> tuple[pa.Schema, list[pa.Message]]:
    mapped = mmap.mmap(raw.descriptor, raw.stamp.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    data = pa.py_buffer(memoryview(mapped))
    start = len(_ARROW_FILE) if data.slice(0, len(_ARROW_FILE)).to_pybytes() == _ARROW_FILE else 0
    first, *messages = pa.ipc.MessageReader.open_stream(data.slice(start))
    if any(message.type != "record batch" for message in messages):
        raise ValueError("it has columns of the type dictionary: cast them to the type of their values")
    return pa.ipc.read_schema(first), messages


class _Stream:
    """A file as pyarrow reads it: by seek and read, without a copy.

    `asked`: takes the offset and size of each read, which then gets nothing.
    """

    closed = False

    def __init__(self, raw: Raw, asked: list[tuple[int, int]] | None = None) -> None:
        self._raw, self._asked = raw, asked
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._raw.stamp.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> NDArray[np.uint8]:
        self._position += size
        if self._asked is not None:
            self._asked.append((self._position - size, size))
            return _NOTHING
        return self._raw.read(self._position - size, size)
