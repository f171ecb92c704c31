"""Orders are cut into batches as plain arithmetic cuts them, wherever the run begins and however many are opened."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from blobfeed.supplies import AboutSampler, DrawnEpochs, Walk, make_order
from blobfeed.workers.api import IndexArray, LastBatch, Parameters
from blobfeed.workers.order import At, Schedule, by_batch
from blobfeed.workers.transport import Announce, Draw, Drawn, Run
from hypothesis import assume, given
from hypothesis import strategies as st

from blobfeed import ParameterError
from tests.support.batches import RankedBatches, batches
from tests.support.part import examples
from tests.support.sampled import expected_batches

pytestmark = pytest.mark.pure

HOLE = -7


# ---- orders that are computed


class Cut(NamedTuple):
    """A schedule, the arithmetic that counts its batches, and how many are opened together."""

    schedule: Schedule
    oracle: RankedBatches
    together: int


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    world_size = draw(st.integers(1, 3))
    last_batch: LastBatch = draw(st.sampled_from(("wrap", "drop", "partial")))
    samples, batch_size = draw(st.integers(1, 60)), draw(st.integers(1, 9))
    epochs, start = draw(st.none() | st.integers(1, 3)), draw(st.integers(0, 70))
    rank = draw(st.integers(0, world_size - 1))
    try:
        oracle = batches(samples, batch_size, last_batch, epochs, rank, world_size, start)
    except ParameterError:
        assume(False)  # a rank would get none; test_batches tests that error
        raise
    rounds = Walk(make_order(samples, shuffle=False, seed=0), oracle.parameters, At(*divmod(start, samples)))
    return Cut(Schedule(rounds), oracle, draw(st.integers(1, 5)))


@pytest.mark.parametrize(
    ("last_batch", "ends"),
    [
        ("wrap", [(0, 4), (0, 8), (1, 2), (1, 6), (2, 0)]),
        ("drop", [(0, 4), (1, 0)]),
        ("partial", [(0, 4), (0, 8), (1, 0)]),
    ],
)
def test_behind_an_epochs_last_round_the_next_epoch_begins(last_batch: LastBatch, ends: list[tuple[int, int]]) -> None:
    cut = batches(10, 4, last_batch, None, 0, 1, 0)
    rounds = Walk(make_order(10, shuffle=False, seed=0), cut.parameters, At(0, 0))
    found = []
    for _ in ends:
        assert rounds.place(0, 1) is not None
        found.append((rounds.epoch, rounds.item))
    assert found == ends


def positions(runs: Sequence[Run], samples: int) -> dict[int, int]:
    """Row → position from the first epoch on."""
    return {run.row + n: run.epoch * samples + run.position + n for run in runs for n in range(run.rows)}


@examples(400)
@given(cut=cuts(), size=st.integers(1, 50), told=st.integers(1, 5))
def test_batches_are_those_that_arithmetic_says_and_tasks_of_any_size_have_their_rows(
    cut: Cut, size: int, told: int
) -> None:
    schedule, oracle = cut.schedule, cut.oracle
    for _ in range(12):
        first, count = schedule.opened, schedule.open(cut.together)
        assert 0 <= count <= cut.together
        assert bool(count) == (oracle.total is None or first < oracle.total)
        if not count:
            break
        each, found = oracle.parameters.batch_size, [oracle.batch(k) for k in range(first, first + count)]
        assert all(one.rows == each for one in found[:-1]), "only the last of what is opened together may be short"
        assert [schedule.rows_of(first + place) for place in range(count)] == [one.rows for one in found]
        for place, one in enumerate(found):  # tasks may begin in any of the batches, and go on to the end
            rest = {
                (k - place) * each + row: found[k].start + row
                for k in range(place, count)
                for row in range(found[k].rows)
            }
            tasks = [schedule.runs(first + place, row, min(size, len(rest) - row)) for row in range(0, len(rest), size)]
            assert positions([run for task in tasks for run in task], oracle.samples) == rest
            assert all(run.position + run.rows <= oracle.samples for task in tasks for run in task)
            assert all(run.rows > 0 and run.offset == -1 for task in tasks for run in task)
            for row in (0, one.rows - 1):
                assert schedule.sample_in(first + place, row, -1)[:2] == divmod(one.start + row, oracle.samples)
        for batch in range(first, first + count, told):
            here = min(told, schedule.told(batch, first + count))
            announce = schedule.announcement(batch, here, 2, ((0, 17),))
            assert announce is not None
            assert (announce.batch, announce.slot, announce.replaced, announce.ends) == (batch, 2, ((0, 17),), ())
            sizes = [sum(run.rows for run in runs) for runs in by_batch(announce.runs, each).values()]
            assert sizes == [one.rows for one in found[batch - first :][:here]]


def test_many_batches_that_are_opened_together_are_one_run() -> None:
    order = make_order(1000, shuffle=False, seed=0)
    schedule = Schedule(Walk(order, Parameters(source={}, batch_size=4), At(0, 0)))
    assert [schedule.open(32), schedule.open(32)] == [32, 32]
    assert schedule.runs(32, 0, 128) == (Run(0, 128, 0, 128),)
    assert [schedule.told(batch, 1000) for batch in (0, 31, 32, 40)] == [32, 1, 32, 24]


def test_rows_that_read_the_same_chunks_have_one_affinity() -> None:
    order = make_order(1000, shuffle="chunk", seed=1, chunk_samples=10, window_chunks=4)
    schedule = Schedule(Walk(order, Parameters(source={}, batch_size=5, epochs=1), At(0, 0)))
    chunks: dict[int | None, set[int]] = {}
    for batch in range(0, 200, 2):
        assert schedule.open(2) == 2
        for row in range(10):
            read = chunks.setdefault(schedule.affinity(batch, row), set())
            read.add(int(order.indices(batch * 5 + row, 1)[0]) // 10)
    assert None not in chunks
    assert len(chunks) == 25
    assert sum(map(len, chunks.values())) == 100  # no chunk belongs to two of them


# ---- orders that a sampler draws


class Memory:
    """The shared file, and a sampler that draws `lists`."""

    def __init__(self, schedule: Schedule, lists: list[Any], *, gives_batches: bool) -> None:
        self.schedule = schedule
        self.lists = lists
        self.gives_batches = gives_batches
        self.numbers = np.full(100_000, HOLE, np.int64)
        self.most = 0
        schedule.draws.use_file(self)

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
            self.schedule.draws.note_drawn(wanted, drawn)
            return True
        flat = np.concatenate(drawn) if self.gives_batches else np.array(drawn)
        sizes = np.array([len(batch) for batch in drawn]) if self.gives_batches else np.empty(0, np.int64)
        written = np.concatenate([flat, sizes])
        self.numbers[wanted.offset // 8 :][: len(written)] = written
        self.schedule.draws.note_drawn(wanted, Drawn(len(flat), len(sizes)))
        self.most = max(self.most, int(np.count_nonzero(self.numbers != HOLE)))
        return True


def schedule_of(parameters: Parameters, *, gives_batches: bool = False, **start: Any) -> Any:
    about = AboutSampler("sampler()", gives_batches=gives_batches)
    given: dict[str, Any] = {"epoch": 0, "position": 0} | start
    order = DrawnEpochs(parameters, about)
    rounds = Walk(order, parameters, At(given["epoch"], given["position"]))
    rounds.draws = order
    return Schedule(rounds)


class Made(NamedTuple):
    """A batch: the sample of each row and its epoch, and where the next round begins."""

    indices: list[int]
    epochs: list[int]
    end: tuple[int, int]


def made_of(announce: Announce, batch_size: int) -> list[Made]:
    indices = iter(np.frombuffer(announce.indices, np.int64).tolist())
    found = by_batch(announce.runs, batch_size).values()
    epochs = [[run.epoch for run in runs for _ in range(run.rows)] for runs in found]
    return [Made([next(indices) for _ in each], each, end) for each, end in zip(epochs, announce.ends, strict=True)]


def run(schedule: Schedule, memory: Memory, *, slots: int = 3, together: int = 2) -> list[Made]:
    """All batches, with every one announced when its slot is wanted for another."""
    found: list[Made] = []
    read: dict[int, list[int]] = {}
    announced = 0
    while not schedule.finished and not schedule.failure and len(found) < 1000:
        first = schedule.opened
        opened = first - announced < slots and schedule.open(min(together, slots - (first - announced)))
        for batch in range(first, first + opened):
            rows = schedule.rows_of(batch)
            for row in range(0, rows, 3):  # what tasks of three rows would read
                for part in schedule.runs(batch, row, min(3, rows - row)):
                    read.setdefault(batch, []).extend(memory.read(part.offset + 8 * part.position, part.rows).tolist())
        moved = memory.draw()
        if announced < schedule.opened and not (opened or moved):
            announce = schedule.announcement(announced, 1, 0, ())
            assert announce is not None
            assert np.frombuffer(announce.indices, np.int64).tolist() == read.pop(announced)
            found += made_of(announce, schedule.rounds.parameters.batch_size)
            announced, moved = announced + 1, True
        assert opened or moved or schedule.finished or schedule.failure, "nothing moves"
    return found


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


@examples(300)
@given(case=_cases(), together=st.integers(1, 3), slots=st.integers(1, 4), data=st.data())
def test_batches_are_those_of_the_reference_from_any_position(
    case: tuple[list[Any], dict[str, Any], bool], together: int, slots: int, data: st.DataObject
) -> None:
    lists, values, gives_batches = case
    parameters = Parameters(source={}, **values)
    expected = expected_batches(lists, gives_batches=gives_batches, **values)
    schedule = schedule_of(parameters, gives_batches=gives_batches)
    found = run(schedule, Memory(schedule, lists, gives_batches=gives_batches), slots=slots, together=together)
    if isinstance(expected, str):
        assert expected in schedule.failure.text
        return
    assert schedule.failure is None
    assert [batch.indices for batch in found] == expected
    taken = data.draw(st.integers(0, len(found)))
    if taken:
        last = found[taken - 1]
        again = schedule_of(
            parameters,
            gives_batches=gives_batches,
            epoch=last.end[0],
            position=last.end[1],
        )
        rest = run(again, Memory(again, lists, gives_batches=gives_batches), slots=slots, together=together)
        assert [batch.indices for batch in rest] == expected[taken:]


def test_memory_is_given_back() -> None:
    parameters = Parameters(source={}, batch_size=5, epochs=200)
    schedule = schedule_of(parameters)
    memory = Memory(schedule, [list(range(20))] * 201, gives_batches=False)
    assert len(run(schedule, memory)) == 800
    assert memory.most <= 20 * 4


def drawn_order(drawn: int, **values: Any) -> tuple[DrawnEpochs, list[int]]:
    """An order with `drawn` epochs of ten samples each, and the offsets that it gives back."""
    order, freed = DrawnEpochs(Parameters(source={}, **values), AboutSampler("sampler()")), list[int]()
    order.file = SimpleNamespace(
        read=lambda offset, count, _kind: offset // 8 + np.arange(count),
        free=lambda offset, _size: freed.append(offset),
    )
    for epoch in range(drawn):
        wanted = order.wanted(epoch)
        assert wanted == Draw(0, epoch, 80 * epoch)
        order.note_drawn(wanted, Drawn(10))
    return order, freed


@pytest.mark.parametrize(
    ("epoch", "in_use", "given_back"),
    [(0, None, []), (1, None, [0]), (2, None, [0, 80]), (2, 79, []), (2, 80, [0]), (2, 159, [0]), (2, 160, [0, 80])],
)
def test_an_epoch_is_given_back_when_it_is_past_and_lies_before_what_is_in_use(
    epoch: int, in_use: int | None, given_back: list[int]
) -> None:
    order, freed = drawn_order(3, batch_size=4)
    order.free(epoch, in_use)
    assert freed == given_back


def test_the_next_epoch_is_drawn_ahead_one_at_a_time_and_none_behind_the_last() -> None:
    order, _ = drawn_order(1, batch_size=4, epochs=3)
    wanted = order.wanted(0)
    assert wanted == Draw(0, 1, 80)
    assert order.wanted(0) is None
    order.note_drawn(wanted, Drawn(10))
    assert order.wanted(0) is None
    assert order.wanted(1) == Draw(0, 2, 160)
    order.note_drawn(Draw(0, 2, 160), Drawn(10))
    assert order.wanted(2) is None


@pytest.mark.parametrize("last_batch", ["wrap", "drop", "partial"])
def test_a_state_at_the_very_end_of_an_epoch_goes_on_with_the_next(last_batch: LastBatch) -> None:
    parameters = Parameters(source={}, batch_size=2, last_batch=last_batch, epochs=2, rank=0, world_size=1)
    schedule = schedule_of(parameters, position=2)
    found = run(schedule, Memory(schedule, [[1, 2], [3, 4], [5, 6]], gives_batches=False))
    assert [batch.indices for batch in found] == [[3, 4]]


def test_what_was_drawn_before_a_failure_is_delivered_first() -> None:
    parameters = Parameters(source={}, batch_size=4, last_batch="partial")
    schedule = schedule_of(parameters)
    lists = [[1, 2, 3, 4, 5], [6, 7, 8], Drawn(failure="it is broken"), [9]]
    found = run(schedule, Memory(schedule, lists, gives_batches=False))
    assert [batch.indices for batch in found] == [[1, 2, 3, 4], [5], [6, 7, 8]]
    assert schedule.failure.text == "it is broken"


def test_a_position_behind_the_end_is_told() -> None:
    schedule = schedule_of(Parameters(source={}, batch_size=2), epoch=1, position=9)
    assert run(schedule, Memory(schedule, [[1, 2]] * 3, gives_batches=False)) == []
    assert "epoch 1: it has 2, and the state to go on from stands behind 9" in schedule.failure.text
