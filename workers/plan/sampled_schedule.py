"""The schedule of a run with a sampler. Pure, except for reading shared memory.

A loader draws each epoch one epoch ahead; only then its length is known. A drawn epoch is cut into rounds,
one batch for each rank, like the epochs of equal length in batches.py. An *item* is the unit that ranks share out: a
sample, or a whole batch if the sampler draws batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..base.keys import derive_key
from ..base.parameters import Parameters
from ..base.specs import IndexArray
from ..order.draws import samples_in
from ..order.epoch_order import keyed_permutation
from ..order.samplers import AboutSampler
from ..order.weights_log import version_at, without_superseded
from ..transport.messages import Announce, Draw, Drawn, DrawnBatch, DrawnRows, Replaced, WeightsChange
from .plan import DrawsFile, Schedule

_INDEX_BYTES = 8

_MOST_OTHERS = 100
"""The most replacement candidates sent with a task: a remote loader knows no other samples of the epoch."""

_Key = tuple[int, int]
"""An epoch and the version of the weights by which it was drawn."""


@dataclass(frozen=True, slots=True)
class _Epoch:
    """A drawn epoch. `starts`: the first sample of each of its batches, and the end, if it was drawn in batches.

    `others`: see DrawnRows.
    """

    offset: int
    size: int
    items: int
    starts: IndexArray | None = None
    failure: Drawn | None = None
    others: bytes = b""


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of `rows` rows of an epoch from its sample `first` on."""

    key: _Key
    offset: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class _RankBatch:
    """One batch of this rank. `end`: epoch and item of the next round's start."""

    runs: tuple[_Run, ...]
    end: tuple[int, int]

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)


