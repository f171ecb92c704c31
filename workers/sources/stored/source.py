"""The common part of sources of files, which announce samples before they read them; and of sources of stored arrays.

A source of stored arrays finds and checks its arrays; this module reads their samples.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np

from ...base.errors import BlobfeedError, SourceError
from ...base.keys import text_digest
from ...base.source import Source
from ...base.specs import ArraySpec, ConvertedRows, DirectRows, IndexArray, NamedRows, RaggedRows, Rows
from ..files.file import Locking, as_bytes, require_in_range, split_by_part
from ..files.identity import digest, of_stamps
from ..files.remote import CONNECTIONS, RemoteStamp
from .layout import Chunked, ChunkObjects, Column, StoredArray, ThroughLibrary
from .rows import ChunkedRows
from .store import FileStore

LIBRARY_MODULE = f"{__package__}.library_rows"
"""What a loader imports if some array can be read only by the HDF5 library."""

_log = logging.getLogger("blobfeed")


def cache_bytes(wanted: int, columns: Mapping[str, Column], what: str) -> int:
    """`wanted`, but enough for one chunk of each top: with less, each sample in turn would decode its whole chunk."""
    needed = {top: max(array.decoded_bytes for array in column.arrays) for top, column in columns.items()}
    total = sum(needed.values())
    if not 0 < wanted < total:
        return wanted
    _log.warning(
        "%s: a chunk of each top takes %d bytes (%s) and chunk_cache_bytes is %d: each loader keeps %d bytes of "
        "decoded chunks; smaller chunks take less memory, and less time to read in shuffled order",
        *(what, total, ", ".join(f"{top} {size}" for top, size in needed.items() if size), wanted, total),
    )
    return total


class FilesSource(Source):
    """Samples in files. A subclass counts the samples, and knows their specs."""

    _samples: int
    _specs: Mapping[str, ArraySpec]

    def __init__(self, files: FileStore) -> None:
        self._files = files
        if files.is_remote:
            self.rows_at_once = CONNECTIONS

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        require_in_range(indices, self._samples)
        self._files.begin_task()
        if self._files.is_remote:  # all tops and all files are to be fetched at the same time
            self._fetch(indices)
        else:  # the first task of a loader was not announced before
            self._announce(indices)
        self._read(indices, out)
        self._files.announcements.note_read(len(indices))
        self._files.require_unchanged()

    @abstractmethod
    def _read(self, indices: IndexArray, out: NamedRows) -> None: ...

    def _fetch(self, indices: IndexArray) -> None:
        """Start fetching these samples, which are read next."""
        for addresses, sizes in self._places(indices):
            self._files.fetch(addresses, sizes)

    def will_need(self, indices: IndexArray) -> None:
        require_in_range(indices, self._samples)
        self._announce(indices)

    def _announce(self, indices: IndexArray) -> None:
        self._files.begin()
        announcements = self._files.announcements
        if self._files.is_remote or announcements.are_due(indices):
            announcements.note_announced(len(indices), in_memory=self._start_reading(indices))

    def _start_reading(self, indices: IndexArray) -> bool:
        """Have these samples read ahead; whether all of them were in memory already."""
        found = [self._files.will_need(addresses, sizes) for addresses, sizes in self._places(indices)]
        return all(found)

    def _places(self, indices: IndexArray) -> Iterator[tuple[IndexArray, IndexArray | int]]:
        """The addresses and sizes of these samples, for each top, for the two above."""
        raise NotImplementedError

    def close(self) -> None:
        self._files.close()


class StoredSource(FilesSource):
    """Samples of stored arrays, one column of them for each top; all columns have the same length.

    `limit`: only the first so many samples. The rest as for FileStore.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        *,
        limit: int | None = None,
        locking: Locking = None,
        open_files: int | None = None,
        chunk_cache_bytes: int = 0,
    ) -> None:
        self._arrays = arrays = [array for column in columns.values() for array in column.arrays]
        stamps = [stamp for array in arrays for stamp in (array.file, *array.others)]
        super().__init__(FileStore(stamps, locking, open_files, chunk_cache_bytes))
        lengths = {top: len(column) for top, column in columns.items()}
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{top} has {length}" for top, length in lengths.items())
            raise SourceError(
                f"source {self.kind}: the tops differ in length: {said}; each needs one entry per sample: name those "
                "of one length in 'tops'"
            )
        self._columns = columns
        self._first = next(iter(columns.values()))
        self._largest = max(columns.values(), key=lambda column: column.arrays[0].sample_bytes)
        # Columns that are cut at the same samples, as those of the same HDF5 files are: what is wanted is cut up once.
        cuts = {column.starts.tobytes(): column.starts for column in columns.values()}
        self._groups = [
            _Group({top: column for top, column in columns.items() if column.starts.tobytes() == cut}, self._files)
            for cut in cuts
        ]
        self._samples = min(limit or len(self._first), len(self._first))
        self._specs = {top: column.spec for top, column in columns.items()}
        if not self._samples:
            raise SourceError(f"source {self.kind}: no samples: {self._first.arrays[0]} is empty")
        for top, spec in self._specs.items():
            if not spec.varies and not spec.nbytes:
                raise SourceError(f"source {self.kind}: samples of {top!r} are empty: their shape is {spec.shape}")
        for array in arrays:
            if isinstance(array.file, RemoteStamp):
                _require_ranges(array)
        filtered = [array.layout.filters for array in arrays if isinstance(array.layout, Chunked | ChunkObjects)]
        by_library = [array.layout for array in arrays if isinstance(array.layout, ThroughLibrary)]
        self.modules = (LIBRARY_MODULE,) if by_library else ()
        if any(layout.plugin for layout in by_library):
            self.modules += ("hdf5plugin",)
        if any(applied.kind == "numcodecs" for filters in filtered for applied in filters):
            self.modules += ("numcodecs",)

    def _read(self, indices: IndexArray, out: NamedRows) -> None:
        for group in self._groups:
            group.read(indices, cast("DirectRows", out))

    def _fetch(self, indices: IndexArray) -> None:
        for group in self._groups:
            group.fetch(indices)

    def _start_reading(self, indices: IndexArray) -> bool:
        found = [group.will_need(indices) for group in self._groups]
        return all(found)

    @property
    def stores_rows(self) -> bool:
        return not self._files.is_remote and all(
            isinstance(array.layout, Chunked)
            and not array.layout.filters
            and (array.lies_in_rows or not array.file.on_network)  # there others are mapped, or whole chunks are read
            for array in self._arrays
        )

    @cached_property
    def gathered(self) -> Collection[str]:
        columns = {top: column for top, column in self._columns.items() if self._specs[top].dtype == np.uint8}
        self._files.begin()
        return {
            top
            for top, column in columns.items()
            if column.row_bytes and self._files.memory(column.row_bytes) is not None
        }

    def where(self, index: int) -> str:
        return self._first.where(index)

    @property
    def chunk_samples(self) -> int | None:
        """Samples in a chunk of the largest top, if a chunk is decoded as a whole."""
        return self._largest.arrays[0].chunk_samples

    def _content(self) -> dict[str, str]:
        stamps = [stamp for array in self._arrays for stamp in (array.file, *array.others)]
        return {**of_stamps(stamps), "options": digest([(array.name, array.arrangement) for array in self._arrays])}

    def fingerprint(self) -> str:
        stored = [(array.file, array.others, array.name, array.arrangement) for array in self._arrays]
        specs = [(name, str(spec)) for name, spec in self._specs.items()]
        text = repr((stored, specs, self._samples))
        return f"{self.kind}:{text_digest(text)}"


