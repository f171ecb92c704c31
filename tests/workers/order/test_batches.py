"""Batch plans: the ranks together take every epoch once, from any start."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from blobfeed.supplies import rand_skip_of
from blobfeed.workers.api import LastBatch, Parameters
from blobfeed.workers.order import Cut
from blobfeed.workers.plan import batches_per_task
from hypothesis import assume, given
from hypothesis import strategies as st

from blobfeed import ParameterError
from tests.support.part import examples

from ...support.batches import BatchRange, RankedBatches, batches

SAMPLES = st.integers(1, 70)
BATCH_SIZE = st.integers(1, 20)
RANKS = st.integers(1, 5)
EPOCHS = st.integers(1, 4)
EVERY_MODE: tuple[LastBatch, ...] = ("wrap", "drop", "partial")
MODES = st.sampled_from(EVERY_MODE)


def _plans(
    samples: int, batch_size: int, mode: LastBatch, epochs: int | None, ranks: int, start: int = 0
) -> list[RankedBatches]:
    """One plan for each rank; a combination that is refused does not count as an example."""
    try:
        return [batches(samples, batch_size, mode, epochs, rank, ranks, start) for rank in range(ranks)]
    except ParameterError:
        assume(False)
        raise


def _positions(batch: BatchRange) -> range:
    return range(batch.start, batch.start + batch.rows)


def _taken(plans: list[RankedBatches], rounds: range) -> list[int]:
    return [*chain.from_iterable(_positions(plan.batch(k)) for k in rounds for plan in plans)]


def _all(plan: RankedBatches) -> list[BatchRange]:
    assert plan.total is not None
    return [plan.batch(k) for k in range(plan.total)]


@examples(200)
@given(SAMPLES, BATCH_SIZE, MODES, EPOCHS, RANKS, st.integers(0, 200))
def test_the_ranks_together_take_each_position_once_in_order(
    samples: int, batch_size: int, mode: LastBatch, epochs: int, ranks: int, start: int
) -> None:
    plans = _plans(samples, batch_size, mode, epochs, ranks, start)
    batches_of = [_all(plan) for plan in plans]
    taken = [*chain.from_iterable(map(_positions, sorted(chain.from_iterable(batches_of))))]
    counts = [len(each) for each in batches_of]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= (epochs if mode == "partial" else 0)
    round_rows = batch_size * ranks
    everything = range(start, epochs * samples)
    if mode == "partial":
        expected = [*everything]
    elif mode == "wrap":
        expected = [*range(start, start + -(-len(everything) // round_rows) * round_rows)]
    else:
        ends = [epoch * samples for epoch in range(start // samples, epochs + 1)]
        borders = [start, *ends[1:]]
        expected = []
        for first, end in pairwise(borders):
            expected += range(first, first + (end - first) // round_rows * round_rows)
    assert taken == expected


@examples(100)
@given(SAMPLES, BATCH_SIZE, st.sampled_from(("drop", "partial")), RANKS, st.integers(0, 5))
def test_batches_per_epoch_counts_the_batches_of_an_epoch(
    samples: int, batch_size: int, mode: LastBatch, ranks: int, epoch: int
) -> None:
    plan = _plans(samples, batch_size, mode, None, ranks)[0]
    first = plan.batches_per_epoch * epoch
    epochs = [plan.batch(k).start // samples for k in range(first, first + plan.batches_per_epoch)]
    assert set(epochs) == {epoch}
    assert [plan.ends_epoch(first + k) for k in range(plan.batches_per_epoch)][:-1] == [False] * (
        plan.batches_per_epoch - 1
    )
    assert plan.ends_epoch(first + plan.batches_per_epoch - 1)


@examples(100)
@given(SAMPLES, BATCH_SIZE, RANKS, st.integers(0, 30))
def test_an_epoch_ends_in_the_round_that_holds_its_last_sample(
    samples: int, batch_size: int, ranks: int, k: int
) -> None:
    plans = _plans(samples, batch_size, "wrap", None, ranks)
    held = any(position % samples == samples - 1 for position in _taken(plans, range(k, k + 1)))
    assert [plan.ends_epoch(k) for plan in plans] == [held] * ranks


@examples(200)
@given(SAMPLES, BATCH_SIZE, MODES, EPOCHS, RANKS, st.integers(0, 100), st.data())
def test_a_plan_from_a_saved_position_goes_on_as_the_first_would_have(
    samples: int, batch_size: int, mode: LastBatch, epochs: int, ranks: int, start: int, data: st.DataObject
) -> None:
    plans = _plans(samples, batch_size, mode, epochs, ranks, start)
    position = plans[0].round_start(data.draw(st.integers(0, len(_all(plans[0])))))
    for before, after in zip(plans, _plans(samples, batch_size, mode, epochs, ranks, position), strict=True):
        assert _all(after) == [each for each in _all(before) if each.start >= position]


@pytest.mark.parametrize(
    ("samples", "mode", "rest"),
    [
        (24, "partial", 0),
        (25, "partial", 1),
        (26, "partial", 2),
        (27, "partial", 0),
        (25, "wrap", 0),
        (None, "partial", 0),
    ],
)
def test_a_last_round_that_has_samples_for_some_ranks_alone_is_known(
    samples: int | None, mode: LastBatch, rest: int
) -> None:
    assert Cut(Parameters(source={}, batch_size=4, world_size=3, last_batch=mode), samples).unequal_rest == rest


def test_a_batch_far_away_costs_what_the_first_does() -> None:
    # Anything that walked there would never come back.
    for mode in EVERY_MODE:
        plan = batches(10**12 + 7, 64, mode, None, 1, 4)
        rounds = plan.batches_per_epoch * 10**6 if mode != "wrap" else 10**15
        assert plan.batch(rounds).start == (10**6 * plan.samples if mode != "wrap" else 10**15 * 256) + 64


def test_a_start_behind_the_last_epoch_leaves_nothing() -> None:
    for mode in EVERY_MODE:
        assert batches(10, 5, mode, epochs=2, start=20).total == 0


def test_rand_skip_takes_every_value_below_it() -> None:
    assert {rand_skip_of(seed, 5) for seed in range(100)} == set(range(5))
    assert rand_skip_of(3, 0) == 0


# ---- how many batches share a slot

SECONDS = st.floats(0, 100, allow_nan=False)


@examples(200)
@given(batch_bytes=st.integers(0, 1 << 40), batch_size=st.integers(1, 10_000), seconds=SECONDS)
def test_batches_share_a_slot_only_where_they_are_small_and_quick(
    batch_bytes: int, batch_size: int, seconds: float
) -> None:
    batches = batches_per_task(batch_bytes, batch_size, seconds)
    assert 1 <= batches <= 64
    if batches > 1:
        assert batches * batch_bytes <= 4 << 20
        assert batches * batch_size * seconds <= 0.0041


@pytest.mark.parametrize(
    ("batch_bytes", "seconds_per_row", "batches"),
    [(64 * 784, 1e-7, 64), (1 << 20, 1e-7, 4), (64 * 784, 1e-5, 6), (64 * 784, 1e-3, 1), (64 * 150_528, 1e-7, 1)],
)
def test_of_batches_of_64_rows_as_many_share_a_slot_as_are_worth_a_message(
    batch_bytes: int, seconds_per_row: float, batches: int
) -> None:
    assert batches_per_task(batch_bytes, 64, seconds_per_row) == batches


@pytest.mark.parametrize(("ahead", "batches"), [(1, 1), (2, 1), (5, 2), (16, 8)])
def test_batches_that_may_be_ready_ahead_are_two_tasks_at_least(ahead: int, batches: int) -> None:
    assert batches_per_task(64 * 784, 64, 1e-7, ahead) == batches
