"""A mapping that forgets what was not used for the longest time: open files by number, decoded chunks by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ...base.specs import AnyArray

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def _one(_: object) -> int:
    return 1


def _nothing(_: object) -> None:
    return None


class RecentlyUsed(Generic[_Key, _Value]):
    """Values whose weights add up to at most `limit`; `discard` is called with each that has to go.

    A value heavier than the whole limit is not kept.
    """

    def __init__(
        self,
        limit: int,
        weigh: Callable[[_Value], int] = _one,
        discard: Callable[[_Value], None] = _nothing,
    ) -> None:
        self.limit = limit
        self.weight = 0
        self._weigh = weigh
        self._discard = discard
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: _Key) -> _Value | None:
        """The value under `key`, now the most recently used one, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: _Key, value: _Value) -> None:
        """Keep `value`, and let go of the least recently used ones as far as the limit demands."""
        self.pop(key)
        self._values[key] = value
        self.weight += self._weigh(value)
        while self.weight > self.limit:
            self.pop(next(iter(self._values)))

    def pop(self, key: _Key) -> None:
        """Let go of what is under `key`, if anything."""
        if key in self._values:
            value = self._values.pop(key)
            self.weight -= self._weigh(value)
            self._discard(value)

    def clear(self) -> None:
        """Let go of everything."""
        for key in list(self._values):
            self.pop(key)


ChunkCache = RecentlyUsed[tuple[str, str, int], AnyArray]
"""Decoded chunks by file, name of the array, and number; weighed by their bytes."""


def chunk_cache(limit_bytes: int) -> ChunkCache:
    """A cache for decoded chunks of at most so many bytes together."""
    return RecentlyUsed(limit_bytes, weigh=_bytes_of)


def _bytes_of(chunk: AnyArray) -> int:
    return chunk.nbytes
