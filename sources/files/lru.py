"""Memory that is kept: decoded chunks and fetched blocks, up to a limit, and scratch memory that is used again."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...workers.api import AnyArray

_LARGEST_SCRATCH_BYTES = 64 << 20
_FILL_ENTRY_BYTES = 512
"""The bytes of an array object, its key and its place in the cache: else millions of them would be kept at no cost."""

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class RecentlyUsed(Generic[_Key, _Value]):
    """Values whose weights add up to at most `limit`; the `least` that were used last are kept in any case.

    Else a value heavier than the whole limit is not kept. (cachetools.LRUCache refuses it by an exception.)
    """

    def __init__(self, limit: int, weigh: Callable[[_Value], int], least: int = 0) -> None:
        self.limit = limit
        self.weight = 0
        self._weigh, self._least = weigh, least
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        """The value under `key`, if there is one; this is not a use of it."""
        return self._values.get(key)

    def get_or_make(self, key: _Key, make: Callable[..., _Value], *arguments: object) -> _Value:
        """The value under `key`, now the most recently used one; make(*arguments) if there is none."""
        value = self._values.get(key)
        if value is None:
            value = make(*arguments)
            self.put(key, value)
        else:
            self._values.move_to_end(key)
        return value

    def put(self, key: _Key, value: _Value) -> None:
        """Keep `value`, and let go of the least recently used ones as far as the limit demands."""
        if key in self._values:
            self._let_go(key)
        self._values[key] = value
        self.weight += self._weigh(value)
        while self.weight > self.limit and len(self._values) > self._least:
            self._let_go(next(iter(self._values)))

    def clear(self) -> None:
        self._values.clear()
        self.weight = 0

    def _let_go(self, key: _Key) -> None:
        self.weight -= self._weigh(self._values.pop(key))


class Scratch(threading.local):
    """Memory for one picture, or one stored chunk, kept for the next one of the same size or less; each thread its own.

    What the kernel gives anew it clears page by page: for a chunk of 800 KB that took as long as reading it.
    """

    memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Memory of this shape, holding anything, until the next call."""
        size = math.prod(shape)
        if size > _LARGEST_SCRATCH_BYTES:
            return np.empty(shape, np.uint8)
        if size > self.memory.size:
            self.memory = np.empty(size, np.uint8)
        return self.memory[:size].reshape(shape)


def _held_bytes(chunk: AnyArray) -> int:
    """The memory that keeping `chunk` takes: one that was never written is a single value, however large its shape."""
    return chunk.nbytes if any(chunk.strides) else _FILL_ENTRY_BYTES


class ChunkCache(RecentlyUsed[tuple[str, str, int], AnyArray]):
    """Decoded chunks by file, name of the array, and number, of at most `limit` bytes.

    `scratch`: for the bytes that the next one is decoded from.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, _held_bytes)
        self.scratch = Scratch()
