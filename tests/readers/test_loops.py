"""A loop over a reader: whole epochs, each sample once, and the next loop goes on where the last one ended."""

from __future__ import annotations

from blobfeed.readers.loops import LOOP_START, IndexedLoops, SampledLoops, StreamLoops
from blobfeed.workers.base.parameters import LastBatch
from blobfeed.workers.plan.state import State
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ..support.batches import batches


@st.composite
def loops(draw: st.DrawFn) -> IndexedLoops:
    samples, size, world = draw(st.integers(1, 60)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    last: LastBatch = draw(st.sampled_from(["wrap", "drop", "partial"]))
    round_rows = size * world
    assume(last != "drop" or samples >= round_rows)
    assume(last != "partial" or not 0 < samples % round_rows < world)
    return IndexedLoops(batches(samples, size, last, None, 0, world), draw(st.integers(1, 3)))


def at(position: int) -> State:
    return {"position": position, "seed": 7}


@settings(max_examples=80)
@given(loops())
def test_the_loops_cut_the_endless_batches_without_a_gap(loop: IndexedLoops) -> None:
    plan, number = loop.endless, 0
    for _ in range(3):
        batches = loop.left(at(plan.round_start(number)))
        assert batches == loop.batches
        assert batches is not None
        number += batches


@settings(max_examples=80)
@given(loops(), st.integers(0, 50))
def test_from_any_batch_the_remaining_ones_lead_to_the_next_loop(loop: IndexedLoops, number: int) -> None:
    plan = loop.endless
    position = plan.round_start(number)
    remaining = loop.left(at(position))
    assert remaining is not None
    assert 1 <= remaining <= (loop.batches or 0)
    assert plan.round_start(number + remaining) == loop.next_loop(at(position))["position"]


@settings(max_examples=80)
@given(loops())
def test_a_loop_has_what_the_plan_has_for_as_many_epochs(loop: IndexedLoops) -> None:
    assert loop.batches == loop.endless.begun_at(0, loop.epochs).total


@given(
    samples=st.integers(1, 60),
    epochs=st.integers(1, 3),
    size=st.integers(1, 30),
    other_size=st.integers(1, 30),
    loops_before=st.integers(0, 50),
    taken=st.integers(0, 40),
)
def test_with_wrap_the_rest_of_a_loop_is_as_many_batches_of_any_size_as_its_epochs_need(
    samples: int, epochs: int, size: int, other_size: int, loops_before: int, taken: int
) -> None:
    saved, loop = (IndexedLoops(batches(samples, each), epochs) for each in (size, other_size))
    whole = saved.batches or 0
    start = loops_before * whole * size
    state: State = {"position": start + taken % whole * size, LOOP_START: start}
    assert saved.start(state) == loop.start(state) == start
    rest = samples * epochs - taken % whole * size
    assert loop.left(state) == -(-rest // other_size)


def test_an_endless_loop_has_no_length_and_no_successor() -> None:
    loop = IndexedLoops(batches(10, 4), None)
    assert loop.batches is None
    assert loop.left(at(8)) is None
    assert loop.next_loop(at(8)) == at(8)


@given(st.integers(0, 50), st.integers(1, 5), st.integers(0, 30))
def test_a_streams_next_loop_begins_all_its_shards_anew(epoch: int, epochs: int, position: int) -> None:
    loop = StreamLoops(epochs)
    state: State = {"epoch": epoch, "position": position, "end": 3, "seed": 7}
    following = loop.next_loop(state)
    assert loop.pipeline_epochs(state) == following["epoch"]
    assert (following["position"], following["end"], following["seed"]) == (0, 0, 7)
    begin = int(following["epoch"]) - epochs
    assert begin % epochs == 0
    assert begin <= epoch < begin + epochs


def test_a_pipeline_over_an_unchecked_state_is_still_asked_for() -> None:
    assert StreamLoops(2).pipeline_epochs({"epoch": "soon"}) == 2


# ---- epochs that a sampler draws


@given(epoch=st.integers(0, 50), position=st.integers(0, 30), epochs=st.integers(1, 5))
def test_the_loop_after_epochs_of_unknown_length_begins_with_the_next_epoch(
    epoch: int, position: int, epochs: int
) -> None:
    loop, state = SampledLoops(epochs), {"epoch": epoch, "position": position, "seed": 7}
    assert (loop.batches, loop.left(state)) == (None, None)
    following = loop.next_loop(state)
    assert (following["position"], following["seed"]) == (0, 7)
    assert following["epoch"] == loop.end_epoch(state)
    begin = int(following["epoch"]) - epochs
    assert begin % epochs == 0
    assert begin <= epoch < begin + epochs


@settings(max_examples=80)
@given(loops(), st.integers(0, 50))
def test_positions_within_an_epoch_are_those_from_the_first_epoch_on(loop: IndexedLoops, number: int) -> None:
    samples, position = loop.endless.samples, loop.endless.round_start(number)
    state: State = {"epoch": position // samples, "position": position % samples, "seed": 7}
    assert (loop.start(state), loop.left(state)) == (loop.start(at(position)), loop.left(at(position)))
    assert loop.end_epoch(state) is None
    following = loop.next_loop(state)
    whole = int(following["epoch"]) * samples + int(following["position"])
    assert whole == loop.next_loop(at(position))["position"]
    assert 0 <= int(following["position"]) < samples


def test_an_endless_loop_of_a_sampler_has_no_successor() -> None:
    loop, state = SampledLoops(None), {"epoch": 3, "position": 8}
    assert loop.next_loop(state) == state
    assert loop.end_epoch(state) is None
