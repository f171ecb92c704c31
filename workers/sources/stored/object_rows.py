"""Samples of an array whose chunks, or shards of chunks, are files or objects of their own, as zarr has them."""

from __future__ import annotations

import math
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ...base.errors import SourceError
from ...base.files import is_url, read_whole
from ...base.specs import AnyArray, IndexArray
from ..files.file import Bytes
from ..files.lru import ChunkCache, RecentlyUsed
from ..files.object_stores import ObjectStore, locate
from ..files.remote import Pending, RemoteStamp
from .chunk_decode import ChunkError, chunk_values, without_crc32c
from .layout import ChunkObjects, StoredArray
from .rows import ChunkedRows

_ENTRY_BYTES = 16
_CHECKSUM_BYTES = 4
_NO_CHUNK = np.uint64(0xFFFFFFFFFFFFFFFF)
_INDICES_KEPT_BYTES = 16 << 20
_MOST_ANNOUNCED = 256


class ObjectRows(ChunkedRows):
    """An array of which each chunk, or shard, is a file or an object: those of one task are fetched together."""

    def __init__(self, array: StoredArray, layout: ChunkObjects, cache: ChunkCache) -> None:
        super().__init__(array, layout.chunk, cache)
        self._layout = layout
        self._chunks = folder_at(layout.folder)
        self._shards = _Shards(layout, self._chunks) if layout.shard else None
        # Chunks on disk are read one by one, when they are decoded.
        home = array.file.home if isinstance(array.file, RemoteStamp) else None
        self._asked: Pending[int, Bytes | None] = Pending(home)

    def read(self, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        self._asked.begin()
        self.will_need(indices, now=True)
        super().read(indices, positions, rows)

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        if now or self._asked.has_room(len(indices), _MOST_ANNOUNCED):
            self._asked.ask_each(self._not_kept(self._numbers(indices)).tolist(), self._stored)
        return False

    def _decoded(self, number: int) -> AnyArray:
        self._asked.ask_each((number,), self._stored)
        try:
            return chunk_values(self._asked.take(number), self._layout, self._dtype)
        except ChunkError as error:
            raise SourceError(f"{self._array}: chunk {self._at(number)}: {error}") from error

    def _at(self, number: int) -> tuple[int, ...]:
        return tuple(map(int, np.unravel_index(number, self._grid)))

    def _stored(self, number: int) -> Bytes | None:
        """The bytes of a chunk as they are stored, None if it was never written."""
        at = self._at(number)
        return self._chunks.whole(self._layout.key(at)) if self._shards is None else self._shards.chunk(at)


class _Shards:
    """Chunks in shards; the shards' indices are kept. Several threads may ask."""

    def __init__(self, layout: ChunkObjects, chunks: _Folder) -> None:
        assert layout.shard is not None
        self._layout = layout
        self._per_shard = layout.shard
        self._chunks = chunks
        self._size = math.prod(layout.shard) * _ENTRY_BYTES + _CHECKSUM_BYTES * layout.index_checked
        self._lock = Lock()
        self._indices: RecentlyUsed[str, Future[tuple[NDArray[np.uint64], str] | None]] = RecentlyUsed(
            _INDICES_KEPT_BYTES, weigh=lambda _: self._size
        )

    def chunk(self, at: tuple[int, ...]) -> Bytes | None:
        pairs = list(zip(at, self._per_shard, strict=True))
        key = self._layout.key([chunk // number for chunk, number in pairs])
        index = self._index(key)
        if index is None:
            return None
        entries, version = index
        offset, size = entries[np.ravel_multi_index([chunk % number for chunk, number in pairs], self._per_shard)]
        return None if offset == _NO_CHUNK else self._chunks.part(key, int(offset), int(size), version)

    def _index(self, key: str) -> tuple[NDArray[np.uint64], str] | None:
        """Offsets and sizes of the shard's chunks, and its version; of several threads that ask, one reads it."""
        with self._lock:
            found = self._indices.get(key)
            mine: Future[tuple[NDArray[np.uint64], str] | None] = Future()
            if found is None or (found.done() and found.exception() is not None):
                self._indices.put(key, mine)
                found = mine
        if found is mine:
            try:
                mine.set_result(self._read_index(key))
            except Exception as error:
                mine.set_exception(error)
        return found.result()

    def _read_index(self, key: str) -> tuple[NDArray[np.uint64], str] | None:
        stored = self._chunks.edge(key, self._size, at_end=self._layout.index_at_end)
        if stored is None:
            return None
        data, version = stored
        try:
            if len(data) != self._size:
                raise ChunkError(f"it has {len(data)} bytes instead of {self._size}")
            payload = without_crc32c(data) if self._layout.index_checked else data
        except ChunkError as error:
            raise SourceError(f"{self._layout.folder}/{key}: the shard's index is damaged: {error}") from error
        return payload.view("<u8").reshape(-1, 2), version


def folder_at(path: str) -> _Folder:
    """The folder on disk or in object storage."""
    return _RemoteFolder(path) if is_url(path) else _Folder(path)


class _Folder:
    """Chunks or shards as files of a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def whole(self, key: str) -> Bytes | None:
        """All bytes, None if there is no such file."""
        with suppress(FileNotFoundError):
            return np.frombuffer(read_whole(self._folder / key), np.uint8)
        return None

    def edge(self, key: str, size: int, *, at_end: bool) -> tuple[Bytes, str] | None:
        """The last bytes or the first ones, and the version; None if there is no such file."""
        with suppress(FileNotFoundError):
            offset = max(0, (self._folder / key).stat().st_size - size) if at_end else 0
            return np.fromfile(self._folder / key, np.uint8, size, offset=offset), self._version(key)
        return None

    def part(self, key: str, offset: int, size: int, version: str) -> Bytes:
        """Bytes of what is still of this version; raises SourceError if it is not."""
        data = np.fromfile(self._folder / key, np.uint8, size, offset=offset)
        if self._version(key) != version or len(data) != size:
            raise SourceError(
                f"{self._folder / key}: it was changed since its index was read; start the training again"
            )
        return data

    def _version(self, key: str) -> str:
        status = (self._folder / key).stat()
        return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


class _RemoteFolder(_Folder):
    """The same in object storage."""

    def __init__(self, folder: str) -> None:
        self._store: ObjectStore
        self._store, self._prefix = locate(folder)

    def whole(self, key: str) -> Bytes | None:
        found = self._store.get_whole(f"{self._prefix}/{key}")
        return None if found is None else np.frombuffer(found, np.uint8)

    def edge(self, key: str, size: int, *, at_end: bool) -> tuple[Bytes, str] | None:
        # Only the last bytes are asked for by number without knowing the version: a shard with its index first is rare.
        found = self._store.get_end(f"{self._prefix}/{key}", size if at_end else 1)
        if found is None:
            return None
        return np.frombuffer(found[0], np.uint8) if at_end else self.part(key, 0, size, found[1]), found[1]

    def part(self, key: str, offset: int, size: int, version: str) -> Bytes:
        return np.frombuffer(self._store.get(f"{self._prefix}/{key}", offset, offset + size, version), np.uint8)
