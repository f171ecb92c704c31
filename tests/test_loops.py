"""A loop over a reader: whole epochs, each sample once, and the next loop goes on where the last one ended."""

from __future__ import annotations

from blobfeed.readers.loops import Loops
from blobfeed.workers.batch_plan import BatchPlan, LastBatch
from hypothesis import assume, given, settings
from hypothesis import strategies as st


@st.composite
def loops(draw: st.DrawFn) -> Loops:
    samples, size, world = draw(st.integers(1, 60)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    last: LastBatch = draw(st.sampled_from(["wrap", "drop", "partial"]))
    round_rows = size * world
    assume(last != "drop" or samples >= round_rows)
    assume(last != "partial" or not 0 < samples % round_rows < world)
    return Loops(samples, size, last, world, draw(st.integers(1, 3)))


def endless(loop: Loops) -> BatchPlan:
    return BatchPlan(loop.samples, loop.batch_size, loop.last_batch, None, 0, loop.world_size)


@settings(deadline=None, max_examples=80)
@given(loops())
def test_the_loops_cut_the_endless_batches_without_a_gap(loop: Loops) -> None:
    plan, number = endless(loop), 0
    for _ in range(3):
        batches = loop.remaining(plan.round_start(number))
        assert batches == loop.batches
        assert batches is not None
        number += batches


@settings(deadline=None, max_examples=80)
@given(loops(), st.integers(0, 50))
def test_from_any_batch_the_remaining_ones_lead_to_the_next_loop(loop: Loops, number: int) -> None:
    plan = endless(loop)
    position = plan.round_start(number)
    remaining = loop.remaining(position)
    assert remaining is not None
    assert 1 <= remaining <= (loop.batches or 0)
    assert plan.round_start(number + remaining) == loop.next_loop(position)


@settings(deadline=None, max_examples=80)
@given(loops())
def test_a_loop_has_what_the_plan_has_for_as_many_epochs(loop: Loops) -> None:
    plan = BatchPlan(loop.samples, loop.batch_size, loop.last_batch, loop.epochs, 0, loop.world_size)
    assert loop.batches == plan.total


def test_an_endless_loop_has_no_length_and_no_successor() -> None:
    loop = Loops(10, 4, "wrap", 1, None)
    assert loop.batches is None
    assert loop.remaining(8) is None
    assert loop.next_loop(8) == 8
