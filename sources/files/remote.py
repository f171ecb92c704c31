"""A file in object storage, with the same methods as one on disk: what is asked of it together is fetched together.

    offsets → ranges not yet under way → merged (a small gap costs less than a request) → threads of this process
            → each range's bytes are copied to the rows that they belong to

A loader waits for the network and does not compute, so threads are enough: obstore holds no lock of Python's while it
waits. In the process that examined the file, usually the trainer, no thread is started: there ranges come one by one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import numpy as np

from ...workers.api import IndexArray
from ...workers.base import SourceError
from .file import Bytes, FileStamp
from .lru import RecentlyUsed
from .object_stores import locate
from .streams import SeekableStream
from .urls import is_url

CONNECTIONS = 32
"""Requests of one loader at a time, and samples in a task: each loader has another such task announced."""

_GAP_BYTES = 1 << 16
_LARGEST_REQUEST = 8 << 20
_SMALL_ROW = 4096
_BLOCK_BYTES = 1 << 15
_BLOCKS_KEPT_BYTES = 32 << 20
_ANNOUNCED_BYTES = 64 << 20
_FORGOTTEN_AFTER = 8

_Key = TypeVar("_Key", bound=Hashable)
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class RemoteStamp:
    """An object as it was when it was examined; each answer says which version it is of.

    `version`: its ETag, or what else the store says of it that changes with it.
    """

    path: str
    size: int
    version: str
    home: int = field(default_factory=os.getpid, repr=False, compare=False)

    @classmethod
    def of(cls, url: str) -> RemoteStamp:
        store, key = locate(url)
        return cls(url, *store.size_and_version(key))

    def require_unchanged(self, descriptor: int | None = None) -> None:
        """Does nothing: every answer was compared already."""

    @property
    def exact(self) -> tuple[object, ...]:
        """All that tells the object from others."""
        return self.path, self.size, self.version

    on_network = True


Stamp = FileStamp | RemoteStamp


def stamp_of(path: str) -> Stamp:
    """The file or object at `path` as it is now; raises OSError, SourceError."""
    return RemoteStamp.of(path) if is_url(path) else FileStamp.of(path)


def examined_stamp(path: str, what: str) -> Stamp:
    """The same; raises SourceError, begun by `what`, for a file that cannot be opened."""
    try:
        return stamp_of(path)
    except OSError as error:
        raise SourceError(f"{what}: {path!r} cannot be opened: {error.strerror}; check 'path'") from error


class Pending(Generic[_Key, _Found]):
    """Requests that are under way, by key; several keys may share one request.

    Threads of this process make them, so that what is wanted together comes at the same time. In process `home` each
    is made when its answer is taken.
    """

    def __init__(self, home: int | None = None) -> None:
        self._home = os.getpid() if home is None else home
        self._task = 0
        self._answers: dict[_Key, tuple[Callable[[], _Found], int]] = {}

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self._home,)

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._answers)

    def __contains__(self, key: _Key) -> bool:
        return key in self._answers

    def begin(self) -> None:
        """Note that a task begins: what was announced and not taken for many tasks is forgotten.

        Some is never taken: a sample that another process puts into a cache meanwhile comes from there.
        """
        self._task += 1
        for key in [key for key, (_, task) in self._answers.items() if task < self._task - _FORGOTTEN_AFTER]:
            del self._answers[key]

    def has_room(self, wanted: int, most: int) -> bool:
        """Return true if so many more may be announced: up to `most`, but two tasks in any case."""
        return len(self._answers) < max(most, 2 * wanted)

    def ask(self, keys: Iterable[_Key], request: Callable[[], _Found]) -> None:
        """Make a request whose answer is that of all these keys."""
        at_home = os.getpid() == self._home
        answer = functools.cache(request) if at_home else threads(os.getpid()).submit(request).result
        self._answers.update(dict.fromkeys(keys, (answer, self._task)))

    def ask_each(self, keys: Iterable[_Key], request: Callable[[_Key], _Found]) -> None:
        """Make a request for each key that has none under way."""
        for key in keys:
            if key not in self._answers:
                self.ask((key,), functools.partial(request, key))

    def take(self, key: _Key) -> _Found:
        """Return the answer for a key that was asked for; raises what the request raised."""
        try:
            # Each attempt and all of them together have their deadlines, so this ends.
            return self._answers.pop(key)[0]()
        except Exception:
            self._answers.clear()  # another attempt is to ask again, also for what failed beside it
            raise

    def clear(self) -> None:
        self._answers.clear()


class RemoteFile:
    """An object whose bytes are read at offsets; raises SourceError if it is not what was examined."""

    descriptor = -1

    def __init__(self, stamp: RemoteStamp) -> None:
        self.stamp = stamp
        self._store, self._key = locate(stamp.path)
        self._pending: Pending[tuple[int, int], tuple[int, memoryview]] = Pending(stamp.home)
        self._blocks = _kept_blocks(os.getpid())

    def close(self) -> None:
        self._pending.clear()

    def require_intact(self) -> None:
        """Note that a task begins: every answer is compared already."""
        self._pending.begin()

    def read(self, offset: int, size: int) -> Bytes:
        return np.frombuffer(self._take([(offset, size)])[0], np.uint8)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self._take([(offset, len(buffer))])[0]

    def gather_at(self, offsets: IndexArray, positions: IndexArray, rows: Bytes) -> None:
        row_bytes, target = rows.shape[1], rows.data.cast("B")
        if row_bytes <= _SMALL_ROW:
            blocks = self._read_blocks(offsets, row_bytes)
            for offset, to in zip(offsets.tolist(), (positions * row_bytes).tolist(), strict=True):
                _copy_from_blocks(blocks.__getitem__, offset, target[to : to + row_bytes])
            return
        taken = self._take([(offset, row_bytes) for offset in offsets.tolist()])
        for row, to in zip(taken, (positions * row_bytes).tolist(), strict=True):
            target[to : to + row_bytes] = row

    def will_need(self, offsets: IndexArray, sizes: IndexArray | int, *, now: bool = False) -> bool:
        """Start fetching these bytes, as far as they are not under way; returns false.

        Unless they are read `now`, nothing is requested while 64 MiB or more are announced and not yet taken.
        """
        if not now and sum(size for _, size in self._pending) >= _ANNOUNCED_BYTES:
            return False
        if isinstance(sizes, int) and sizes <= _SMALL_ROW:
            offsets, sizes = self._missing_blocks(offsets, sizes)
        pairs = zip(offsets.tolist(), np.broadcast_to(sizes, offsets.shape).tolist(), strict=True)
        wanted = sorted({pair for pair in pairs if pair[1] and pair not in self._pending})
        for group in _merged(wanted):
            start, stop = group[0][0], max(offset + size for offset, size in group)
            self._pending.ask(group, functools.partial(self._get, start, stop))
        return False

    def _get(self, start: int, stop: int) -> tuple[int, memoryview]:
        return start, self._store.get(self._key, start, stop, self.stamp.version)

    def _take(self, wanted: list[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of each (offset, size), which are then forgotten here."""
        self.will_need(np.array([offset for offset, _ in wanted]), np.array([size for _, size in wanted]), now=True)
        taken = {pair: self._bytes_of(*pair) for pair in dict.fromkeys(wanted)}
        return [taken[pair] for pair in wanted]

    def _bytes_of(self, offset: int, size: int) -> memoryview:
        if not size:
            return memoryview(b"")
        start, data = self._pending.take((offset, size))
        return data[offset - start : offset - start + size]

    # ---- small rows, such as labels: whole blocks are kept, since the next ones lie beside them

    def _missing_blocks(self, offsets: IndexArray, row_bytes: int) -> tuple[IndexArray, IndexArray]:
        ends = offsets + (row_bytes - 1)
        wanted = np.union1d(offsets // _BLOCK_BYTES, ends // _BLOCK_BYTES).tolist()
        missing = [number for number in wanted if self._blocks.get((self.stamp, number)) is None]
        starts = np.array(missing, np.int64) * _BLOCK_BYTES
        return starts, np.minimum(self.stamp.size - starts, _BLOCK_BYTES)

    def _read_blocks(self, offsets: IndexArray, row_bytes: int) -> dict[int, memoryview]:
        starts, sizes = self._missing_blocks(offsets, row_bytes)
        missing = (starts // _BLOCK_BYTES).tolist()
        blocks = dict(zip(missing, self._take(list(zip(starts.tolist(), sizes.tolist(), strict=True))), strict=True))
        wanted = np.union1d(offsets // _BLOCK_BYTES, (offsets + row_bytes - 1) // _BLOCK_BYTES).tolist()
        # Those that are kept come first: each new one may let go of another.
        for number in sorted(wanted, key=blocks.__contains__):
            # A copy, since it is part of an answer that would be kept as a whole.
            blocks[number] = self._blocks.get_or_make((self.stamp, number), _copy, blocks.get(number))
        return blocks


def _copy(block: memoryview) -> memoryview:
    return memoryview(bytes(block))


def _copy_from_blocks(block: Callable[[int], memoryview], offset: int, target: memoryview) -> None:
    filled = 0
    while filled < len(target):
        number, within = divmod(offset + filled, _BLOCK_BYTES)
        part = block(number)[within : within + len(target) - filled]
        target[filled : filled + len(part)] = part
        filled += len(part)


def _merged(wanted: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Sorted (offset, size) in groups that one request each fetches."""
    group: list[tuple[int, int]] = []
    end = 0
    for offset, size in wanted:
        if group and (offset > end + _GAP_BYTES or max(end, offset + size) - group[0][0] > _LARGEST_REQUEST):
            yield group
            group, end = [], 0
        group.append((offset, size))
        end = max(end, offset + size)
    if group:
        yield group


class WholeObjects(Pending[str, memoryview | None]):
    """Objects that are read as a whole, such as pictures."""

    def fetch(self, urls: Iterable[str]) -> None:
        self.ask_each(urls, _whole)

    def content(self, url: str) -> bytes:
        """Return all bytes of the object; raises SourceError, FileNotFoundError."""
        self.fetch((url,))
        if (data := self.take(url)) is None:
            raise FileNotFoundError("there is no such object")
        return bytes(data)


def _whole(url: str) -> memoryview | None:
    store, key = locate(url)
    return store.get_whole(key)


@functools.cache
def _kept_blocks(_process: int) -> RecentlyUsed[tuple[RemoteStamp, int], memoryview]:
    """Return the blocks of all objects that this process reads."""
    return RecentlyUsed(_BLOCKS_KEPT_BYTES, weigh=len)


@functools.cache
def threads(_process: int) -> ThreadPoolExecutor:
    """Return the threads of this process: a forked copy has none of its parent's."""
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="object storage")


class RangeStream(SeekableStream):
    """An object as a stream that can seek, for libraries that read its metadata; blocks are kept.

    A block that follows the one before is read with those behind it: metadata often lie in a row. `ahead_bytes`: read
    at once, if all of it will be looked through.
    """

    def __init__(self, stamp: RemoteStamp, ahead_bytes: int = 0) -> None:
        super().__init__(stamp.size)
        self._least = max(1, ahead_bytes // _BLOCK_BYTES)
        self._stamp = stamp
        self._store, self._key = locate(stamp.path)
        self._last = -1
        self._ahead = 1
        self._blocks: RecentlyUsed[int, memoryview] = RecentlyUsed(_BLOCKS_KEPT_BYTES, weigh=len)

    def read_at(self, offset: int, target: memoryview) -> int:
        target = target[: max(0, self.size - offset)]
        _copy_from_blocks(self._block, offset, target)
        return len(target)

    def _block(self, number: int) -> memoryview:
        kept = self._blocks.get(number)
        if kept is not None:
            return kept
        self._ahead = max(self._least, min(2 * self._ahead, 64) if number == self._last + 1 else 1)
        self._last = number + self._ahead - 1
        start = number * _BLOCK_BYTES
        stop = min(self.size, start + self._ahead * _BLOCK_BYTES)
        data = self._store.get(self._key, start, stop, self._stamp.version)
        for at in range(0, len(data), _BLOCK_BYTES):
            self._blocks.put(number + at // _BLOCK_BYTES, memoryview(bytes(data[at : at + _BLOCK_BYTES])))
        return self._blocks.get_or_make(number, lambda: data[:_BLOCK_BYTES])
