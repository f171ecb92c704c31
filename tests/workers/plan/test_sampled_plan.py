"""What the trainer asks a plan whose epochs a sampler draws: its counts, its slots, new weights, and going on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import Parameters
from blobfeed.workers.loading import Sampling
from blobfeed.workers.order import AboutSampler
from blobfeed.workers.plan import Batch, Plan, Position
from blobfeed.workers.transport import Announce, Packed, Run
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import ArraySpec, ParameterError, SourceError

pytestmark = pytest.mark.pure

SAMPLES = 10
SPECS = {"data": ArraySpec((2,), np.dtype(np.float32))}
EQUAL = np.ones(SAMPLES)
FEW = np.eye(1, SAMPLES, 3)[0]


def plan_of(
    length: int | None, *, takes_weights: bool = True, gives_batches: bool = False, most_in_slot: int = 1, **values: Any
) -> Plan:
    given: dict[str, Any] = {"source": {}, "batch_size": 4, "seed": 5} | values
    about = AboutSampler("sampler s", length, "as declared", gives_batches, takes_weights)
    sampler: Packed[Any] = Packed(None)
    sampling = Sampling(sampler=sampler, about=about, samples=SAMPLES, most_in_slot=most_in_slot)
    decoded: Packed[Any] = Packed(SimpleNamespace(identity="{}"))
    return Plan(
        parameters=Parameters(**given), sampling=sampling, decoded=decoded, specs=SPECS, slot_specs=SPECS,
        postprocesses=False, max_loaders=1,
    )  # fmt: skip


# ---- counts


def test_a_known_number_of_samples_is_counted_and_another_one_waits_for_the_draw() -> None:
    plan = plan_of(12, epochs=2)
    assert (plan.samples, plan.total_batches) == (12, 6)
    for unknown in (plan_of(None, epochs=2), plan_of(12, gives_batches=True)):
        with pytest.raises(SourceError):
            _ = unknown.samples
    assert plan_of(None, epochs=2).total_batches is None


def test_a_samplers_batches_are_counted_as_they_are() -> None:
    assert plan_of(12, gives_batches=True, epochs=2).total_batches == 24
    assert plan_of(12, gives_batches=True, epochs=2, world_size=2, rank=1).total_batches == 12


def test_each_batch_of_a_group_has_its_own_samples_and_ends_where_the_next_begins() -> None:
    plan, drawn = plan_of(12), np.array([7, 7, 1, 5, 9, 2], np.int64)
    announce = Announce(2, 0, (), (Run(0, 6, 3, 4),), ((3, 8), (4, 0)), drawn.tobytes())
    first, second = plan.unpack(announce, {"data": np.zeros((8, 2), np.float32)})
    assert (first.indices.tolist(), second.indices.tolist()) == ([7, 7, 1, 5], [9, 2])
    assert (first.end, second.end) == ((3, 8), (4, 0))
    assert [(batch.epoch, batch.position, batch.rows) for batch in (first, second)] == [(3, 4, 4), (3, 8, 2)]


# ---- slots


@given(length=st.integers(1, 10**6), batch_size=st.integers(1, 64), seconds=st.floats(0, 1))
def test_a_slot_of_weighted_samples_has_few_batches_of_an_epoch(length: int, batch_size: int, seconds: float) -> None:
    """What a setting of weights waits for, so it does not depend on measured times either."""
    plan = plan_of(length, batch_size=batch_size)
    slow, quick = (Plan.sized(_with(plan, seconds_per_row=each)) for each in (seconds, 0.0))
    free = Plan.sized(_with(plan_of(length, batch_size=batch_size, takes_weights=False), seconds_per_row=0.0))
    epoch = -(-length // batch_size)
    assert slow.sampling is not None
    assert quick.sampling is not None
    most = slow.sampling.most_in_slot
    assert (
        most == quick.sampling.most_in_slot == quick.batches_per_slot == min(free.batches_per_slot, max(1, epoch // 16))
    )
    assert 1 <= slow.batches_per_slot <= most
    assert free.sampling is not None
    assert free.sampling.most_in_slot == 1


def _with(plan: Plan, **values: Any) -> Plan:
    return Plan(**{name: getattr(plan, name) for name in plan.__dataclass_fields__} | values)


@pytest.mark.parametrize(("ahead", "in_slot", "most"), [("auto", 1, 5), ("auto", 3, 15), (6, 1, 7), (6, 3, 9)])
def test_as_many_batches_are_ahead_as_the_ring_holds_and_one_slot_more(ahead: Any, in_slot: int, most: int) -> None:
    assert plan_of(12, prefetch_batches=ahead).most_ahead(in_slot) == most


# ---- new weights


@given(
    taken=st.integers(0, 40),
    ahead=st.integers(1, 9),
    device=st.integers(0, 3),
    most=st.integers(1, 3),
    started=st.booleans(),
)
def test_new_weights_apply_from_the_first_epoch_of_which_nothing_can_be_planned(
    taken: int, ahead: int, device: int, most: int, started: bool
) -> None:
    plan = plan_of(12, prefetch_batches=ahead, device_prefetch=device, most_in_slot=most)
    position = Position(plan, taken, divmod(4 * taken, 12))
    new = plan.reweigh(FEW, position, started=started)
    planned = 4 * (taken + (device + ahead + most if started else 0))
    assert new.change.from_epoch == -(-planned // 12)
    np.testing.assert_array_equal(new.weights, FEW)
    assert new.gone == []


def test_weights_that_are_superseded_are_given_back() -> None:
    plan = plan_of(12)
    position = Position(plan, 30, (10, 0))
    first = plan.reweigh(FEW, position, started=False)
    assert plan.reweigh(EQUAL, position, started=False).gone == [first.change.version]


# ---- going on


def received(plan: Plan, batches: int) -> Position:
    """The position behind `batches`, of an epoch of 12 samples in 3 batches."""
    position = plan.begin()
    for number in range(batches):
        epoch, place = divmod(number, 3)
        run = Run(0, 4, epoch, 4 * place)
        batch = Batch(number, epoch, 4 * place, 4, {}, number, [run], {}, None)
        batch.end = divmod(number + 1, 3)[0], (number + 1) % 3 * 4
        position = position.after(batch)
    return position


def test_a_state_keeps_weights_that_still_apply_and_only_a_sampler_that_takes_them_resumes_it() -> None:
    plan = plan_of(12)
    plan.reweigh(FEW, plan.begin(), started=True)
    state = received(plan, 4).state()
    assert (state["epoch"], state["position"], state["batches"]) == (1, 4, 4)
    resumed = plan_of(12).resumed(state)
    assert resumed.begin().state() == state
    assert resumed.sampling is not None
    (weights,) = resumed.sampling.log.weights.values()
    np.testing.assert_array_equal(weights, FEW)
    with pytest.raises(ParameterError):
        plan_of(12, takes_weights=False).resumed(state)
    without = plan_of(12, takes_weights=False)
    assert without.resumed(received(without, 4).state()).begin().at == (1, 4)


def test_a_state_whose_rest_of_the_epoch_is_no_round_begins_the_next_one() -> None:
    plan = plan_of(12, last_batch="drop")
    state = {**received(plan, 2).state(), "position": 9}
    assert plan_of(12, last_batch="drop").resumed(state).begin().at == (1, 0)
