"""Cuts an order into rounds: one batch for each rank. Pure.

An *item* is the unit that ranks share out: a sample, or a whole batch if a sampler gives batches. A *run* is a row of
consecutive samples of one epoch. Lengths of epochs may become known only when they are drawn: until then the cut waits.
batches.py counts rounds where all epochs have the same length; this file says which samples they hold. A stream has
ShardRounds, whose face is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from ..base.parameters import Parameters
from ..base.specs import IndexArray
from ..transport.messages import Run


class Order(Protocol):
    """The samples of each epoch, in order."""

    @property
    def gives_batches(self) -> bool:
        """True if an item is a batch and not a sample."""

    @property
    def is_computed(self) -> bool:
        """True if the lengths of all epochs are known, so that the trainer can compute where each round begins."""

    def length(self, epoch: int) -> int | None:
        """Return the number of items of `epoch`; None while it is not known."""

    def run(self, row: int, epoch: int, item: int, items: int) -> Run:
        """Return the run of these items, for the rows of a slot from `row` on."""

    def complaint(self, epoch: int) -> str:
        """Return the beginning of a message about the length of `epoch`, which is known."""

    def samples_of(self, run: Run) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Return the samples of `run`, the epoch of each, and the number of each (see Sample); shape (rows,)."""

    def batch_key(self, run: Run) -> tuple[int, ...]:
        """Return what identifies a batch that begins with `run`."""

    def affinity(self, run: Run, skipped: int) -> int | None:
        """Return the affinity of the row `skipped` rows behind the first one of `run`; None if there is none."""


class Placed(NamedTuple):
    """`rounds` rounds, whose batches of this rank are `runs`. `end`: the epoch and item where the next one begins."""

    runs: list[Run]
    rounds: int
    end: tuple[int, int]


@dataclass(slots=True)
class Rounds:
    """The rounds of `order` from `item` of `epoch` on. `last_batch` applies as batches.py says.

    `ended`: no round follows. `failure`: the reason, if that is not the end of all epochs.
    """

    order: Order
    parameters: Parameters
    epoch: int
    item: int
    ended: bool = False
    failure: str = ""

    _ranks: int = field(init=False)
    _rank: int = field(init=False)

    can_be_cut: ClassVar[bool] = True
    """True if several loaders may make rows of one affinity."""

    def __post_init__(self) -> None:
        self._ranks, self._rank = self.parameters.ranks, self.parameters.own_rank

    @property
    def is_computed(self) -> bool:
        return self.order.is_computed

    def place(self, row: int, most: int) -> Placed | None:
        """Return the next round, in rows of a slot from `row` on; None while a length is awaited, and at the end.

        It returns several rounds, at most `most`, if their samples of this rank make one run.
        """
        given, ranks, rank = self.parameters, self._ranks, self._rank
        each = 1 if self.order.gives_batches else given.batch_size
        left, rounds = self._left_in_epoch(each * ranks), 1
        if not left:
            return None
        items, first = each * ranks, rank * each
        if given.last_batch == "partial" and left < items:
            items = left
            each, longer = divmod(items, ranks)
            first, each = rank * each + min(rank, longer), each + (rank < longer)
        elif ranks == 1 and not self.order.gives_batches and left > items:
            rounds = min(most, left // items)
            items = each = items * rounds
        found = self._walk(items)
        if found is None:
            return None
        epoch, end, length = found[-1]
        least = each * ranks // rounds if given.last_batch == "drop" else 1
        runs = list(self._runs(row, found, first, first + each))
        self.epoch, self.item = (epoch, end) if length - end >= least else (epoch + 1, 0)
        return Placed(runs, rounds, (self.epoch, self.item))

    def note_rows(self, run: Run, _rows: int) -> list[Run]:
        return [run]

    def affinity(self, run: Run, skipped: int) -> int | None:
        return self.order.affinity(run, skipped)

    def sample_in(self, run: Run, skipped: int, _seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample `skipped` rows behind the first one of `run`."""
        indices, epochs, _ = self.order.samples_of(part_of(run, min(skipped, run.rows - 1), 1))
        return int(epochs[0]), int(indices[0]), ""

    def _left_in_epoch(self, round_items: int) -> int:
        """Return the items left in the epoch; if they make no further round, go on to the next epoch first.

        Returns 0 while a length is awaited, and at the end.
        """
        given = self.parameters
        while not self.ended:
            if given.epochs is not None and self.epoch >= given.epochs:
                self.ended = True
                break
            length = self.order.length(self.epoch)
            if length is None:
                break
            left = length - self.item
            if left < 0:
                self.stop(f"and the state to go on from stands behind {self.item}: use the same sampler")
            elif given.last_batch == "partial" and 0 < left < self._ranks:
                self.stop(
                    f"of which {left} are left for the last round of {self._ranks} ranks, so some would get none: "
                    "use last_batch 'wrap' or 'drop'"
                )
            elif given.last_batch == "drop" and not self.item and left < round_items:
                self.stop(
                    f"and last_batch is 'drop': a full round of all ranks needs {round_items}; give more, or use "
                    "last_batch 'wrap' or 'partial'"
                )
            elif left and (given.last_batch != "drop" or left >= round_items):
                return left
            else:
                self.epoch, self.item = self.epoch + 1, 0
        return 0

    def stop(self, why: str) -> None:
        """End the run before the present epoch, whose items are the reason."""
        self.ended, self.failure = True, f"{self.order.complaint(self.epoch)}, {why}"

    def _walk(self, items: int) -> list[tuple[int, int, int]] | None:
        """Return (epoch, item behind the last one, length) for all epochs that hold the next `items` items."""
        found, epoch, item = [], self.epoch, self.item
        while items:
            length = self.order.length(epoch)
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
                run = self.order.run(row, epoch, low, high - low)
                row += run.rows
                yield run
            begin, item = begin + stop - item, 0


def between(runs: Iterable[Run], first_row: int, end: int) -> Iterator[Run]:
    """Yield the parts of `runs` in rows first_row … end-1 of the slot."""
    for run in runs:
        skipped, rows = max(0, first_row - run.row), min(run.row + run.rows, end) - max(run.row, first_row)
        if rows > 0:
            yield run if rows == run.rows else part_of(run, skipped, rows)


def by_batch(runs: Iterable[Run], batch_size: int) -> dict[int, list[Run]]:
    """Return the runs of each batch of a slot, by its place in the slot; a batch has `batch_size` rows there."""
    batches: dict[int, list[Run]] = {}
    for run in runs:
        done = 0
        while done < run.rows:
            place, within = divmod(run.row + done, batch_size)
            rows = min(run.rows - done, batch_size - within)
            batches.setdefault(place, []).append(run if rows == run.rows else part_of(run, done, rows))
            done += rows
    return batches


def batch_sizes(runs: Iterable[Run], batch_size: int) -> tuple[int, ...]:
    """Return the number of rows of each batch of a slot."""
    sizes: dict[int, int] = {}
    for run in runs:
        end = run.row + run.rows
        last = (end - 1) // batch_size
        sizes.update(dict.fromkeys(range(run.row // batch_size, last), batch_size))
        sizes[last] = end - last * batch_size
    return tuple(sizes.values())


def part_of(run: Run, skipped: int, rows: int) -> Run:
    offset = run.offset if run.offset < 0 else run.offset + 8 * skipped
    return Run(run.row + skipped, rows, run.epoch, run.position + skipped, offset, run.shard, run.others)
