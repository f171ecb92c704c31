"""What the assembler's units hold, asked as the assembler asks: ahead of time, and answered in any order."""

from __future__ import annotations

import numpy as np
import pytest
from blobfeed.workers.order.batches import BatchPlan, LastBatch
from blobfeed.workers.order.make_order import make_order
from blobfeed.workers.order.shard_turns import StreamPosition
from blobfeed.workers.order.units import UnitPlan
from blobfeed.workers.processes.ledger import Task
from blobfeed.workers.processes.supply import IndexedSupply, StreamSupply, Supply
from blobfeed.workers.transport.messages import Announce, Done, Fill, FillFromStream, Postprocess, StreamBatch
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.pure

ALL_ROWS = 1 << 40


def indexed(samples: int = 100, batch_size: int = 4, batches_per_unit: int = 2, **plan: int) -> IndexedSupply:
    batches = BatchPlan(samples, batch_size, "wrap", plan.pop("epochs", 2), **plan)
    return IndexedSupply(UnitPlan(batches, batches_per_unit), make_order(samples, shuffle=True, seed=3))


# ---- rows of an indexed source


def test_an_indexed_source_has_the_units_of_its_plan() -> None:
    supply = indexed()
    assert [supply.has(unit) for unit in (0, 24, 25, 26)] == [True, True, False, False]
    assert [supply.rows_of(unit) for unit in (0, 23, 24)] == [8, 8, 8]
    assert indexed(epochs=1).rows_of(12) == 4  # 25 batches: the last unit has one
    assert not supply.finished
    assert supply.complaint == ""


def test_an_endless_plan_has_every_unit() -> None:
    supply = IndexedSupply(UnitPlan(BatchPlan(10, 3), 1), make_order(10, shuffle=False, seed=0))
    assert supply.has(10**15)


@settings(deadline=None, max_examples=60)
@given(unit=st.integers(0, 24), row=st.integers(0, 7), skip=st.integers(0, 5))
def test_a_task_is_told_as_it_stands(unit: int, row: int, skip: int) -> None:
    task = Task(9, unit, 1, row, 8 - row, skip=skip)
    assert indexed().order_for(task, ALL_ROWS) == Fill(9, unit, 1, row, 8 - row, skip)


@pytest.mark.parametrize(("good_rows", "rows"), [(ALL_ROWS, 8), (8, 8), (5, 5), (0, 0)])
def test_only_rows_before_a_bad_one_are_postprocessed(good_rows: int, rows: int) -> None:
    task = Task(9, 3, 1, 0, 0)
    assert indexed().order_for(task, good_rows) == Postprocess(9, 3, 1, rows)


@settings(deadline=None, max_examples=60)
@given(unit=st.integers(0, 24), row=st.integers(0, 7))
def test_the_sample_in_a_row_is_told_with_its_epoch(unit: int, row: int) -> None:
    supply = indexed()
    epoch, place = divmod(unit * 8 + row, 100)
    index = int(make_order(100, shuffle=True, seed=3).indices(epoch * 100 + place, 1)[0])
    assert supply.sample_in(unit, row, -1)[:2] == (epoch, index)


def test_a_unit_is_announced_with_its_replacements() -> None:
    assert indexed().announcement(5, 2, ((3, 17),)) == Announce(5, 2, ((3, 17),))


@pytest.mark.parametrize(("rows", "announced"), [(0, False), (3, False), (4, True), (7, True)])
def test_of_a_unit_with_a_bad_row_the_whole_batches_before_it_are_announced(rows: int, announced: bool) -> None:
    wanted = Announce(5, 2, ((1, 17),), rows=rows) if announced else None
    assert indexed().beginning(5, 2, ((1, 17),), rows) == wanted


