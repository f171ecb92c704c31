"""Groups: the consecutive batches that share one slot. Pure arithmetic over the batches.

A group is one batch, or several if batches are so small that a message for each would cost more than their samples.
Row r of a group is row r % batch_size of its batch r // batch_size; a short last batch leaves the rest of its rows
unused. The ledger counts groups, and the trainer gets their batches one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .batches import Batches

_GROUP_BYTES = 4 << 20
_GROUP_S = 0.002
_MOST_BATCHES = 16


def batches_per_slot(batch_bytes: int, batch_size: int, seconds_per_row: float) -> int:
    """How many batches share a slot: more than one only if they are small and quickly made."""
    by_size = _GROUP_BYTES // max(1, batch_bytes)
    by_time = int(_GROUP_S / max(1e-9, seconds_per_row * batch_size))
    return max(1, min(by_size, by_time, _MOST_BATCHES))


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` consecutive rows of a slot from `row`, holding consecutive global positions from `position`."""

    position: int
    row: int
    count: int


@dataclass(frozen=True, slots=True)
class Groups:
    """The batches, `batches_per_slot` in each group."""

    batches: Batches
    batches_per_slot: int

    @property
    def total(self) -> int | None:
        batches = self.batches.total
        return None if batches is None else -(-batches // self.batches_per_slot)

    def numbers(self, group: int) -> range:
        """The numbers of the group's batches."""
        first = group * self.batches_per_slot
        end = first + self.batches_per_slot
        total = self.batches.total
        return range(first, end if total is None else min(end, total))

    def rows_of(self, group: int) -> int:
        return len(self.numbers(group)) * self.batches.batch_size

    def position_of(self, group: int, row: int) -> int:
        """The global position that stands in `row` of `group`, or would if its batch were full."""
        number, within = divmod(row, self.batches.batch_size)
        return self.batches.batch(group * self.batches_per_slot + number).start + within

    def segments(self, group: int, first_row: int, rows: int) -> Iterator[Segment]:
        """What lies in rows first_row … first_row+rows-1, adjoining positions together."""
        size = self.batches.batch_size
        pending: Segment | None = None
        for number in range(first_row // size, -(-(first_row + rows) // size)):
            batch = self.batches.batch(group * self.batches_per_slot + number)
            begin = max(first_row - number * size, 0)
            end = min(first_row + rows - number * size, batch.rows)
            if begin >= end:
                continue
            part = Segment(batch.start + begin, number * size + begin, end - begin)
            if pending is None:
                pending = part
            elif (pending.position + pending.count, pending.row + pending.count) == (part.position, part.row):
                pending = Segment(pending.position, pending.row, pending.count + part.count)
            else:
                yield pending
                pending = part
        if pending is not None:
            yield pending