@dataclass(slots=True)
class SampledSchedule(Schedule):
    """The schedule. `epoch`, `position`: the start of the next round, an item of the epoch."""

    parameters: Parameters
    about: AboutSampler
    batches_per_slot: int
    epoch: int
    position: int
    changes: list[WeightsChange]
    """The changes of the sampler's weights."""
    file: DrawsFile = field(init=False, repr=False)
    """The file with the draws, set by the process that has it."""
    _drawn: dict[_Key, _Epoch] = field(default_factory=dict)
    _needed: _Key | None = None
    _asked: Draw | None = None
    _file_end: int = 0
    _pending: list[_RankBatch] = field(default_factory=list)
    _groups: dict[int, list[_RankBatch]] = field(default_factory=dict)
    _is_over: bool = False
    _failure: Drawn | None = None

    def use_file(self, file: DrawsFile) -> None:
        self.file = file

    # ---- epochs

    def wanted(self) -> Draw | None:
        self._free_past()
        key = self._next_key()
        if self._asked is not None or key is None:
            return None
        self._asked = Draw(0, *key, self._file_end)
        return self._asked

    def _next_key(self) -> _Key | None:
        """Return the epoch for which batches wait, else the one after the current."""
        if self._is_over:
            return None
        epochs = self.parameters.epochs
        ahead = [epoch for epoch in (self.epoch, self.epoch + 1) if epochs is None or epoch < epochs]
        keys = [] if self._needed is None else [self._needed]
        keys += [self._key(epoch) for epoch in ahead]
        return next((key for key in keys if key not in self._drawn), None)

    def called(self, draw: Draw) -> str:
        return f"{self.about.name}, epoch {draw.epoch}"

    def note_drawn(self, draw: Draw, answer: Drawn) -> None:
        self._asked = None
        key = draw.epoch, draw.weights
        if answer.failure:
            self._drawn[key] = _Epoch(draw.offset, 0, 0, failure=answer)
            return
        size, starts = _INDEX_BYTES * (answer.indices + answer.batches), None
        if answer.batches:
            sizes = self._read(draw.offset + _INDEX_BYTES * answer.indices, answer.batches)
            starts = np.concatenate([[0], np.cumsum(sizes)])
        others = self._others(draw, answer.indices) if self.parameters.on_error == "replace" else b""
        self._drawn[key] = _Epoch(draw.offset, size, answer.batches or answer.indices, starts, others=others)
        self._file_end = draw.offset + size

    def _others(self, draw: Draw, samples: int) -> bytes:
        permutation = keyed_permutation(samples, derive_key(self.parameters.seed, "replacements", draw.epoch))
        positions = permutation(np.arange(min(samples, _MOST_OTHERS)))
        return b"".join(self._samples(draw.offset + _INDEX_BYTES * p, 1).tobytes() for p in positions.tolist())

    def _samples(self, offset: int, count: int) -> IndexArray:
        return samples_in(self._read(offset, count))

    def _read(self, offset: int, count: int) -> IndexArray:
        return self.file.read(offset, count, np.int64)

    def note_weights(self, change: WeightsChange) -> None:
        self.changes = [*without_superseded(self.changes, self.epoch), change]

    def _free_past(self) -> None:
        """Give the memory of past epochs back."""
        past = [key for key in self._drawn if key[0] < self.epoch or key != self._key(key[0])]
        if past:
            groups = (*self._groups.values(), self._pending)
            in_use = {run.key for group in groups for batch in group for run in batch.runs} | {self._needed}
            for key in set(past) - in_use:
                epoch = self._drawn.pop(key)
                self.file.free(epoch.offset, epoch.size)

    def _key(self, epoch: int) -> _Key:
        return epoch, version_at(self.changes, epoch)

    def _epoch_drawn(self, epoch: int) -> _Epoch | None:
        """Return the drawn epoch; None while it is awaited, or after a failure, which ends the run."""
        key = self._key(epoch)
        found = self._drawn.get(key)
        self._needed = key if found is None else None
        if found is not None and found.failure is not None:
            self._stop(found.failure)
            return None
        return found

    def _stop(self, failure: Drawn | str) -> None:
        self._is_over = True
        self._failure = Drawn(failure=failure) if isinstance(failure, str) else failure

    # ---- batches

    def has(self, group: int) -> bool:
        if group in self._groups:
            return True
        while len(self._pending) < self.batches_per_slot and (batch := self._next_batch()) is not None:
            self._pending.append(batch)
        if len(self._pending) == self.batches_per_slot or (self._pending and self._is_over):
            self._groups[group], self._pending = self._pending, []
        return group in self._groups

    def _next_batch(self) -> _RankBatch | None:
        given, world_size = self.parameters, self.parameters.world_size or 1
        each = 1 if self.about.gives_batches else given.batch_size
        left = self._left_in_epoch(each * world_size)
        if not left:
            return None
        items, first = each * world_size, (given.rank or 0) * each
        if given.last_batch == "partial" and left < items:
            items, rank = left, given.rank or 0
            each, longer = divmod(items, world_size)
            first, each = rank * each + min(rank, longer), each + (rank < longer)
        found = self._walk(items)
        if found is None:
            return None
        epoch, end, last = found[-1]
        least = each * world_size if given.last_batch == "drop" else 1
        next_round = (epoch, end) if last.items - end >= least else (epoch + 1, 0)
        batch = _RankBatch(tuple(self._runs(found, first, first + each)), next_round)
        self.epoch, self.position = batch.end
        return batch

    def _left_in_epoch(self, round_items: int) -> int:
        """Return the items left in the epoch; if they make no further round, go on to the next epoch first.

        Returns 0 while the epoch is awaited, and at the end of the run.
        """
        given = self.parameters
        while not self._is_over:
            if given.epochs is not None and self.epoch >= given.epochs:
                self._is_over = True
                break
            drawn = self._epoch_drawn(self.epoch)
            if drawn is None:
                break
            left = drawn.items - self.position
            what = f"{self.about.name}, epoch {self.epoch}: it gave {drawn.items} {self.about.items}"
            if left < 0:
                self._stop(f"{what}, and the state to go on from stands behind {self.position}: use the same sampler")
            elif given.last_batch == "partial" and 0 < left < (given.world_size or 1):
                self._stop(
                    f"{what}, of which {left} are left for the last round of {given.world_size} ranks, so some would "
                    "get none: use last_batch 'wrap' or 'drop'"
                )
            elif given.last_batch == "drop" and not self.position and left < round_items:
                self._stop(
                    f"{what}, and last_batch is 'drop': a full round of all ranks needs {round_items}; give more, or "
                    "use last_batch 'wrap' or 'partial'"
                )
            elif left and (given.last_batch != "drop" or left >= round_items):
                return left
            else:
                self.epoch, self.position = self.epoch + 1, 0
        return 0

    def _walk(self, items: int) -> list[tuple[int, int, _Epoch]] | None:
        """Return (epoch, item after the last one, drawn epoch) for all epochs that hold the next `items` items."""
        found, epoch, position = [], self.epoch, self.position
        while items:
            drawn = self._epoch_drawn(epoch)
            if drawn is None:
                return None
            taken = min(items, drawn.items - position)
            found.append((epoch, position + taken, drawn))
            items, epoch, position = items - taken, epoch + 1, 0
        return found

    def _runs(self, found: list[tuple[int, int, _Epoch]], first: int, end: int) -> Iterator[_Run]:
        """Yield the runs of the round's items first … end-1."""
        begin, position = 0, self.position
        for epoch, stop, drawn in found:
            low, high = max(first - begin, 0) + position, min(end - begin, stop - position) + position
            if low < high:
                if drawn.starts is not None:
                    low, high = int(drawn.starts[low]), int(drawn.starts[high])
                yield _Run(self._key(epoch), drawn.offset + _INDEX_BYTES * low, low, high - low)
            begin, position = begin + stop - position, 0

    # ---- for the ledger and the assembly

    def rows_of(self, group: int) -> int:
        return len(self._groups[group]) * self.parameters.batch_size

    def drawn(self, group: int, first_row: int, rows: int) -> tuple[DrawnRows, ...]:
        found = []
        for number, batch in enumerate(self._groups[group]):
            row = number * self.parameters.batch_size
            for run in batch.runs:
                begin, end = max(first_row, row), min(first_row + rows, row + run.rows)
                if begin < end:
                    offset, first = run.offset + _INDEX_BYTES * (begin - row), run.first + begin - row
                    others = self._drawn[run.key].others
                    found.append(DrawnRows(begin, end - begin, offset, run.key[0], first, others))
                row += run.rows
        return tuple(found)

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        size, batches = self.parameters.batch_size, self._groups[group]
        return tuple(each.rows for number, each in enumerate(batches) if number * size + each.rows <= good_rows)

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        run = [each for each in self.drawn(group, 0, self.rows_of(group)) if each.row <= row][-1]
        within = min(row - run.row, run.count - 1)
        return run.epoch, int(self._samples(run.offset + _INDEX_BYTES * within, 1)[0]), ""

    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        size, batches = self.parameters.batch_size, self._groups.pop(group)
        good = [each for n, each in enumerate(batches) if good_rows < 0 or n * size + each.rows <= good_rows]
        return Announce(group, slot, replaced, drawn=tuple(map(self._drawn_batch, good))) if good else None

    def _drawn_batch(self, batch: _RankBatch) -> DrawnBatch:
        first, rows = batch.runs[0], tuple((run.key[0], run.rows) for run in batch.runs)
        indices = b"".join(self._samples(run.offset, run.rows).tobytes() for run in batch.runs)
        return DrawnBatch(batch.rows, first.key[0], first.first, *batch.end, rows, indices)

    @property
    def _all_announced(self) -> bool:
        return self._is_over and not self._groups and not self._pending

    @property
    def complaint(self) -> str:
        return self._failure.failure if self._failure is not None and self._all_announced else ""

    @property
    def cause(self) -> tuple[int, str]:
        return (0, "") if self._failure is None else (self._failure.cause, self._failure.traceback)

    @property
    def finished(self) -> bool:
        return self._failure is None and self._all_announced
