"""Drawn epochs are cut into batches as a few lines of plain NumPy cut them, wherever the run begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.parameters import LastBatch, Parameters
from blobfeed.workers.base.specs import IndexArray
from blobfeed.workers.order.samplers import AboutSampler
from blobfeed.workers.plan.sampled_schedule import SampledSchedule
from blobfeed.workers.transport.messages import Drawn, DrawnBatch, WeightsChange
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sampled import expected_batches

pytestmark = pytest.mark.pure

HOLE = -7


class Memory:
    """The shared file, and a sampler that draws `lists`; of another version of the weights, the same plus 1000."""

    def __init__(self, schedule: SampledSchedule, lists: list[Any], *, gives_batches: bool) -> None:
        self.schedule = schedule
        self.lists = lists
        self.gives_batches = gives_batches
        self.numbers = np.full(100_000, HOLE, np.int64)
        self.most = 0
        schedule.use_file(self)

    def free(self, offset: int, size: int) -> None:
        self.numbers[offset // 8 :][: size // 8] = HOLE

    def read(self, offset: int, count: int, _kind: type[np.int64] = np.int64) -> IndexArray:
        found = self.numbers[offset // 8 :][:count]
        assert HOLE not in found, "what was given back is read"
        return found

    def draw(self) -> bool:
        wanted = self.schedule.wanted()
        if wanted is None:
            return False
        drawn = self.lists[wanted.epoch]
        if isinstance(drawn, Drawn):
            self.schedule.note_drawn(wanted, drawn)
            return True
        flat = np.concatenate(drawn) if self.gives_batches else np.array(drawn)
        sizes = np.array([len(batch) for batch in drawn]) if self.gives_batches else np.empty(0, np.int64)
        written = np.concatenate([flat + 1000 * wanted.weights, sizes])
        self.numbers[wanted.offset // 8 :][: len(written)] = written
        self.schedule.note_drawn(wanted, Drawn(len(flat), len(sizes)))
        self.most = max(self.most, int(np.count_nonzero(self.numbers != HOLE)))
        return True


def schedule_of(parameters: Parameters, *, gives_batches: bool = False, per_slot: int = 2, **start: Any) -> Any:
    about = AboutSampler("sampler()", gives_batches=gives_batches, takes_weights=True)
    given: dict[str, Any] = {"epoch": 0, "position": 0, "changes": []} | start
    return SampledSchedule(parameters, about, per_slot, **given)


def run(schedule: SampledSchedule, memory: Memory, *, slots: int = 3, most: int = 1000) -> list[DrawnBatch]:
    """All batches, with every group announced when its slot is wanted for another."""
    found: list[DrawnBatch] = []
    group = announced = 0
    while not schedule.finished and not schedule.complaint and len(found) < most:
        opened = group - announced < slots and schedule.has(group)
        if opened:
            for row in range(0, schedule.rows_of(group), 3):  # what tasks of three rows would read
                for part in schedule.drawn(group, row, 3):
                    memory.read(part.offset, part.count)
        group += opened
        moved = memory.draw()
        if announced < group and not (opened or moved):
            announce = schedule.announcement(announced, 0, ())
            assert announce is not None
            found += announce.drawn
            announced, moved = announced + 1, True
        assert opened or moved or schedule.finished or schedule.complaint, "nothing moves"
    return found


def indices(batch: DrawnBatch) -> list[int]:
    return [int(index) for index in np.frombuffer(batch.indices, np.int64)]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any], bool]:
    gives_batches = draw(st.booleans())
    size, world_size = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    one = st.lists(st.integers(0, 99), min_size=1, max_size=size)
    lists = draw(
        st.lists(
            st.lists(one if gives_batches else st.integers(0, 99), min_size=1, max_size=20), min_size=2, max_size=6
        )
    )
    settings: dict[str, Any] = {
        "batch_size": size,
        "world_size": world_size,
        "last_batch": draw(st.sampled_from(("wrap", "drop", "partial"))),
        "epochs": len(lists) - 1,
        "rank": draw(st.integers(0, world_size - 1)),
    }
    return lists + lists[:1] * 20, settings, gives_batches


@settings(max_examples=300)
@given(case=_cases(), per_slot=st.integers(1, 3), slots=st.integers(1, 4), data=st.data())
def test_batches_are_those_of_the_reference_from_any_position(
    case: tuple[list[Any], dict[str, Any], bool], per_slot: int, slots: int, data: st.DataObject
) -> None:
    lists, values, gives_batches = case
    parameters = Parameters(source={}, **values)
    expected = expected_batches(lists, gives_batches=gives_batches, **values)
    schedule = schedule_of(parameters, gives_batches=gives_batches, per_slot=per_slot)
    found = run(schedule, Memory(schedule, lists, gives_batches=gives_batches), slots=slots)
    if isinstance(expected, str):
        assert expected in schedule.complaint
        return
    assert schedule.complaint == ""
    assert [indices(batch) for batch in found] == expected
    taken = data.draw(st.integers(0, len(found)))
    if taken:
        last = found[taken - 1]
        again = schedule_of(
            parameters,
            gives_batches=gives_batches,
            per_slot=per_slot,
            epoch=last.end_epoch,
            position=last.end_position,
        )
        rest = run(again, Memory(again, lists, gives_batches=gives_batches), slots=slots)
        assert [indices(batch) for batch in rest] == expected[taken:]


def test_memory_is_given_back() -> None:
    parameters = Parameters(source={}, batch_size=5, epochs=200)
    schedule = schedule_of(parameters)
    memory = Memory(schedule, [list(range(20))] * 201, gives_batches=False)
    assert len(run(schedule, memory)) == 800
    assert memory.most <= 20 * 4


def test_what_was_drawn_before_a_failure_is_delivered_first() -> None:
    parameters = Parameters(source={}, batch_size=4, last_batch="partial")
    schedule = schedule_of(parameters)
    lists = [[1, 2, 3, 4, 5], [6, 7, 8], Drawn(failure="it is broken")]
    found = run(schedule, Memory(schedule, lists, gives_batches=False))
    assert [indices(batch) for batch in found] == [[1, 2, 3, 4], [5], [6, 7, 8]]
    assert schedule.complaint == "it is broken"


def test_a_position_behind_the_end_is_told() -> None:
    schedule = schedule_of(Parameters(source={}, batch_size=2), epoch=1, position=9)
    assert run(schedule, Memory(schedule, [[1, 2]] * 3, gives_batches=False)) == []
    assert "epoch 1: it gave 2 samples, and the state to go on from stands behind 9" in schedule.complaint


@settings(max_examples=150)
@given(
    changes=st.lists(st.integers(0, 4), max_size=4),
    last_batch=st.sampled_from(("wrap", "drop", "partial")),
    late=st.booleans(),
)
def test_weights_count_from_their_epoch_on(changes: list[int], last_batch: LastBatch, late: bool) -> None:
    """Also if they are told just before its first batch is planned, when other weights have been drawn by."""
    changes = sorted(changes) if late else changes
    told = [WeightsChange(version + 1, epoch) for version, epoch in enumerate(changes)]
    parameters = Parameters(source={}, batch_size=4, last_batch=last_batch, epochs=4)
    schedule = schedule_of(parameters, per_slot=1, changes=[] if late else told)
    memory = Memory(schedule, [list(range(10 * n, 10 * n + 10)) for n in range(6)], gives_batches=False)
    found, waiting = [], list(told)
    group = 0
    while not schedule.finished:
        planned = 10 * schedule.epoch + schedule.position + 4
        while late and waiting and 10 * waiting[0].from_epoch < planned:
            schedule.note_weights(waiting.pop(0))
        if schedule.has(group):
            announce = schedule.announcement(group, 0, ())
            assert announce is not None
            found += announce.drawn
            group += 1
        memory.draw()
    for batch in found:
        epochs = np.repeat(*map(np.array, zip(*batch.epochs, strict=True)))
        for index, epoch in zip(indices(batch), epochs.tolist(), strict=True):
            held = [each.version for each in told if each.from_epoch <= epoch]
            version, sample = divmod(index, 1000)
            assert version == max(held, default=0)
            assert sample // 10 == epoch
