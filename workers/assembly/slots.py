"""The slots of a ring, and which batch each of them holds. Pure.

A batch takes a slot when it is opened, and gives it back when the trainer has released it, in whatever order. Batches
that are made together take slots side by side, where their rows adjoin.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator


class Slots:
    """`count` slots. The trainer is done with all batches below `released`, but for those that are on loan to it."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        """In rising order. The first ones are used first: what was in use last is still in the processor's caches."""
        self._of: dict[int, int] = {}
        """By batch."""
        self.released = 0
        self.loans: set[int] = set()

    def free(self, most: int) -> range:
        """Return the first `most` free slots side by side, or, where there are none, the longest stretch of them."""
        longest = range(0)
        start = end = -1
        for slot in self._free:
            if slot != end:
                start = slot
            end = slot + 1
            if end - start > len(longest):
                longest = range(start, end)
                if len(longest) == most:
                    break
        return longest

    def take(self, batch: int, slots: range) -> None:
        """Put the batches from `batch` on into `slots`, all of which are free."""
        at = bisect.bisect_left(self._free, slots.start)
        del self._free[at : at + len(slots)]
        self._of.update(zip(range(batch, batch + len(slots)), slots, strict=True))

    @property
    def under_way(self) -> int:
        """The number of batches that have a slot, those on loan left out."""
        return len(self._of) - len(self.loans)

    def of(self, batch: int) -> int:
        """Return the slot of the batch."""
        return self._of[batch]

    def drop(self, batch: int) -> None:
        """Free the slot of the batch."""
        bisect.insort(self._free, self._of.pop(batch))

    def release(self, upto: int, loans: Collection[int]) -> list[int]:
        """Free the slots of the batches below `upto`, but for `loans`; returns these batches.

        What an earlier message has freed stays free: a late or repeated one changes nothing.
        """
        if upto < self.released:
            return []
        done = [batch for batch in self._newly_done(upto, loans) if batch in self._of]
        self.loans = {batch for batch in loans if batch in self._of and batch < upto}
        self.released = upto
        for batch in done:
            self.drop(batch)
        return done

    def _newly_done(self, upto: int, loans: Collection[int]) -> Iterator[int]:
        yield from (batch for batch in sorted(self.loans) if batch not in loans)
        yield from (batch for batch in range(self.released, upto) if batch not in loans)
