"""The schedule of a stream, asked as the assembler asks it: ahead of time, and answered in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.parameters import LastBatch, Parameters
from blobfeed.workers.order.shard_turns import StreamPosition
from blobfeed.workers.plan.stream_plan import StreamPlan, StreamSchedule
from blobfeed.workers.transport.messages import Run
from blobfeed.workers.transport.packed import Packed
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.pure

ALL_ROWS = 1 << 40

NOTHING_TO_LOAD: dict[str, Any] = {
    "decoded": Packed(None),
    "specs": {},
    "slot_specs": {},
    "postprocesses": False,
    "max_loaders": 1,
}


def stream_schedule(
    position: StreamPosition, size: int, last_batch: LastBatch = "partial", epochs: int | None = None, rank: int = 0
) -> StreamSchedule:
    parameters = Parameters(
        source={}, batch_size=size, last_batch=last_batch, epochs=epochs, rank=rank, world_size=rank + 1
    )
    shards = len(position.sequences)
    return StreamPlan(parameters=parameters, shards=shards, position=position, **NOTHING_TO_LOAD).schedule()


def expected(lengths: list[int], size: int, last_batch: LastBatch, epochs: int) -> list[Run]:
    """Shard by shard and round by round; `wrap` runs a shard's epochs into each other."""
    runs, rounds = ([length * epochs for length in lengths], 1) if last_batch == "wrap" else (lengths, epochs)
    return [
        Run(0, rows, epoch, sequence * size, shard=shard)
        for epoch in range(rounds)
        for sequence in range(max(-(-length // size) for length in runs))
        for shard, length in enumerate(runs)
        if (rows := min(size, length - sequence * size)) > 0 and (rows == size or last_batch != "drop")
    ]


class Stream:
    """A schedule with loaders that answer for shards of `lengths` samples in an order that `rng` decides.

    `moving`: shards go from one loader to another, so that a later batch may be there before an earlier one.
    """

    def __init__(
        self, schedule: StreamSchedule, lengths: list[int], slots: int, rng: np.random.Generator, moving: bool = False
    ) -> None:
        self.schedule = schedule
        self.moving = moving
        self.lengths = lengths
        self.size = schedule.plan.parameters.batch_size
        self.slots = slots
        self.rng = rng
        self.announced: list[Run] = []
        self._open: dict[int, bool] = {}
        self._next_group = self._next_announced = 0

    def run(self) -> None:
        while not self.schedule.finished and not self.schedule.complaint:
            assert self._open_groups() or self._open, "nothing is under way, and still it is not finished"
            if candidates := self._may_be_answered_next():
                self._fill(int(self.rng.choice(candidates)))
            self._announce()

    def _open_groups(self) -> bool:
        opened = False
        while len(self._open) < self.slots and self.schedule.has(self._next_group):
            self._open[self._next_group] = False
            self._next_group += 1
            opened = True
        return opened

    def _may_be_answered_next(self) -> list[int]:
        """The oldest of each shard, as long as it belongs to one loader, which works in the order of its tasks."""
        waiting = [group for group, done in self._open.items() if not done]
        if self.moving:
            return waiting
        return list({self.schedule.affinity(group, 0): group for group in sorted(waiting, reverse=True)}.values())

    def _fill(self, group: int) -> None:
        (wanted,) = self.schedule.runs(group, 0, self.size)
        assert wanted.rows == self.schedule.rows_of(group)
        assert self.schedule.affinity(group, 0) == wanted.shard
        assert self.schedule.sample_in(group, 1, -1)[:2] == (wanted.epoch, wanted.position + 1)
        left = self.lengths[wanted.shard] - wanted.position
        rows = max(0, min(wanted.rows, left))
        self.schedule.note_done(group, rows)
        assert self.schedule.batch_rows(group, ALL_ROWS) == ((rows,) if rows else ())
        self._open[group] = True

    def _announce(self) -> None:
        while self._open.get(self._next_announced):
            del self._open[self._next_announced]
            announce = self.schedule.announcement(self._next_announced, 0, ())
            self._next_announced += 1
            if announce is not None:
                self.announced += announce.runs


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 13), min_size=1, max_size=4).filter(any),
    size=st.integers(1, 5),
    last_batch=st.sampled_from(("partial", "drop", "wrap")),
    epochs=st.integers(1, 3),
    slots=st.integers(1, 8),
    seed=st.integers(0, 99),
    moving=st.booleans(),
)
def test_the_batches_depend_neither_on_prefetching_nor_on_who_answers_first(
    lengths: list[int], size: int, last_batch: LastBatch, epochs: int, slots: int, seed: int, moving: bool
) -> None:
    schedule = stream_schedule(StreamPosition.start(len(lengths)), size, last_batch, epochs)
    runs = [length * epochs for length in lengths] if last_batch == "wrap" else lengths
    stream = Stream(schedule, runs, slots, np.random.default_rng(seed), moving)
    stream.run()
    # Nobody can be sure of an epoch while a batch before the known end is still being made.
    if lacks_full := last_batch == "drop" and max(lengths) < size:
        assert moving or "epoch 0 of the stream has no full batch" in schedule.complaint
    assert lacks_full or schedule.complaint == ""
    assert stream.announced == expected(lengths, size, last_batch, epochs)


