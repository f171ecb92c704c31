"""Cuts epochs into rounds, one after the other, as their lengths become known. Pure.

The rule of the cut is the heart's (workers/order/cut.py). Where all epochs have one length, it also says by arithmetic
where any round begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..workers.api import IndexArray, Parameters
from ..workers.order import At, Cut, Placed, Rounds, part_of
from ..workers.transport import Run


class Epochs(Protocol):
    """The items of each epoch, in order."""

    @property
    def gives_batches(self) -> bool:
        """True if an item is a batch and not a sample."""

    @property
    def is_computed(self) -> bool:
        """True if the lengths of all epochs are known, so that the trainer can compute where each round begins."""

    def length(self, epoch: int) -> int | None:
        """Return the number of items of `epoch`; None while it is not known."""

    def run(self, row: int, epoch: int, item: int, items: int) -> Run:
        """Return the run of these items, for rows from `row` on."""

    def samples_of(self, run: Run) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Return the samples of `run`, the epoch of each, and the number of each (see Sample); shape (rows,)."""

    def affinity(self, run: Run, skipped: int) -> int | None:
        """Return the affinity of the row `skipped` rows behind the first one of `run`; None if there is none."""


class Walk(Rounds):
    """The rounds of `epochs` from `at` on."""

    def __init__(self, epochs: Epochs, given: Parameters, at: At) -> None:
        self.parameters, self.epoch, self.item = given, at.epoch, at.item
        self.ended, self.failure = False, ""
        self._epochs, self.is_computed = epochs, epochs.is_computed
        self._cut = Cut(given, gives_batches=epochs.gives_batches)
        self._ranks, self._rank = given.ranks, given.own_rank

    def place(self, row: int, most: int) -> Placed | None:
        ranks, rank, each = self._ranks, self._rank, self._cut.each
        left, rounds = self._left_in_epoch(), 1
        if not left:
            return None
        items, first = self._cut.round_items, rank * each
        if self.parameters.last_batch == "partial" and left < items:
            items = left
            each, longer = divmod(items, ranks)
            first, each = rank * each + min(rank, longer), each + (rank < longer)
        elif ranks == 1 and not self._epochs.gives_batches and left > items:
            rounds = min(most, left // items)
            items = each = items * rounds
        found = self._walk(items)
        if found is None:
            return None
        epoch, end, length = found[-1]
        runs = list(self._runs(row, found, first, first + each))
        self.epoch, self.item = (epoch, end) if self._cut.rounds_in(length - end) else (epoch + 1, 0)
        if self.is_computed:
            return Placed(runs, rounds, ())
        inner = [At(runs[0].epoch, runs[0].position + each // rounds * n) for n in range(1, rounds)]  # of one run
        return Placed(runs, rounds, [*inner, At(self.epoch, self.item)])

    def affinity(self, run: Run, skipped: int) -> int | None:
        return self._epochs.affinity(run, skipped)

    def sample_in(self, run: Run, skipped: int, seen: int) -> tuple[int, int, str]:
        indices, epochs, _ = self._epochs.samples_of(part_of(run, min(skipped, run.rows - 1), 1))
        return int(epochs[0]), int(indices[0]), ""

    def _left_in_epoch(self) -> int:
        """Return the items left in the epoch; if they make no further round, go on to the next epoch first.

        Returns 0 while a length is awaited, and at the end.
        """
        epochs = self.parameters.epochs
        while not self.ended:
            if epochs is not None and self.epoch >= epochs:
                self.ended = True
                break
            length = self._epochs.length(self.epoch)
            if length is None:
                break
            left = length - self.item
            if left < 0:
                self._stop(
                    f"{self.draws.called(self.epoch)}: it has {length}, and the state to go on from stands behind "
                    f"{self.item}: use the same sampler"
                )
            elif not self.item and (why := self._cut.refusal(length, self.draws.called(self.epoch))):
                self._stop(why)
            elif self._cut.rounds_in(left):
                return left
            else:
                self.epoch, self.item = self.epoch + 1, 0
        return 0

    def _stop(self, why: str) -> None:
        """End the run before the present epoch."""
        self.ended, self.failure = True, why

    def _walk(self, items: int) -> list[tuple[int, int, int]] | None:
        """Return (epoch, item behind the last one, length) for all epochs that hold the next `items` items."""
        found, epoch, item = [], self.epoch, self.item
        while items:
            length = self._epochs.length(epoch)
            if length is None:
                return None
            taken = min(items, length - item)
            found.append((epoch, item + taken, length))
            items, epoch, item = items - taken, epoch + 1, 0
        return found

    def _runs(self, row: int, found: list[tuple[int, int, int]], first: int, end: int) -> Iterator[Run]:
        """Yield the runs of the round's items first … end-1."""
        begin, item = 0, self.item
        for epoch, stop, _ in found:
            low, high = max(first - begin, 0) + item, min(end - begin, stop - item) + item
            if low < high:
                run = self._epochs.run(row, epoch, low, high - low)
                row += run.rows
                yield run
            begin, item = begin + stop - item, 0
