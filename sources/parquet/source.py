"""Parquet and Arrow files: `{parquet: {path: "data/*.parquet"}}`, or the folder of a Hugging Face data set."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from ...workers.api import AnyArray, ArraySpec, IndexArray, NotNegative, Outlier, Paths, Positive, Tops, chosen, listed
from ...workers.base import ParameterError, SampleError, SourceError, in_folder
from ..files import RecentlyUsed, expand_paths, locate_part, natural_key, split_by_part, without_paths
from ..files.roles import in_order
from ..files.urls import is_url
from ..images import PictureOptions, picture_field, picture_options
from ..table import Column, Field, OutRows, RecordError, Table, learnt_of, naming, put_text
from .files import GroupFiles
from .forms import Form, described, form_of
from .values import Values

_WHAT = "source parquet"


class ParquetOptions(PictureOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {parquet: …}`, beside those of all pictures.

    path: a Parquet or Arrow file, a list of them, a glob, or a folder, also one of Hugging Face's `save_to_disk`;
        Parquet files may be URLs.
    columns: for each top its column; without it each column is a top of that name.
    pictures: the columns of encoded pictures; without it those that hold {bytes, path}, as Hugging Face stores images.
    max_length: the most bytes of a text, or items of a list, that there may be; a longer one is an error, or replaced
        by `on_error: replace`. Without it each column that varies is read once, to find its longest.
    limit: only the first so many samples.
    chunk_cache_bytes: decoded row groups that each loader keeps, the last one in any case.
    """

    path: Paths
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    pictures: tuple[str, ...] | None = None
    max_length: Positive | None = None
    limit: Positive | None = None
    chunk_cache_bytes: NotNegative = 256 << 20