def test_tasks_that_read_the_same_chunks_are_kin() -> None:
    order = make_order(1000, shuffle="chunk", seed=1, chunk_samples=10, window_chunks=4)
    supply = IndexedSupply(UnitPlan(BatchPlan(1000, 5, "wrap", 1), 2), order)
    chunks: dict[int | None, set[int]] = {}
    for unit in range(100):
        for row in range(10):
            read = chunks.setdefault(supply.kin_of(unit, row), set())
            read.add(int(order.indices(unit * 10 + row, 1)[0]) // 10)
    assert None not in chunks
    assert len(chunks) == 25
    assert sum(map(len, chunks.values())) == 100  # no chunk belongs to two of them


def test_without_chunks_any_loader_may_have_any_task() -> None:
    assert indexed().kin_of(7, 3) is None


# ---- batches of streams


def expected(lengths: list[int], size: int, last_batch: LastBatch, epochs: int) -> list[StreamBatch]:
    """Shard by shard and round by round; `wrap` runs a shard's epochs into each other."""
    runs, rounds = ([length * epochs for length in lengths], 1) if last_batch == "wrap" else (lengths, epochs)
    found = []
    for epoch in range(rounds):
        for sequence in range(max(-(-length // size) for length in runs)):
            for shard, length in enumerate(runs):
                rows = min(size, length - sequence * size)
                if rows == size or (rows > 0 and last_batch != "drop"):
                    found.append(StreamBatch(epoch, shard, sequence, rows))
    return found


class Stream:
    """A supply with loaders that answer for shards of `lengths` samples in an order that `rng` decides.

    `moving`: shards go from one loader to another, so that a later batch may be there before an earlier one.
    """

    def __init__(
        self, supply: StreamSupply, lengths: list[int], slots: int, rng: np.random.Generator, moving: bool = False
    ) -> None:
        self.supply = supply
        self.moving = moving
        self.lengths = lengths
        self.slots = slots
        self.rng = rng
        self.announced: list[StreamBatch] = []
        self._open: dict[int, bool] = {}
        self._next_unit = self._next_announced = 0

    def run(self) -> None:
        while not self.supply.finished and not self.supply.complaint:
            assert self._open_units() or self._open, "nothing is under way, and still it is not finished"
            if candidates := self._may_be_answered_next():
                self._fill(int(self.rng.choice(candidates)))
            self._announce()

    def _open_units(self) -> bool:
        opened = False
        while len(self._open) < self.slots and self.supply.has(self._next_unit):
            self._open[self._next_unit] = False
            self._next_unit += 1
            opened = True
        return opened

    def _may_be_answered_next(self) -> list[int]:
        """The oldest of each shard, as long as it belongs to one loader, which works in the order of its tasks."""
        waiting = [unit for unit, done in self._open.items() if not done]
        if self.moving:
            return waiting
        return list({self.supply.kin_of(unit, 0): unit for unit in sorted(waiting, reverse=True)}.values())

    def _fill(self, unit: int) -> None:
        task = Task(unit + 1, unit, 0, 0, self.supply.rows_of(unit))
        order = self.supply.order_for(task, ALL_ROWS)
        assert isinstance(order, FillFromStream)
        assert self.supply.kin_of(unit, 0) == order.shard
        left = self.lengths[order.shard] - order.sequence * self.supply.batch_size
        rows = max(0, min(self.supply.batch_size, left))
        self.supply.note_done(task, Done(1, task.id, 0, (), rows))
        assert self.supply.order_for(Task(99, unit, 0, 0, 0), ALL_ROWS) == Postprocess(99, unit, 0, rows)
        self._open[unit] = True

    def _announce(self) -> None:
        while self._open.get(self._next_announced):
            del self._open[self._next_announced]
            announce = self.supply.announcement(self._next_announced, 0, ())
            self._next_announced += 1
            if announce is not None:
                assert announce.stream is not None
                self.announced.append(announce.stream)


@settings(deadline=None, max_examples=200)
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
    supply = StreamSupply.begin(StreamPosition.start(len(lengths)), size, last_batch, epochs, 0)
    runs = [length * epochs for length in lengths] if last_batch == "wrap" else lengths
    stream = Stream(supply, runs, slots, np.random.default_rng(seed), moving)
    stream.run()
    assert supply.complaint == ""
    assert stream.announced == expected(lengths, size, last_batch, epochs)


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 13), min_size=1, max_size=3),
    size=st.integers(1, 5),
    slots=st.integers(1, 6),
    data=st.data(),
)
def test_a_stream_goes_on_behind_any_batch_that_was_taken(
    lengths: list[int], size: int, slots: int, data: st.DataObject
) -> None:
    whole = expected(lengths, size, "partial", 2)
    taken = data.draw(st.integers(0, len(whole)))
    position = StreamPosition.start(len(lengths))
    for batch in whole[:taken]:
        if batch.epoch != position.epoch:
            position.epoch, position.sequences = batch.epoch, [0] * len(lengths)
        position.sequences[batch.shard] = batch.sequence + 1
        position.turn = (batch.shard + 1) % len(lengths)
    supply = StreamSupply.begin(position, size, "partial", 2, 0)
    stream = Stream(supply, lengths, slots, np.random.default_rng(taken))
    stream.run()
    assert supply.complaint == ""
    assert stream.announced == whole[taken:]


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("slots", [1, 3, 7])
def test_an_epoch_without_a_sample_is_complained_of(slots: int, moving: bool) -> None:
    supply = StreamSupply.begin(StreamPosition.start(2), 4, "partial", None, 0)
    Stream(supply, [0, 0], slots, np.random.default_rng(0), moving).run()
    # Where a batch before the known end is still owed, it is said of a later epoch: nobody can be sure of this one.
    assert f"the stream gave no sample in epoch {'' if moving else 0}" in supply.complaint
    assert not supply.has(1000)


def test_a_ranks_shards_are_numbered_among_those_of_all_ranks() -> None:
    supply = StreamSupply.begin(StreamPosition.start(2), 4, "partial", None, rank_offset=6)
    assert supply.has(0)
    assert supply.has(1)
    orders = [supply.order_for(Task(unit + 1, unit, 0, 0, 4), ALL_ROWS) for unit in (0, 1)]
    assert [order.shard for order in orders if isinstance(order, FillFromStream)] == [6, 7]


def test_of_a_streams_batch_with_a_bad_row_nothing_is_postprocessed_or_announced() -> None:
    supply = StreamSupply.begin(StreamPosition.start(1), 4, "partial", None, 0)
    assert supply.has(0)
    supply.note_done(Task(1, 0, 0, 0, 4), Done(1, 1, 0, (), 4))
    assert supply.order_for(Task(2, 0, 0, 0, 0), good_rows=2) == Postprocess(2, 0, 0, 0)
    asked: Supply = supply
    assert asked.beginning(0, 0, (), 2) is None


def test_a_streams_batch_is_one_piece_for_one_loader() -> None:
    supply = StreamSupply.begin(StreamPosition.start(1), 4, "partial", None, 0)
    assert not supply.can_be_cut
    assert supply.has(0)
    assert supply.rows_of(0) == 4


def test_the_sample_of_a_streams_row_is_what_the_loader_was_at_or_its_place() -> None:
    supply = StreamSupply.begin(StreamPosition(3, [2, 5]), 4, "partial", None, rank_offset=6)
    assert supply.has(0)
    assert supply.sample_in(0, 1, seen=77) == (3, 77, "the stream's shard 6")
    assert supply.sample_in(0, 1, seen=-1) == (3, 9, "the stream's shard 6")
