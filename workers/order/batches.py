"""Which global positions each batch of each rank takes, and which batches share a slot: arithmetic, O(1) for any batch.

A *round* is what all ranks take together: batch k of every rank is round k. Positions are global (see epoch_order).

A *group* is what one slot holds: one batch, or several consecutive ones if batches are so small that a message for each
would cost more than their samples. Row r of a group is row r % batch_size of its batch r // batch_size; a short last
batch leaves the rest of its rows unused. The ledger counts groups, and the trainer gets their batches one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ..base.errors import ParameterError
from ..base.keys import derive_key
from ..base.parameters import Parameters, without_source

_GROUP_BYTES = 4 << 20
_GROUP_S = 0.004
"""Half of it would do, but the trial of a row takes twice as long beside other work."""
_MOST_BATCHES = 64


class BatchRange(msgspec.Struct, frozen=True):
    """The rows of one batch: global positions start … start+rows-1."""

    start: int
    rows: int


class Batches:
    """The batches of one rank; every rank has the same number of them.

    `last_batch` says what happens if an epoch is not a multiple of batch_size × world_size:

    - wrap: the endless sequence of epochs is cut into full batches. With `epochs`, the last round is filled up from the
      epoch that would come next.
    - drop: each epoch has as many full rounds as fit; the samples behind them are left out.
    - partial: the last round of an epoch deals what is left to the ranks, in parts whose sizes differ by one at most.

    `start`: the global position of the first round, to resume or to skip. Batches with `start=other.round_start(k)` and
    otherwise the same arguments are exactly those of `other` from k on; batch_size, world_size and last_batch may
    differ too, and still no sample of the epoch comes twice. `epochs` are counted from epoch 0, whatever `start` is.

    Raises ParameterError if a rank would get nothing.
    """

    def __init__(self, samples: int, parameters: Parameters, start: int = 0) -> None:
        self.samples = samples
        self.parameters = without_source(parameters)
        self.rank, self.world_size = parameters.rank or 0, parameters.world_size or 1
        self.start = start
        self.round_rows = parameters.batch_size * self.world_size
        self._first_epoch, skipped = divmod(start, samples)
        self.batches_per_epoch = self._rounds_in(samples)
        """Batches of this rank in a whole epoch; for wrap, whose epochs may end within a batch, rounded up."""
        self._first_rounds = self._rounds_in(samples - skipped)
        self._check_every_rank_gets_some(samples - skipped)
        self.total = self._total()
        """Batches of this rank from `start` to the end of the last epoch; None if there is no end."""

    def begun_at(self, start: int, epochs: int | None) -> Batches:
        """The same from the global position `start` to the end of so many epochs."""
        return Batches(self.samples, msgspec.structs.replace(self.parameters, epochs=epochs), start)

    def _total(self) -> int | None:
        epochs = self.parameters.epochs
        if epochs is None:
            return None
        if self.parameters.last_batch == "wrap":
            return max(0, -(-(epochs * self.samples - self.start) // self.round_rows))
        if self._first_epoch >= epochs:
            return 0
        return self._first_rounds + (epochs - self._first_epoch - 1) * self.batches_per_epoch

    def batch(self, k: int) -> BatchRange:
        """The k-th batch of this rank; raises IndexError if there is no such batch."""
        total = self.total
        if k < 0 or (total is not None and k >= total):
            raise IndexError(f"batch {k} of {total} batches")
        start = self.round_start(k)
        batch_size = self.parameters.batch_size
        rest = self.samples - start % self.samples
        if self.parameters.last_batch != "partial" or rest >= self.round_rows:
            return BatchRange(start + self.rank * batch_size, batch_size)
        rows, longer = divmod(rest, self.world_size)
        return BatchRange(start + self.rank * rows + min(self.rank, longer), rows + (self.rank < longer))

    def round_start(self, k: int) -> int:
        """The global position where round k begins: what a state holds when k batches have been taken."""
        if self.parameters.last_batch == "wrap" or k < self._first_rounds:
            return self.start + k * self.round_rows
        epochs, number = divmod(k - self._first_rounds, self.batches_per_epoch)
        return (self._first_epoch + 1 + epochs) * self.samples + number * self.round_rows

    def ends_epoch(self, k: int) -> bool:
        """Whether an epoch ends with round k or within it; the same for all ranks."""
        return self.round_start(k) // self.samples < self.round_start(k + 1) // self.samples

    def _rounds_in(self, rows: int) -> int:
        drops = self.parameters.last_batch == "drop"
        return rows // self.round_rows if drops else -(-rows // self.round_rows)

    def _check_every_rank_gets_some(self, first_rows: int) -> None:
        last_batch = self.parameters.last_batch
        sizes = f"samples={self.samples}, batch_size={self.parameters.batch_size}, world_size={self.world_size}"
        if last_batch == "drop" and not self.batches_per_epoch:
            raise ParameterError(
                f"last_batch is 'drop', and an epoch has no full batch for every rank: {sizes}, but "
                f"{self.round_rows} samples are needed; use a smaller batch_size, or last_batch 'wrap' or 'partial'"
            )
        for rows, what in ((self.samples, "an epoch"), (first_rows, f"the epoch from position {self.start} on")):
            rest = rows % self.round_rows
            if last_batch == "partial" and 0 < rest < self.world_size:
                raise ParameterError(
                    f"last_batch is 'partial', and the last round of {what} has {rest} samples for "
                    f"{self.world_size} ranks, so some would get none: {sizes}; use last_batch 'wrap' or 'drop'"
                )


def rand_skip_of(seed: int, rand_skip: int) -> int:
    """Samples to skip once at the start: uniform below `rand_skip`, the same for all ranks; 0 if rand_skip is 0."""
    return derive_key(seed, "rand_skip") * rand_skip >> 64


# ---- groups


def batches_per_slot(batch_bytes: int, batch_size: int, seconds_per_row: float, ahead: int | None = None) -> int:
    """How many batches share a slot: more than one only if they are small and quickly made.

    `ahead`: batches that may be made ahead of the trainer, if that has a bound: two slots at least shall share them.
    """
    by_size = _GROUP_BYTES // max(1, batch_bytes)
    by_time = int(_GROUP_S / max(1e-9, seconds_per_row * batch_size))
    return max(1, min(by_size, by_time, _MOST_BATCHES if ahead is None else ahead // 2))


class Segment(msgspec.Struct, frozen=True):
    """`rows` consecutive rows of a slot from `row`, holding consecutive global positions from `position`."""

    position: int
    row: int
    rows: int


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
        first = group * self.batches_per_slot
        end = first + self.batches_per_slot
        total = self.batches.total
        return range(first, end if total is None else min(end, total))

    def rows_of(self, group: int) -> int:
        return len(self.numbers(group)) * self.batches.parameters.batch_size

    def position_of(self, group: int, row: int) -> int:
        """The global position that stands in `row` of `group`, or would if its batch were full."""
        number, within = divmod(row, self.batches.parameters.batch_size)
        return self.batches.batch(group * self.batches_per_slot + number).start + within

    def segments(self, group: int, first_row: int, rows: int) -> Iterator[Segment]:
        """What lies in rows first_row … first_row+rows-1, adjoining positions together."""
        if (whole := self._in_one_piece(group, first_row, rows)) is not None:
            yield whole
            return
        size = self.batches.parameters.batch_size
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
            elif (pending.position + pending.rows, pending.row + pending.rows) == (part.position, part.row):
                pending = Segment(pending.position, pending.row, pending.rows + part.rows)
            else:
                yield pending
                pending = part
        if pending is not None:
            yield pending

    def _in_one_piece(self, group: int, first_row: int, rows: int) -> Segment | None:
        """These rows, if they follow each other: nearly always, and known from the first batch and the last."""
        size, number = self.batches.parameters.batch_size, group * self.batches_per_slot
        first, last = first_row // size, (first_row + rows - 1) // size
        if self.batches.world_size > 1 or first >= last:
            return None
        begin, end = self.batches.batch(number + first), self.batches.batch(number + last)
        # From batch to batch it is a batch's size, but at the end of an epoch: never less with drop, never more with
        # partial. So if it is as far as it should be from the first to the last, it is everywhere.
        if end.start - begin.start != (last - first) * size:
            return None
        count = min(rows, last * size + end.rows - first_row)
        return Segment(begin.start + first_row - first * size, first_row, count)
