"""The files that are open in this process, how the arrays in each of them are read, and when the kernel is told of
samples before."""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

from ...base.specs import AnyArray, IndexArray, NamedRows
from ..files.file import Locking, RawFile
from ..files.lru import ChunkCache, RecentlyUsed
from ..files.remote import RemoteFile, Stamp, open_raw
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

_ENOUGH_ROWS = 64
_REMEMBERED = 4
_ROWS_A_WAIT = 32
_BLOCKS_A_PAGE = 8


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
        self._chunks: ChunkCache = RecentlyUsed(chunk_cache_bytes, weigh=lambda chunk: chunk.nbytes)
        allowed = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MANY_DESCRIPTORS) // 4
        self.opened: RecentlyUsed[str, OpenFile] = RecentlyUsed(
            most_files or max(_FEW_FILES, allowed), discard=OpenFile.close
        )

    def begin(self) -> None:
        """Called before anything is read: in a forked copy nothing is open."""
        if os.getpid() != self._process:
            self._begin()

    def get(self, stamp: Stamp) -> OpenFile:
        """The file, opened now if it is not open; it may be closed again when another one is asked for."""
        self.begin()
        return self.opened.get_or_make(stamp.path, OpenFile, stamp, self._locking, self._chunks)

    def joined(self, starts: IndexArray, columns: Sequence[tuple[str, Column]]) -> JoinedColumns | None:
        """These columns as one array over all files, if they can be read so; made at the first call."""
        key = starts.tobytes()
        if key not in self._joined:
            self._joined[key] = JoinedColumns.of(starts, columns, self.opened.limit)
        return self._joined[key]

    def close(self) -> None:
        """Close all files, and let go of the decoded chunks."""
        self._joined.clear()
        self.opened.clear()
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
        self._joined: list[tuple[JoinedColumns, list[int]]] = []

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

    def read_joined(self, joined: JoinedColumns, indices: IndexArray, out: NamedRows) -> None:
        """Read from many files at once."""
        self._joined.append((joined, joined.read(indices, cast("Mapping[str, AnyArray]", out))))

    def require_unchanged(self) -> None:
        """Raises SourceError if one of the files was changed since it was examined."""
        for joined, used in self._joined:
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
        """The file's bytes."""
        return open_raw(self._stamp)

    @cached_property
    def library(self) -> h5py.File:
        """The file through the HDF5 library, which takes 0.1 s to import and so is imported only if it is needed."""
        from .library_rows import open_file

        return open_file(self._stamp, self._locking)

    def reader(self, array: StoredArray) -> ChunkedRows | LibraryRows:
        """The reader of `array`, made at the first call."""
        key = (array.name, array.arrangement.sample_axis)
        if key not in self._readers:
            self._readers[key] = self._make_reader(array)
        return self._readers[key]

    def will_need(self, array: StoredArray, indices: IndexArray) -> bool:
        """Start reading these samples of `array`; whether there was nothing to do."""
        if isinstance(array.layout, ThroughLibrary):  # only the library knows where they lie
            return True
        reader = self.reader(array)
        assert isinstance(reader, ChunkedRows)
        return reader.will_need(indices)

    def _make_reader(self, array: StoredArray) -> ChunkedRows | LibraryRows:
        if isinstance(array.layout, Chunked):
            return StoredRows(self.raw, array, array.layout, self._chunks)
        if isinstance(array.layout, ChunkObjects):
            from .object_rows import ObjectRows

            return ObjectRows(array, array.layout, self._chunks)
        from .library_rows import LibraryRows

        return LibraryRows(self.library, array, array.layout, self._chunks)

    def close(self) -> None:
        """Close whatever of it is open."""
        self._readers.clear()
        for opened in ("raw", "library"):
            if opened in self.__dict__:
                self.__dict__.pop(opened).close()


class Announcements:
    """One for all files of a source in a process. Pure bookkeeping, but for the count of reads that went to the disk.

    It begins cold: every task is announced, and each of its rows is looked at. Once so many rows in a row were found
    in the page cache, nothing is looked at any more: a look costs 1 µs, and a row of 784 bytes is read in a fifth of
    that. What ends this is a read that waited for the disk. A few probes for each task, as before, said of a file
    of which half was in memory that all was, once in sixteen times; and cost as much on one that was.
    """

    def __init__(self) -> None:
        self.warm = False
        self._found = 0
        self._told: deque[tuple[int, int, int]] = deque(maxlen=_REMEMBERED)
        self._waits = _disk_waits()

    def are_due(self, indices: IndexArray) -> bool:
        """Whether to announce these samples, a task that comes later or the one that is about to be read."""
        if self.warm or not len(indices):
            return False
        name = len(indices), int(indices[0]), int(indices[-1])
        if name in self._told:
            self._told.remove(name)
            return False
        self._told.append(name)
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
