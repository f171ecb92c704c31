"""What sources of files have in common: which files are open, and when the kernel is told of samples before; and those
of stored arrays, all but finding and checking the arrays: how samples are read."""

from __future__ import annotations

import logging
import os
import resource
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...base.errors import BlobfeedError, SourceError
from ...base.keys import text_digest
from ...base.source import Source
from ...base.specs import ArraySpec, IndexArray, NamedRows, RaggedRows, Rows, Straight
from ..files.file import Locking, RawFile, require_in_range, split_by_part
from ..files.identity import digest, of_stamps
from ..files.lru import ChunkCache
from ..files.remote import CONNECTIONS, RemoteFile, RemoteStamp, Stamp
from ..table.read_ahead import Announcements
from .joined import JoinedColumns
from .layout import Chunked, ChunkObjects, Column, StoredArray, ThroughLibrary
from .rows import ChunkedRows, StoredRows

if TYPE_CHECKING:
    from .hdf5_library import h5py
    from .library_rows import LibraryRows

LIBRARY_MODULE = f"{__package__}.library_rows"
"""What a loader imports if some array can be read only by the HDF5 library."""

_FEW_FILES = 16
_MANY_DESCRIPTORS = 1 << 14

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
    """Samples in the files `stamps`, which `files` has open. A subclass counts the samples, and knows their specs."""

    _samples: int
    _specs: Mapping[str, ArraySpec]

    def __init__(self, files: OpenFiles, stamps: Iterable[Stamp]) -> None:
        self._files = files
        self._is_remote = any(isinstance(stamp, RemoteStamp) for stamp in stamps)
        if self._is_remote:
            self.rows_at_once = CONNECTIONS

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        require_in_range(indices, self._samples)
        reading = Reading(self._files)
        if self._is_remote:
            self._fetch(indices, reading)
        else:  # the first task of a loader was not announced before
            self._announce(indices)
        self._read(indices, out, reading)
        self._files.announcements.note_read(len(indices))
        reading.require_unchanged()

    @abstractmethod
    def _read(self, indices: IndexArray, out: NamedRows, reading: Reading) -> None: ...

    def _fetch(self, indices: IndexArray, reading: Reading) -> None:
        """These samples are read next: all tops and all files are to be fetched at the same time."""
        for stamp, offsets, sizes in self._pieces(indices):
            reading.get(stamp).raw.fetch(offsets, sizes)

    def will_need(self, indices: IndexArray) -> None:
        require_in_range(indices, self._samples)
        self._announce(indices)

    def _announce(self, indices: IndexArray) -> None:
        self._files.begin()
        announcements = self._files.announcements
        if self._is_remote or announcements.are_due(indices):
            announcements.note_announced(len(indices), in_memory=self._start_reading(indices))

    def _start_reading(self, indices: IndexArray) -> bool:
        """Have these samples read ahead; whether all of them were in memory already."""
        in_memory = True
        for stamp, offsets, sizes in self._pieces(indices):
            in_memory &= self._files.get(stamp).raw.will_need(offsets, sizes)
        return in_memory

    def _pieces(self, indices: IndexArray) -> Iterator[tuple[Stamp, IndexArray, IndexArray | int]]:
        """Where these samples lie, as offsets and sizes, by file and top; for the two above."""
        raise NotImplementedError

    def close(self) -> None:
        self._files.close()