@settings(max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 13), min_size=1, max_size=3),
    size=st.integers(1, 5),
    slots=st.integers(1, 6),
    data=st.data(),
)
def test_a_stream_goes_on_behind_any_batch_that_was_taken(
    lengths: list[int], size: int, slots: int, data: st.DataObject
) -> None:
    last_batch: LastBatch = data.draw(st.sampled_from(("partial", "wrap")))
    whole = expected(lengths, size, last_batch, 2)
    taken = data.draw(st.integers(0, len(whole)))
    position = StreamPosition.start(len(lengths))
    for batch in whole[:taken]:
        if batch.epoch != position.epoch:
            position.epoch, position.sequences = batch.epoch, [0] * len(lengths)
        position.sequences[batch.shard] = batch.position // size + 1
        position.turn = (batch.shard + 1) % len(lengths)
    schedule = stream_schedule(position, size, last_batch, epochs=2)
    runs = [2 * length for length in lengths] if last_batch == "wrap" else lengths
    stream = Stream(schedule, runs, slots, np.random.default_rng(taken))
    stream.run()
    assert schedule.complaint == ""
    assert stream.announced == whole[taken:]


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("slots", [1, 3, 7])
def test_an_epoch_without_a_sample_is_complained_of(slots: int, moving: bool) -> None:
    schedule = stream_schedule(StreamPosition.start(2), 4)
    Stream(schedule, [0, 0], slots, np.random.default_rng(0), moving).run()
    # If a batch before the known end is still being made, it is said of a later epoch: nobody can be sure of this one.
    assert f"the stream gave no sample in epoch {'' if moving else 0}" in schedule.complaint
    assert not schedule.has(1000)


def test_a_later_epoch_without_a_sample_is_complained_of_too() -> None:
    schedule = stream_schedule(StreamPosition.start(1), 4)
    assert schedule.has(0)
    schedule.note_done(0, 3)
    assert schedule.complaint == ""
    assert schedule.has(1)
    schedule.note_done(1, 0)
    assert "the stream gave no sample in epoch 1" in schedule.complaint
    assert schedule.cause == (0, ""), "no exception is behind it"


def test_what_was_taken_of_an_epoch_before_the_run_counts_as_given() -> None:
    schedule = stream_schedule(StreamPosition(0, [1]), 4)
    assert schedule.has(0)
    schedule.note_done(0, 4)
    assert schedule.has(1)
    schedule.note_done(1, 0)
    assert schedule.complaint == ""
    nothing_more = stream_schedule(StreamPosition(0, [1]), 4)
    assert nothing_more.has(0)
    nothing_more.note_done(0, 0)
    assert nothing_more.complaint == ""


def test_a_batch_of_which_nothing_was_made_is_not_announced() -> None:
    schedule = stream_schedule(StreamPosition.start(1), 4)
    assert schedule.has(0)
    assert schedule.announcement(0, 0, ()) is None


def test_a_shard_ends_with_its_first_batch_that_is_not_full_whichever_is_told_first() -> None:
    schedule = stream_schedule(StreamPosition.start(2), 4)
    assert all(schedule.has(group) for group in range(8))  # of the shards 0, 1, 0, 1, …
    for group in (6, 2, 0):  # of shard 0; its batch in group 4 is still being made, and can hold nothing
        schedule.note_done(group, 0)
    assert schedule.complaint == ""
    schedule.note_done(1, 0)
    assert "the stream gave no sample in epoch 0" in schedule.complaint


def test_of_an_epoch_nothing_is_said_while_a_batch_of_it_may_hold_samples() -> None:
    schedule = stream_schedule(StreamPosition.start(2), 4)
    assert all(schedule.has(group) for group in range(4))
    for group in (2, 1):  # group 0, the first of shard 0, is still being made
        schedule.note_done(group, 0)
    assert schedule.complaint == ""


def test_a_ranks_shards_are_numbered_among_those_of_all_ranks() -> None:
    schedule = stream_schedule(StreamPosition.start(2), 4, rank=3)
    assert schedule.has(0)
    assert schedule.has(1)
    assert [schedule.runs(group, 0, 4)[0].shard for group in (0, 1)] == [6, 7]


def test_of_a_streams_batch_with_a_bad_row_nothing_is_postprocessed_or_announced() -> None:
    schedule = stream_schedule(StreamPosition.start(1), 4)
    assert schedule.has(0)
    schedule.note_done(0, 4)
    assert schedule.batch_rows(0, good_rows=2) == ()
    assert schedule.announcement(0, 0, (), good_rows=2) is None


def test_a_streams_batch_is_one_piece_for_one_loader() -> None:
    schedule = stream_schedule(StreamPosition.start(1), 4)
    assert not schedule.can_be_cut
    assert schedule.has(0)
    assert schedule.rows_of(0) == 4


def test_the_sample_of_a_streams_row_is_what_the_loader_was_at_or_its_place() -> None:
    schedule = stream_schedule(StreamPosition(3, [2, 5]), 4, rank=3)
    assert schedule.has(0)
    assert schedule.sample_in(0, 1, seen=77) == (3, 77, "the stream's shard 6")
    assert schedule.sample_in(0, 1, seen=0) == (3, 0, "the stream's shard 6")
    assert schedule.sample_in(0, 1, seen=-1) == (3, 9, "the stream's shard 6")
