"""Units against the plainest reading of what they are: one row after the other."""

from __future__ import annotations

import itertools

import pytest
from blobfeed.workers.base.errors import ParameterError
from blobfeed.workers.order.batches import BatchPlan, LastBatch
from blobfeed.workers.order.units import UnitPlan
from hypothesis import assume, given, settings
from hypothesis import strategies as st


@st.composite
def unit_plans(draw: st.DrawFn) -> UnitPlan:
    world_size = draw(st.integers(1, 3))
    last_batch: LastBatch = draw(st.sampled_from(("wrap", "drop", "partial")))
    samples, batch_size = draw(st.integers(1, 60)), draw(st.integers(1, 9))
    epochs, start = draw(st.none() | st.integers(1, 3)), draw(st.integers(0, 70))
    rank = draw(st.integers(0, world_size - 1))
    try:
        plan = BatchPlan(samples, batch_size, last_batch, epochs, rank, world_size, start)
    except ParameterError:
        assume(False)  # too few samples for every rank: test_batch_plan has these
        raise
    assume(plan.total is None or plan.total > 0)
    return UnitPlan(plan, draw(st.integers(1, 5)))


@st.composite
def units(draw: st.DrawFn) -> tuple[UnitPlan, int]:
    plan = draw(unit_plans())
    return plan, draw(st.integers(0, 20 if plan.total is None else plan.total - 1))


def naive_rows(plan: UnitPlan, unit: int) -> dict[int, int]:
    """Row → global position, for every row of the unit that holds a sample."""
    found = {}
    for number in range(plan.batches_per_unit):
        k = unit * plan.batches_per_unit + number
        if plan.plan.total is not None and k >= plan.plan.total:
            break
        batch = plan.plan.batch(k)
        for place in range(batch.rows):
            found[number * plan.plan.batch_size + place] = batch.start + place
    return found


@settings(deadline=None, max_examples=300)
@given(which=units(), data=st.data())
def test_segments_are_the_rows_that_hold_samples(which: tuple[UnitPlan, int], data: st.DataObject) -> None:
    plan, unit = which
    first = data.draw(st.integers(0, plan.rows_of(unit)), "first row")
    rows = data.draw(st.integers(0, plan.rows_of(unit) - first), "rows")
    listed = [
        (segment.row + i, segment.position + i)
        for segment in plan.segments(unit, first, rows)
        for i in range(segment.count)
    ]
    wanted = {row: position for row, position in naive_rows(plan, unit).items() if first <= row < first + rows}
    assert listed == sorted(wanted.items())


@settings(deadline=None, max_examples=100)
@given(which=units())
def test_segments_are_as_long_as_can_be(which: tuple[UnitPlan, int]) -> None:
    plan, unit = which
    segments = list(plan.segments(unit, 0, plan.rows_of(unit)))
    assert all(segment.count > 0 for segment in segments)
    for one, next_one in itertools.pairwise(segments):
        adjoins = (one.row + one.count, one.position + one.count) == (next_one.row, next_one.position)
        assert not adjoins


@settings(deadline=None, max_examples=100)
@given(which=units(), sizes=st.integers(1, 7))
def test_tasks_of_any_size_make_the_same_rows(which: tuple[UnitPlan, int], sizes: int) -> None:
    plan, unit = which
    end = plan.rows_of(unit)
    made: list[int] = []
    for first in range(0, end, sizes):
        for segment in plan.segments(unit, first, min(sizes, end - first)):
            made += range(segment.row, segment.row + segment.count)
    assert made == sorted(naive_rows(plan, unit))


@settings(deadline=None, max_examples=100)
@given(which=units())
def test_a_row_knows_its_position(which: tuple[UnitPlan, int]) -> None:
    plan, unit = which
    for row, position in naive_rows(plan, unit).items():
        assert plan.position_of(unit, row) == position


@settings(deadline=None, max_examples=100)
@given(plan=unit_plans())
def test_the_units_together_are_all_batches_in_order(plan: UnitPlan) -> None:
    total, count = plan.plan.total, plan.total
    if total is None or count is None:
        assert (total, count) == (None, None)
        return
    assert [k for unit in range(count) for k in plan.batches(unit)] == list(range(total))
    assert all(1 <= len(plan.batches(unit)) <= plan.batches_per_unit for unit in range(count))


@settings(deadline=None, max_examples=100)
@given(which=units())
def test_a_unit_has_room_in_a_slot(which: tuple[UnitPlan, int]) -> None:
    plan, unit = which
    assert plan.rows_of(unit) <= plan.rows == plan.batches_per_unit * plan.plan.batch_size
    assert max(naive_rows(plan, unit)) < plan.rows_of(unit)


@pytest.mark.parametrize("unit", [10**9, 10**12])
def test_a_unit_far_away_costs_what_the_first_does(unit: int) -> None:
    plan = UnitPlan(BatchPlan(1000, 7, "partial"), 3)  # an epoch is 143 batches, the last one of six
    segments = list(plan.segments(unit, 0, plan.rows))
    assert sum(segment.count for segment in segments) in (20, 21)
