"""A buffer that gives its elements back in random order, as TensorFlow's RandomShuffleQueue does, without threads.

It is for streams: they have no indices that could be permuted.
"""

from __future__ import annotations

import queue
import random
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from ..base.errors import ParameterError
from ..base.keys import derive_key

_Item = TypeVar("_Item")


class ShuffleBuffer(Generic[_Item]):
    """Holds up to `capacity` elements; each pop takes one of those that it holds, all equally likely.

    A pop must leave `min_after_dequeue` elements behind, so that there is always something to choose from; when the
    buffer has been closed, which means that nothing more will come, it may be drained to the end.
    Equal seeds and equal sequences of calls give equal results. Raises ParameterError.
    """

    def __init__(self, capacity: int, min_after_dequeue: int, seed: int) -> None:
        if not 0 <= min_after_dequeue < capacity:
            raise ParameterError(
                f"min_after_dequeue is {min_after_dequeue} and capacity {capacity}: "
                "expected 0 <= min_after_dequeue < capacity"
            )
        self.capacity = capacity
        self.min_after_dequeue = min_after_dequeue
        self._items: list[_Item] = []
        self._closed = False
        self._random = random.Random(derive_key(seed, "shuffle buffer"))

    def __len__(self) -> int:
        return len(self._items)

    def can_push(self) -> bool:
        return not self._closed and len(self._items) < self.capacity

    def push(self, item: _Item) -> None:
        """Raises queue.Full if the buffer is full, ValueError after close()."""
        if self._closed:
            raise ValueError("push after close(): the buffer was told that nothing more would come")
        if len(self._items) >= self.capacity:
            raise queue.Full(f"the shuffle buffer holds its capacity of {self.capacity}: pop first")
        self._items.append(item)

    def can_pop(self) -> bool:
        return len(self._items) > (0 if self._closed else self.min_after_dequeue)

    def pop(self) -> _Item:
        """Raises queue.Empty while can_pop() is false."""
        if not self.can_pop():
            raise queue.Empty(
                f"the shuffle buffer holds {len(self._items)} elements of which {self.min_after_dequeue} must stay: "
                "push more, or close it"
            )
        # Of random.Random only random() is promised to stay the same in later versions of Python.
        chosen = int(self._random.random() * len(self._items))
        self._items[chosen], self._items[-1] = self._items[-1], self._items[chosen]
        return self._items.pop()

    def close(self) -> None:
        """Nothing more will come: what is held may be drained."""
        self._closed = True


def shuffled(items: Iterable[_Item], buffer: ShuffleBuffer[_Item]) -> Iterator[_Item]:
    """All `items` through a fresh `buffer`, kept full: the order depends on the seed alone, never on timing."""
    for item in items:
        buffer.push(item)
        if not buffer.can_push():
            yield buffer.pop()
    buffer.close()
    while buffer.can_pop():
        yield buffer.pop()