class StoredSource(FilesSource):
    """Samples of stored arrays, one column of them for each top; all columns have the same length.

    `limit`: only the first so many samples.
    """

    def __init__(self, columns: Mapping[str, Column], files: OpenFiles, *, limit: int | None) -> None:
        self._arrays = arrays = [array for column in columns.values() for array in column.arrays]
        super().__init__(files, (array.file for array in arrays))
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
        self._together = [
            (starts, [named for named in columns.items() if named[1].starts.tobytes() == cut])
            for cut, starts in cuts.items()
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

    def _read(self, indices: IndexArray, out: NamedRows, reading: Reading) -> None:
        for starts, columns in self._together:
            if len(indices) and (joined := self._files.joined(starts, columns)):
                reading.joined.append((joined, joined.read(indices, cast("Straight", out))))
                continue
            for number, local, positions in split_by_part(starts, indices):
                for top, column in columns:
                    array = column.arrays[number]
                    try:
                        reader = reading.get(array.file, array.others).reader(array)
                        reader.read(local, positions, _as_stored(out[top], array.arrangement.order))
                    except BlobfeedError:
                        raise
                    except Exception as error:
                        raise SourceError(f"{array}: reading samples failed: {error}") from error

    def _fetch(self, indices: IndexArray, reading: Reading) -> None:
        for starts, columns in self._together:
            for number, local, _ in split_by_part(starts, indices):
                for array in (column.arrays[number] for _, column in columns):
                    reader = reading.get(array.file).reader(array)
                    if isinstance(reader, ChunkedRows):
                        reader.fetch(local)

    def _start_reading(self, indices: IndexArray) -> bool:
        in_memory = True
        for starts, columns in self._together:
            if joined := self._files.joined(starts, columns):
                in_memory &= joined.will_need(indices)
                continue
            for number, local, _ in split_by_part(starts, indices):
                for _, column in columns:
                    array = column.arrays[number]
                    if not isinstance(array.layout, ThroughLibrary):  # only the library knows where they lie
                        reader = cast("ChunkedRows", self._files.get(array.file).reader(array))
                        in_memory &= reader.will_need(local)
        return in_memory

    @property
    def stores_rows(self) -> bool:
        return not self._is_remote and all(
            isinstance(array.layout, Chunked)
            and not array.layout.filters
            and (array.lies_in_rows or not array.file.on_network)  # there others are mapped, or whole chunks are read
            for array in self._arrays
        )

    @cached_property
    def gathered(self) -> Collection[str]:
        return {
            top
            for top, column in self._columns.items()
            if self._specs[top].dtype == np.uint8 and all(array.rows_are_mapped for array in column.arrays)
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


class OpenFiles:
    """The files that are open at present, and the chunks decoded from them.

    `most_files`: how many to keep open; None for as many as a quarter of the descriptors that the process may have
    allows (a mapped file takes two of them, since Python's mmap keeps a copy of its own). `chunk_cache_bytes`: decoded
    chunks to keep. Each process opens files of its own: a pickled or forked copy begins with none.
    """

    def __init__(self, locking: Locking = None, most_files: int | None = None, chunk_cache_bytes: int = 0) -> None:
        self._options = (locking, most_files, chunk_cache_bytes)
        self._begin()

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[object, ...]]:
        return OpenFiles, self._options

    def _begin(self) -> None:
        self._locking, most_files, chunk_cache_bytes = self._options
        self._process = os.getpid()
        self.announcements = Announcements()
        self._joined: dict[bytes, JoinedColumns | None] = {}
        self._chunks = ChunkCache(chunk_cache_bytes)
        allowed = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MANY_DESCRIPTORS) // 4
        self._most = most_files or max(_FEW_FILES, allowed)
        self.opened: dict[str, OpenFile] = {}  # the last used one at the end

    def begin(self) -> None:
        """Called before anything is read: in a forked copy nothing is open."""
        if os.getpid() != self._process:
            self._begin()

    def get(self, stamp: Stamp) -> OpenFile:
        """The file, opened now if it is not open; it may be closed again when another one is asked for."""
        self.begin()
        file = self.opened.pop(stamp.path, None) or OpenFile(stamp, self._locking, self._chunks)
        self.opened[stamp.path] = file
        if len(self.opened) > self._most:
            self.opened.pop(next(iter(self.opened))).close()
        return file

    def joined(self, starts: IndexArray, columns: Sequence[tuple[str, Column]]) -> JoinedColumns | None:
        """These columns as one array over all files, if they can be read so; made at the first call."""
        key = starts.tobytes()
        if key not in self._joined:
            self._joined[key] = JoinedColumns.of(starts, columns, self._most)
        return self._joined[key]

    def close(self) -> None:
        # Setup reads one sample again and again, which says nothing about the rows of the run.
        self.announcements = Announcements()
        self._joined.clear()
        while self.opened:
            self.opened.popitem()[1].close()
        self._chunks.clear()


class Reading:
    """The files of one call of `read`. Each is looked at twice, however many arrays are read from it.

    Before: whether it was cut short, since touching its map would be SIGBUS. After: whether it was changed at all; only
    then is it certain that what was read is what was examined.
    """

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._used: dict[str, Stamp] = {}
        self._last: tuple[str, OpenFile] | None = None
        self.joined: list[tuple[JoinedColumns, list[int]]] = []
        """What was read from many files at once, and the numbers of the parts that it was read from."""

    def get(self, stamp: Stamp, others: Sequence[Stamp] = ()) -> OpenFile:
        """The file, open and not cut short. `others`: the files that hold a part of what is read from it."""
        if self._last and self._last[0] == stamp.path:  # the tops of one file are read one after the other
            file = self._last[1]
        else:
            file = self._files.get(stamp)
            self._last = stamp.path, file
        if stamp.path not in self._used:
            self._used[stamp.path] = stamp
            file.raw.require_intact()
        for other in others:
            self._used[other.path] = other
        return file

    def require_unchanged(self) -> None:
        """Raises SourceError if one of the files was changed since it was examined."""
        for joined, used in self.joined:
            joined.require_unchanged(used)
        for path, stamp in self._used.items():
            file = self._files.opened.get(path)
            stamp.require_unchanged(file.raw.descriptor if file else None)


class OpenFile:
    """One file that is open for its bytes, through the HDF5 library, or both, as its arrays' layouts demand."""

    def __init__(self, stamp: Stamp, locking: Locking, chunks: ChunkCache) -> None:
        self._stamp = stamp
        self._locking = locking
        self._chunks = chunks
        self._readers: dict[tuple[str, int], ChunkedRows | LibraryRows] = {}

    @cached_property
    def raw(self) -> RawFile | RemoteFile:
        return RemoteFile(self._stamp) if isinstance(self._stamp, RemoteStamp) else RawFile(self._stamp)

    @cached_property
    def library(self) -> h5py.File:
        """The file through the HDF5 library, which takes 0.1 s to import and so is imported only if it is needed."""
        from .library_rows import open_file

        return open_file(self._stamp, self._locking)

    def reader(self, array: StoredArray) -> ChunkedRows | LibraryRows:
        key = (array.name, array.arrangement.sample_axis)
        if key not in self._readers:
            self._readers[key] = self._make_reader(array)
        return self._readers[key]

    def _make_reader(self, array: StoredArray) -> ChunkedRows | LibraryRows:
        if isinstance(array.layout, Chunked):
            return StoredRows(self.raw, array, array.layout, self._chunks, lambda: self.library)
        if isinstance(array.layout, ChunkObjects):
            from .object_rows import ObjectRows

            return ObjectRows(array, array.layout, self._chunks)
        from .library_rows import LibraryRows

        return LibraryRows(self.library, array, array.layout, self._chunks)

    def close(self) -> None:
        self._readers.clear()
        for opened in ("raw", "library"):
            if opened in self.__dict__:
                self.__dict__.pop(opened).close()
