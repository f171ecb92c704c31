"""Units: what one slot holds and what the ledger counts. Pure arithmetic over the batch plan.

A unit is one batch, or several consecutive ones where batches are so small that a message for each would cost more
than their samples. Row r of a unit is row r % batch_size of its batch r // batch_size; a short last batch leaves the
rest of its rows unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .batches import BatchPlan


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` consecutive rows of a slot from `row`, holding consecutive global positions from `position`."""

    position: int
    row: int
    count: int


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """The plan's batches, `batches_per_unit` to a unit."""

    plan: BatchPlan
    batches_per_unit: int

    @property
    def rows(self) -> int:
        """Rows of a full unit: what a slot has room for."""
        return self.batches_per_unit * self.plan.batch_size

    @property
    def total(self) -> int | None:
        batches = self.plan.total
        return None if batches is None else -(-batches // self.batches_per_unit)

    def batches(self, unit: int) -> range:
        first = unit * self.batches_per_unit
        end = first + self.batches_per_unit
        total = self.plan.total
        return range(first, end if total is None else min(end, total))

    def rows_of(self, unit: int) -> int:
        return len(self.batches(unit)) * self.plan.batch_size

    def position_of(self, unit: int, row: int) -> int:
        """The global position that stands in `row` of `unit`, or would if its batch were full."""
        number, place = divmod(row, self.plan.batch_size)
        return self.plan.batch(unit * self.batches_per_unit + number).start + place

    def segments(self, unit: int, first_row: int, rows: int) -> Iterator[Segment]:
        """What lies in rows first_row … first_row+rows-1, adjoining positions together."""
        size = self.plan.batch_size
        pending: Segment | None = None
        for number in range(first_row // size, -(-(first_row + rows) // size)):
            batch = self.plan.batch(unit * self.batches_per_unit + number)
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
