"""The schedule of a stream, asked as the assembler asks it: ahead of time, and answered in any order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from blobfeed.supplies import ShardRounds
from blobfeed.workers.api import LastBatch, Parameters
from blobfeed.workers.order import Schedule
from blobfeed.workers.transport import Run
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples

pytestmark = pytest.mark.pure


def stream_schedule(
    shards: int, size: int = 4, last_batch: LastBatch = "partial", epochs: int | None = None, rank: int = 0,
    at: tuple[int, int] = (0, 0),
) -> Schedule:  # fmt: skip
    parameters = Parameters(
        source={}, batch_size=size, last_batch=last_batch, epochs=epochs, rank=rank, world_size=rank + 1
    )
    return Schedule(ShardRounds(parameters, shards, *at))


def expected(lengths: list[int], size: int, last_batch: LastBatch, epochs: int, first: int = 0) -> list[Run]:
    """Shard by shard and round by round, from epoch `first` on; `wrap` runs a shard's epochs into each other."""
    runs, rounds = ([length * epochs for length in lengths], 1) if last_batch == "wrap" else (lengths, epochs)
    return [
        Run(0, rows, epoch, sequence * size, shard=shard)
        for epoch in range(first, first + rounds)
        for sequence in range(max(-(-length // size) for length in runs))
        for shard, length in enumerate(runs)
        if (rows := min(size, length - sequence * size)) > 0 and (rows == size or last_batch != "drop")
    ]


class Announced(NamedTuple):
    """A batch, and the epoch and item at which the next one begins."""

    run: Run
    end: tuple[int, int]


class Stream:
    """A schedule with loaders that answer for shards of `lengths` samples in an order that `rng` decides.

    `moving`: shards go from one loader to another, so that a later batch may be there before an earlier one.
    """

    def __init__(
        self, schedule: Schedule, lengths: list[int], slots: int, rng: np.random.Generator, moving: bool = False
    ) -> None:
        self.schedule = schedule
        self.moving = moving
        self.lengths = lengths
        self.slots = slots
        self.rng = rng
        self.announced: list[Announced] = []
        self._open: dict[int, bool] = {}
        self._next_announced = 0

    def run(self) -> list[Announced]:
        while not self.schedule.finished and not self.schedule.failure:
            assert self._open_batches() or self._open, "nothing is under way, and still it is not finished"
            if candidates := self._may_be_answered_next():
                self._fill(int(self.rng.choice(candidates)))
            self._announce()
        return self.announced

    def _open_batches(self) -> bool:
        opened = False
        while len(self._open) < self.slots and self.schedule.open(self.slots):
            self._open[self.schedule.opened - 1] = False
            opened = True
        return opened

    def _may_be_answered_next(self) -> list[int]:
        """The oldest of each shard, as long as it belongs to one loader, which works in the order of its tasks."""
        waiting = [batch for batch, done in self._open.items() if not done]
        if self.moving:
            return waiting
        return list({self.schedule.affinity(batch, 0): batch for batch in sorted(waiting, reverse=True)}.values())

    def _fill(self, batch: int) -> None:
        rows = self.schedule.rows_of(batch)
        (wanted,) = self.schedule.runs(batch, 0, rows)
        assert wanted.rows == rows
        assert self.schedule.affinity(batch, 0) == wanted.shard
        assert self.schedule.sample_in(batch, 1, -1)[:2] == (wanted.epoch, wanted.position + 1)
        had = max(0, min(rows, self.lengths[wanted.shard] - wanted.position))
        self.schedule.note_done(batch, had)
        self._open[batch] = True

    def _announce(self) -> None:
        while self._open.get(self._next_announced):
            del self._open[self._next_announced]
            announce = self.schedule.announcement(self._next_announced, 1, 0, ())
            self._next_announced += 1
            if announce is not None:
                self.announced += map(Announced, announce.runs, announce.ends)


@examples(300)
@given(
    lengths=st.lists(st.integers(0, 13), min_size=1, max_size=4).filter(any),
    size=st.integers(1, 5),
    last_batch=st.sampled_from(("partial", "drop", "wrap")),
    epochs=st.integers(1, 3),
    loop=st.integers(0, 2),
    slots=st.integers(1, 8),
    seed=st.integers(0, 99),
    moving=st.booleans(),
    data=st.data(),
)
def test_batches_depend_neither_on_prefetching_nor_on_who_answers_first_and_go_on_behind_any_of_them(
    lengths: list[int], size: int, last_batch: LastBatch, epochs: int, loop: int, slots: int, seed: int, moving: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    runs = [length * epochs for length in lengths] if last_batch == "wrap" else lengths
    first = loop * epochs
    schedule = stream_schedule(len(lengths), size, last_batch, epochs, at=(first, 0))
    found = Stream(schedule, runs, slots, np.random.default_rng(seed), moving).run()
    # Nobody can be sure of an epoch while a batch before the known end is still being made.
    if lacks_full := last_batch == "drop" and max(lengths) < size:
        assert moving or f"epoch {first} of the stream has no full batch" in str(schedule.failure)
    assert lacks_full or schedule.failure is None
    whole = expected(lengths, size, last_batch, epochs, first)
    assert [each.run for each in found] == whole
    if whole:
        taken = data.draw(st.integers(1, len(whole)))
        schedule = stream_schedule(len(lengths), size, last_batch, epochs, at=found[taken - 1].end)
        rest = Stream(schedule, runs, slots, np.random.default_rng(taken), moving).run()
        assert schedule.failure is None, "what was taken of an epoch before the run counts"
        assert [each.run for each in rest] == whole[taken:]


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("slots", [1, 3, 7])
def test_an_epoch_without_a_sample_is_complained_of(slots: int, moving: bool) -> None:
    schedule = stream_schedule(2)
    Stream(schedule, [0, 0], slots, np.random.default_rng(0), moving).run()
    # If a batch before the known end is still being made, it is said of a later epoch: nobody can be sure of this one.
    assert f"the stream gave no sample in epoch {'' if moving else 0}" in str(schedule.failure)
    assert not schedule.open(1)


def test_a_later_epoch_without_a_sample_is_complained_of_once_what_was_before_it_is_announced() -> None:
    schedule = stream_schedule(1)
    assert schedule.open(1)
    schedule.note_done(0, 3)
    assert schedule.open(1)
    schedule.note_done(1, 0)
    assert schedule.failure is None
    assert schedule.announcement(0, 1, 0, ()) is not None
    assert schedule.announcement(1, 1, 0, ()) is None
    assert "the stream gave no sample in epoch 1" in str(schedule.failure)
    assert "cause=0, traceback=''" in str(schedule.failure), "no exception is behind it"


def test_a_shard_ends_with_its_first_batch_that_is_not_full_whichever_is_told_first() -> None:
    schedule = stream_schedule(2)
    assert all(schedule.open(1) for _ in range(8))  # of the shards 0, 1, 0, 1, …
    for batch in (6, 2, 0):  # of shard 0; its batch 4 is still being made, and can hold nothing
        schedule.note_done(batch, 0)
    assert schedule.rounds.failure == ""
    schedule.note_done(1, 0)
    assert "the stream gave no sample in epoch 0" in schedule.rounds.failure


def test_of_an_epoch_nothing_is_said_while_a_batch_of_it_may_hold_samples() -> None:
    schedule = stream_schedule(2)
    assert all(schedule.open(1) for _ in range(4))
    for batch in (2, 1):  # batch 0, the first of shard 0, is still being made
        schedule.note_done(batch, 0)
    assert schedule.rounds.failure == ""


def test_the_sample_of_a_streams_row_is_what_the_loader_was_at_or_its_place_in_the_shard_of_all_ranks() -> None:
    schedule = stream_schedule(2, rank=3, at=(3, 4))
    assert not schedule.can_be_cut
    assert [schedule.open(1), schedule.open(1)] == [1, 1]
    assert schedule.runs(1, 0, 4) == (Run(0, 4, 3, 8, shard=7),)
    assert schedule.sample_in(0, 1, seen=77) == (3, 77, "the stream's shard 6")
    assert schedule.sample_in(0, 1, seen=0) == (3, 0, "the stream's shard 6")
    assert schedule.sample_in(0, 1, seen=-1) == (3, 9, "the stream's shard 6")
