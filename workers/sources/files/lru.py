"""A mapping that forgets what was not used for the longest time: decoded chunks, fetched blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ...base.specs import AnyArray
from .scratch import Scratch

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class RecentlyUsed(Generic[_Key, _Value]):
    """Values whose weights add up to at most `limit`.

    A value heavier than the whole limit is not kept. (cachetools.LRUCache refuses such a value by an exception.)
    """

    def __init__(self, limit: int, weigh: Callable[[_Value], int]) -> None:
        self.limit = limit
        self.weight = 0
        self._weigh = weigh
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
        while self.weight > self.limit:
            self._let_go(next(iter(self._values)))

    def clear(self) -> None:
        """Let go of everything."""
        self._values.clear()
        self.weight = 0

    def _let_go(self, key: _Key) -> None:
        self.weight -= self._weigh(self._values.pop(key))


class ChunkCache(RecentlyUsed[tuple[str, str, int], AnyArray]):
    """Decoded chunks by file, name of the array, and number, of at most `limit` bytes.

    `scratch`: for the bytes that the next one is decoded from.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, weigh=lambda chunk: chunk.nbytes)
        self.scratch = Scratch()
