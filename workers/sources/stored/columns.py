"""The arrays of a source, each a row of stored arrays put end to end, and the files that they are read from."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from ...base.errors import BlobfeedError, SourceError
from ...base.specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows
from .contiguous_rows import ContiguousRows
from .file import FileStamp, RawFile
from .layout import Chunked, Contiguous, StoredArray
from .lru import ChunkCache, RecentlyUsed, chunk_cache
from .runs import by_group

if TYPE_CHECKING:
    from .library_rows import LibraryFile

_MUCH_LARGER = 16
_FEW_FILES = 16
_MANY_DESCRIPTORS = 1 << 14

Locking = bool | Literal["best-effort"] | None


class Column:
    """One top: the samples of `arrays`, one array after the other."""

    def __init__(self, arrays: Sequence[StoredArray]) -> None:
        self.arrays = tuple(arrays)
        self.starts = np.cumsum([0, *(array.samples for array in arrays)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def spec(self) -> ArraySpec:
        """What a sample is once it is delivered, in this machine's byte order."""
        # Strings of varying length are as long as the longest of their file: the longest of all has room for each.
        dtype = max((array.dtype for array in self.arrays), key=lambda dtype: dtype.itemsize).newbyteorder("=")
        if self.arrays[0].longest is not None:
            return ArraySpec((max(array.longest or 0 for array in self.arrays),), dtype, varies=True)
        return ArraySpec(self.arrays[0].sample_shape, dtype)

    def locate(self, index: int) -> tuple[StoredArray, int]:
        """The array that holds sample `index`, and its number in there."""
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.arrays[number], index - int(self.starts[number])

    def split(self, indices: IndexArray) -> Iterator[tuple[StoredArray, IndexArray, IndexArray]]:
        """For each array that holds some of the samples: it, their numbers in there, and their positions in `indices`.

        The positions are ascending.
        """
        if len(self.arrays) == 1:
            yield self.arrays[0], indices, np.arange(len(indices))
            return
        for number, positions in by_group(np.searchsorted(self.starts, indices, side="right") - 1):
            yield self.arrays[number], indices[positions] - self.starts[number], positions


@dataclass(frozen=True, slots=True)
class Access:
    """How files are read. memory_map: None where the size of a row decides (gather.py says how).

    open_files: None for as many as a quarter of the descriptors that the process may have allows; a mapped file takes
    two of them, since Python's mmap keeps a copy of its own.
    """

    memory_map: bool | None = None
    locking: Locking = None
    chunk_cache_bytes: int = 0
    open_files: int | None = None

    def most_files(self) -> int:
        """Files to keep open at a time."""
        if self.open_files is not None:
            return self.open_files
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(_FEW_FILES, min(allowed, _MANY_DESCRIPTORS) // 4)


class Reader(Protocol):
    """Reads samples of one stored array."""

    def read(self, indices: IndexArray, positions: IndexArray, rows: AnyArray, /) -> None:
        """Put sample indices[i] into rows[positions[i]], positions ascending; the axes are in their stored order."""

    def will_need(self, indices: IndexArray, /) -> None:
        """Start reading these samples."""


class Columns:
    """Reads the rows of several tops, with as many files open, and as many chunks kept, as `access` allows."""

    def __init__(self, columns: Mapping[str, Column], access: Access) -> None:
        self._columns = columns
        self._access = access
        self._files = OpenFiles(access)

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        """Put sample indices[i] into row i of each top; raises SourceError that names file and array."""
        for top, column in self._columns.items():
            rows = out[top]
            for array, local, positions in column.split(indices):
                file = self._files.get(array.file)
                try:
                    if isinstance(rows, RaggedRows):
                        file.library.ragged(array).read(local, positions, rows)
                    else:
                        file.reader(array).read(local, positions, array.arrangement.as_stored(rows))
                except BlobfeedError:
                    raise
                except (OSError, RuntimeError, ValueError) as error:
                    raise SourceError(f"{array}: reading samples failed: {error}") from error

    def will_need(self, indices: IndexArray) -> None:
        """Start reading these samples from their files, but not small ones beside larger ones.

        The kernel's own reading ahead soon has all of the labels in memory, and advising on them costs as much.
        """
        for column in self._heavy:
            for array, local, _ in column.split(indices):
                if array.longest is None:
                    self._files.get(array.file).reader(array).will_need(local)

    @cached_property
    def _heavy(self) -> list[Column]:
        sizes = [(column, column.arrays[0].sample_bytes) for column in self._columns.values()]
        largest = max(size for _, size in sizes)
        return [column for column, size in sizes if size * _MUCH_LARGER >= largest]

    def close(self) -> None:
        """Close all files."""
        self._files.close()


class OpenFiles:
    """The files that are open at present, as many as `access` allows, and the chunks decoded from them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._chunks = chunk_cache(access.chunk_cache_bytes)
        self._files: RecentlyUsed[str, OpenFile] = RecentlyUsed(access.most_files(), discard=OpenFile.close)

    def get(self, stamp: FileStamp) -> OpenFile:
        """The file, opened now if it is not open; it may be closed again when another one is asked for."""
        file = self._files.get(stamp.path)
        if file is None:
            file = OpenFile(stamp, self._access, self._chunks)
            self._files.put(stamp.path, file)
        return file

    def close(self) -> None:
        """Close all files, and let go of the decoded chunks."""
        self._files.clear()
        self._chunks.clear()


class OpenFile:
    """One file that is open for its bytes, through the HDF5 library, or both, whatever its arrays' layouts ask for."""

    def __init__(self, stamp: FileStamp, access: Access, chunks: ChunkCache) -> None:
        self._stamp = stamp
        self._access = access
        self._chunks = chunks
        self._readers: dict[tuple[str, int], Reader] = {}

    @cached_property
    def raw(self) -> RawFile:
        """The file's bytes."""
        return RawFile(self._stamp, self._access.memory_map)

    @cached_property
    def library(self) -> LibraryFile:
        """The file through the HDF5 library, which takes 0.1 s to import and so is imported only where it is needed."""
        from .library_rows import LibraryFile

        return LibraryFile(self._stamp, self._access.locking, self._chunks)

    def reader(self, array: StoredArray) -> Reader:
        """The reader of `array`, made at the first call."""
        key = (array.name, array.arrangement.sample_axis)
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = self._make_reader(array)
        return reader

    def _make_reader(self, array: StoredArray) -> Reader:
        if isinstance(array.layout, Contiguous):
            return ContiguousRows(self.raw, array, array.layout.offset)
        if isinstance(array.layout, Chunked):
            from .chunked_rows import ChunkedRows

            return ChunkedRows(self.raw, array, array.layout, self._chunks)
        return self.library.rows(array)

    def close(self) -> None:
        """Close whatever of it is open."""
        self._readers.clear()
        for opened in ("raw", "library"):
            if opened in self.__dict__:
                self.__dict__.pop(opened).close()
