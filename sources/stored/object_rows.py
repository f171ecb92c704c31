"""Samples of an array whose chunks, or shards of chunks, are files or objects of their own, as zarr has them."""

from __future__ import annotations

import math
from concurrent.futures import Future
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ...workers.api import AnyArray, IndexArray
from ...workers.base import SourceError
from ..files import Bytes, ChunkCache, ObjectStore, Pending, RecentlyUsed, RemoteStamp, distinct, locate
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
        self._steps = [math.prod(self._grid[axis + 1 :]) for axis in range(len(self._grid))]
        self._store, folder = locate(layout.folder)
        self._lead = f"{folder}/" if folder else ""
        self._shards = _Shards(layout, self._store, self._lead) if layout.shard else None
        home = array.file.home if isinstance(array.file, RemoteStamp) else None
        self._is_remote = home is not None
        self._asked: Pending[int, Bytes | None] = Pending(home)

    def read(self, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
        self._fetch(self._numbers(indices))
        super().read(indices, positions, rows)

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        return self._will_need_chunks(self._numbers(indices), now=now)

    def _will_need_chunks(self, numbers: IndexArray, *, now: bool) -> bool:
        if self._is_remote and (now or self._asked.has_room(len(numbers), _MOST_ANNOUNCED)):
            self._asked.ask_each(self._not_kept(numbers).tolist(), self._stored)
        return not self._is_remote  # chunks on disk are read one by one, when they are decoded

    def _fetch(self, numbers: IndexArray) -> None:
        self._asked.begin()
        self._will_need_chunks(distinct(numbers), now=True)

    def _decoded(self, number: int) -> AnyArray:
        stored = self._asked.take(number) if number in self._asked else self._stored(number)
        try:
            return chunk_values(stored, self._layout, self._dtype)
        except ChunkError as error:
            raise SourceError(f"{self._array}: chunk {self._at(number)}: {error}") from error

    def _at(self, number: int) -> tuple[int, ...]:
        """The place of a chunk in the grid; NumPy takes 15 µs for it."""
        return tuple(number // step % extent for step, extent in zip(self._steps, self._grid, strict=True))

    def _stored(self, number: int) -> Bytes | None:
        """The bytes of a chunk as they are stored, None if it was never written."""
        at = self._at(number)
        if self._shards is not None:
            return self._shards.chunk(at)
        stored = self._store.get_whole(self._lead + self._layout.key(at))
        return None if stored is None else np.frombuffer(stored, np.uint8)


class _Shards:
    """Chunks in shards; the shards' indices are kept. Several threads may ask."""

    def __init__(self, layout: ChunkObjects, store: ObjectStore, lead: str) -> None:
        assert layout.shard is not None
        self._layout = layout
        self._per_shard = layout.shard
        self._store, self._lead = store, lead
        self._size = math.prod(layout.shard) * _ENTRY_BYTES + _CHECKSUM_BYTES * layout.index_checked
        self._lock = Lock()
        self._indices: RecentlyUsed[str, Future[tuple[NDArray[np.uint64], str] | None]] = RecentlyUsed(
            _INDICES_KEPT_BYTES, weigh=lambda _: self._size
        )

    def chunk(self, at: tuple[int, ...]) -> Bytes | None:
        pairs = list(zip(at, self._per_shard, strict=True))
        key = self._lead + self._layout.key([chunk // number for chunk, number in pairs])
        index = self._index(key)
        if index is None:
            return None
        entries, version = index
        offset, size = entries[np.ravel_multi_index([chunk % number for chunk, number in pairs], self._per_shard)]
        if offset == _NO_CHUNK:
            return None
        return np.frombuffer(self._store.get(key, int(offset), int(offset) + int(size), version), np.uint8)

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
        if (found := self._store.look(key)) is None:
            return None
        size, version = found
        start = size - self._size if self._layout.index_at_end else 0
        try:
            if size < self._size:
                raise ChunkError(f"it has {size} bytes instead of {self._size}")
            data = np.frombuffer(self._store.get(key, start, start + self._size, version), np.uint8)
            payload = without_crc32c(data) if self._layout.index_checked else data
        except ChunkError as error:
            raise SourceError(
                f"{self._store.url(key)}: the shard's index is damaged, or zarr.json, which says where it lies: {error}"
            ) from error
        return payload.view("<u8").reshape(-1, 2), version
