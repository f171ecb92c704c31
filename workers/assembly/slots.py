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

    def free(self, most: int) -> int:
        """Return the number of free slots side by side, from the first one on, at most `most`."""
        count = min(most, len(self._free))
        while count > 1 and self._free[count - 1] - self._free[0] >= count:
            count -= 1
        return count

    def take(self, batch: int, count: int) -> int:
        """Put `count` batches from `batch` on into as many of the slots that `free` has counted; returns the first."""
        slot = self._free[0]
        self._of.update(zip(range(batch, batch + count), self._free[:count], strict=True))
        del self._free[:count]
        return slot

    @property
    def used(self) -> int:
        return len(self._of)

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