class _Group:
    """Columns that are cut at the same samples: the part that holds a sample is looked up once for all of them."""

    def __init__(self, columns: Mapping[str, Column], files: FileStore) -> None:
        self._files = files
        self._starts = next(iter(columns.values())).starts
        self._rows = {top: column for top, column in columns.items() if column.row_bytes}
        self._others = {top: column for top, column in columns.items() if not column.row_bytes}
        for column in self._rows.values():
            column.place(np.array([files.starts[files.number(array.file)] for array in column.arrays]))
        together = zip(*(column.arrays for column in columns.values()), strict=True)
        self._numbers = [tuple({files.number(array.file): None for array in arrays}) for arrays in together]

    def read(self, indices: IndexArray, out: DirectRows) -> None:
        parts, local = self._located(indices)
        self._use(parts)
        for top, column in self._rows.items():
            rows = out[top]
            if isinstance(rows, ConvertedRows):
                memory = self._files.memory(column.row_bytes)
                assert memory is not None
                rows.take(memory, column.addresses(parts, local), np.arange(len(indices)))
            elif column.one_piece >= 0:
                self._files.take(column.one_piece, len(column), local, as_bytes(rows))
            else:
                self._files.gather(column.addresses(parts, local), np.arange(len(indices)), as_bytes(rows))
        for array, top, within, positions in self._by_array(indices) if self._others else ():
            self._files.watch(map(self._files.number, array.others))
            try:
                rows = _as_stored(cast("Rows", out[top]), array.arrangement.order)
                self._files.reader(array).read(within, positions, rows)
            except BlobfeedError:
                raise
            except Exception as error:
                raise SourceError(f"{array}: reading samples failed: {error}") from error

    def _use(self, parts: IndexArray) -> None:
        used: list[int] = [0] if len(self._starts) == 2 else np.flatnonzero(np.bincount(parts)).tolist()
        self._files.use([number for part in used for number in self._numbers[part]])

    def fetch(self, indices: IndexArray) -> None:
        """Start fetching these samples, which are read next."""
        parts, local = self._located(indices)
        self._use(parts)
        for column in self._rows.values():
            self._files.fetch(column.addresses(parts, local), column.row_bytes)
        for array, _, within, _ in self._by_array(indices):
            reader = self._files.reader(array)
            if isinstance(reader, ChunkedRows):
                reader.fetch(within)

    def will_need(self, indices: IndexArray) -> bool:
        """Have these samples read ahead; whether all of them were in memory already."""
        parts, local = self._located(indices)
        found = [
            self._files.will_need(column.addresses(parts, local), column.row_bytes) for column in self._rows.values()
        ]
        for array, _, within, _ in self._by_array(indices):
            if not isinstance(array.layout, ThroughLibrary):  # only the library knows where they lie
                found.append(cast("ChunkedRows", self._files.reader(array)).will_need(within))
        return all(found)

    def _located(self, indices: IndexArray) -> tuple[IndexArray, IndexArray]:
        """The part that holds each sample, and the sample's number in there."""
        if len(self._starts) == 2:
            return np.zeros(len(indices), np.int64), indices
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        return parts, indices - self._starts[parts]

    def _by_array(self, indices: IndexArray) -> Iterator[tuple[StoredArray, str, IndexArray, IndexArray]]:
        """The arrays that hold what does not lie in rows: the samples in each, and their positions in `indices`."""
        for number, local, positions in split_by_part(self._starts, indices):
            for top, column in self._others.items():
                yield column.arrays[number], top, local, positions


def _as_stored(rows: Rows, order: tuple[int, ...] | None) -> Any:
    """A view of delivered rows, shape (rows, *delivered), with the sample's axes in their stored order."""
    if order is None or isinstance(rows, RaggedRows):
        return rows
    back = sorted(range(len(order)), key=order.__getitem__)
    return rows.transpose(0, *(axis + 1 for axis in back))


def _require_ranges(array: StoredArray) -> None:
    """Raises SourceError if a sample of `array` is spread over all of its bytes."""
    axis, layout = array.arrangement.sample_axis, array.layout
    if axis and isinstance(layout, Chunked) and layout.chunk == array.shape and not layout.filters:
        raise SourceError(
            f"{array}: its samples are counted by axis {axis} of an array in one piece, so each of them is spread over "
            "the whole object; store it with the samples first, or in chunks"
        )