def open_parquet(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """The rows of Parquet or Arrow files, put end to end: numbers, lists, text and bytes as they are, pictures uint8
    (channels, height, width). Lists and bytes vary in length unless the type fixes it; text is as long as the longest.

    Raises ParameterError, SourceError.
    """
    checked = picture_options(options, ParquetOptions, _WHAT)
    files = GroupFiles(_paths(checked.path, base_dir))
    groups = RowGroups(checked, tops, files)
    return Table(
        "parquet",
        [groups],
        tops=tops,
        held_in=files.paths[0],
        where=groups.where,
        limit=checked.limit,
        options=without_paths(checked),
        check=groups.check_samples,
    )


class RowGroups(Column):
    """The wanted columns of all files. A row group is decoded as a whole, and kept for the next rows."""

    _decoded: RecentlyUsed[int, Mapping[str, Values]]

    def __init__(self, options: ParquetOptions, tops: Tops, files: GroupFiles) -> None:
        self._options, self._files = options, files
        self._starts = np.cumsum([0, *files.rows], dtype=np.int64)
        self.samples = int(self._starts[-1])
        names, held_in = files.schema.names, files.paths[0]
        self._columns = dict(
            chosen(options.columns or {name: name for name in in_order(names)}, tops, f"{_WHAT}: {held_in}")
        )
        for name in (*self._columns.values(), *(options.pictures or ())):
            if name not in names:
                raise ParameterError(f"{_WHAT}: {held_in} has no column {name!r}; {listed(name, names)}")
        forms = {
            name: form_of(files.schema.field(name), f"{_WHAT}: {held_in}")
            for name in dict.fromkeys(self._columns.values())
        }
        pictures = {
            name
            for name, form in forms.items()
            if (form.is_picture if options.pictures is None else name in options.pictures)
        }
        for name in pictures:
            if not forms[name].may_be_picture:
                raise SourceError(
                    f"{_WHAT}: {held_in}: column {name!r}, of 'pictures', is {described(files.schema.field(name))}: "
                    "expected the bytes of one picture in each row"
                )
        files.choose(forms)
        self.stores = (files.store,)
        self.modules = (GroupFiles.__module__,)
        self.close()
        self._fields, self._bad = {}, list[SampleError]()
        for name in sorted(pictures):
            self._fields[name], bad = learnt_of(partial(self._learnt, name), range(self.samples))
            self._bad += bad
        for field in self._fields.values():
            self.modules, self.options = (*self.modules, *field.modules), field.options
        self._largest: dict[str, Outlier] = {}
        shapes = {name: self._spec(name, form) for name, form in forms.items()}
        self.specs = {top: shapes[name] for top, name in self._columns.items()}
        self.outliers = {top: self._largest[name] for top, name in self._columns.items() if name in self._largest}
        self.chunk_samples = int(files.rows[files.rows > 0][0])
        self.chunks_are_cheap = bool(self._fields)  # decoding a picture takes far longer than copying its bytes

    def _learnt(self, name: str, index: int) -> Field[bytes]:
        group, row = locate_part(self._starts, index)
        with naming("parquet", self._files.paths[0], index, f"{self.where(index)}, column {name!r}", self.where(index)):
            read = lambda: self._files.decoded(group)[name].row(row).tobytes()  # noqa: E731
            return picture_field(self._options, _WHAT, read)

    def check_samples(self) -> None:
        """Raise SourceError for a bad sample, as Source.check_samples."""
        if self._bad:
            raise self._bad[0]

    def _spec(self, name: str, form: Form) -> ArraySpec:
        if name in self._fields:
            return self._fields[name].spec
        if form.shape is not None:
            return ArraySpec(form.shape, form.dtype)
        if (longest := self._options.max_length) is None:
            lengths, self._largest[name] = self._files.lengths(name)
        else:
            lengths = [extent for size in (*form.sizes, *[None] * form.is_bytes) for extent in size or (longest,)]
        largest = [max(1, length) for length in lengths]
        if form.is_text:
            return ArraySpec((), np.dtype(f"S{largest[0]}"))
        return ArraySpec(form.delivered(largest), form.dtype, varies=True)

    def where(self, index: int) -> str:
        group, row = locate_part(self._starts, index)
        return f"{self._files.where(group)} row {row}"

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        groups = (group for group, *_ in split_by_part(self._starts, indices))
        return self._files.will_need([group for group in groups if self._decoded.get(group) is None], now=now)

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        for group, local, wanted in split_by_part(self._starts, indices):
            at, name = wanted[0], ""
            try:
                columns = self._group(group)
                for top, name in self._columns.items():
                    if (rows := out.get(top)) is None:
                        continue
                    values = columns[name]
                    if (read := values.rows(local)) is not None:
                        rows[positions[wanted]] = read
                        continue
                    for row, at in zip(local.tolist(), wanted.tolist(), strict=True):
                        self._put(name, values.row(row), int(positions[at]), rows)
            except Exception as error:
                raise RecordError(int(indices[at]), name and f", column {name!r}") from error

    def _put(self, name: str, value: AnyArray, position: int, rows: Any) -> None:
        if name in self._fields:
            self._fields[name].put(value.tobytes(), position, rows)
        elif isinstance(rows, np.ndarray):
            if rows.dtype.kind == "S":
                put_text(value.tobytes(), position, rows)
            else:
                rows[position] = value
        else:
            rows.put(position, value)

    def _group(self, group: int) -> Mapping[str, Values]:
        """Return the decoded columns of a row group."""
        self._files.file_of(group)  # looked at, also where nothing is read of it
        return self._decoded.get_or_make(group, self._files.decoded, group)

    def close(self) -> None:
        self._decoded = RecentlyUsed(self._options.chunk_cache_bytes, _nbytes, least=1)

    def __getstate__(self) -> dict[str, Any]:
        self.close()
        return self.__dict__


def _nbytes(columns: Mapping[str, Values]) -> int:
    return sum(values.nbytes for values in columns.values())


class _Splits(msgspec.Struct):
    """The file dataset_dict.json of a Hugging Face data set."""

    splits: list[str]


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    """The file state.json of a Hugging Face data set."""

    files: list[_File] = msgspec.field(name="_data_files")
    indices: list[_File] | None = msgspec.field(name="_indices_data_files", default=None)


_Saved = TypeVar("_Saved", _Splits, _State)


def _saved(path: Path, kind: type[_Saved]) -> _Saved:
    """Read a file beside a Hugging Face data set; raises SourceError for a damaged one, or one of another program."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SourceError(
            f"{_WHAT}: {str(path)!r} is not what Hugging Face's save_to_disk writes ({error}): save the data set "
            "again, or name its files themselves in 'path'"
        ) from error


def _paths(path: str | Sequence[str], base_dir: Path) -> list[str]:
    """The files that `path` names; of a folder those of a data set saved by Hugging Face, or all of one kind."""
    if not isinstance(path, str) or is_url(path) or not (folder := in_folder(base_dir, path)).is_dir():
        return expand_paths(path, base_dir, _WHAT)
    if (splits := folder / "dataset_dict.json").is_file():
        found = _saved(splits, _Splits).splits
        raise SourceError(f"{_WHAT}: {str(folder)!r} holds several splits: name one of {', '.join(found)} in 'path'")
    if (state := folder / "state.json").is_file():
        saved = _saved(state, _State)
        if saved.indices:
            raise SourceError(
                f"{_WHAT}: {str(folder)!r} holds rows and, beside them, which of them count, as early versions of "
                "Hugging Face's library saved them: load it there, and save it anew"
            )
        return [str(folder / file.filename) for file in saved.files]
    found = sorted(map(str, folder.glob("*.parquet")), key=natural_key)
    return found or expand_paths(f"{glob.escape(str(folder))}/*.arrow", base_dir, _WHAT)
