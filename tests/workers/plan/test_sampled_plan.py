"""What the trainer asks a plan whose epochs a sampler draws: its counts, new weights, and going on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blobfeed.supplies import AboutSampler, DrawnSupply
from blobfeed.workers.api import Parameters
from blobfeed.workers.order import At
from blobfeed.workers.plan import Batch, Plan, Position
from blobfeed.workers.transport import Announce, Packed, Run

from blobfeed import ArraySpec, SourceError

pytestmark = pytest.mark.pure

SAMPLES = 10
SPECS = {"data": ArraySpec((2,), np.dtype(np.float32))}


def plan_of(length: int | None, *, gives_batches: bool = False, **values: Any) -> Plan:
    given: dict[str, Any] = {"source": {}, "batch_size": 4, "seed": 5} | values
    about = AboutSampler("sampler s", length, "as declared", gives_batches)
    sampler: Packed[Any] = Packed(None)
    supply = DrawnSupply(sampler=sampler, about=about, source_samples=SAMPLES)
    decoded: Packed[Any] = Packed(SimpleNamespace(identity="{}"))
    return Plan(
        parameters=Parameters(**given), supply=supply, decoded=decoded, specs=SPECS, slot_specs=SPECS,
        postprocesses=False, max_loaders=1,
    )  # fmt: skip


# ---- counts


def test_a_known_number_of_samples_is_counted_and_another_one_waits_for_the_draw() -> None:
    plan = plan_of(12, epochs=2)
    assert (plan.supply.samples, plan.total_batches) == (12, 6)
    for unknown in (plan_of(None, epochs=2), plan_of(12, gives_batches=True)):
        with pytest.raises(SourceError):
            _ = unknown.supply.samples
    assert plan_of(None, epochs=2).total_batches is None


def test_a_samplers_batches_are_counted_as_they_are() -> None:
    assert plan_of(12, gives_batches=True, epochs=2).total_batches == 24
    assert plan_of(12, gives_batches=True, epochs=2, world_size=2, rank=1).total_batches == 12


def test_each_batch_of_a_message_has_its_own_samples_and_ends_where_the_next_begins() -> None:
    plan, drawn = plan_of(12), np.array([7, 7, 1, 5, 9, 2], np.int64)
    announce = Announce(2, 0, (), (Run(0, 6, 3, 4),), ((3, 8), (4, 0)), drawn.tobytes())
    first, second = plan.unpack(announce, {"data": np.zeros((8, 2), np.float32)})
    assert (first.indices.tolist(), second.indices.tolist()) == ([7, 7, 1, 5], [9, 2])
    assert (first.end, second.end) == ((3, 8), (4, 0))
    assert [(batch.epoch, batch.position, batch.rows) for batch in (first, second)] == [(3, 4, 4), (3, 8, 2)]


# ---- new weights


@pytest.mark.parametrize(
    ("taken", "ahead", "epoch"),
    [(0, 0, 0), (0, 1, 1), (1, 0, 1), (2, 0, 1), (2, 1, 1), (3, 0, 1), (3, 1, 2), (5, 2, 3)],
)
def test_new_weights_count_from_the_first_epoch_of_which_nothing_is_taken(taken: int, ahead: int, epoch: int) -> None:
    plan = plan_of(12)
    assert Position(plan, taken, At(*divmod(4 * taken, 12))).epoch_behind(ahead) == epoch


# ---- going on


def received(plan: Plan, batches: int) -> Position:
    """The position behind `batches`, of an epoch of 12 samples in 3 batches."""
    position = plan.begin()
    for number in range(batches):
        epoch, place = divmod(number, 3)
        run = Run(0, 4, epoch, 4 * place)
        batch = Batch(number, epoch, 4 * place, 4, {}, number, [run], plan.supply)
        batch.end = At((number + 1) // 3, (number + 1) % 3 * 4)
        position = position.after(batch)
    return position


def test_a_state_of_before_goes_on_unless_it_holds_weights() -> None:
    plan = plan_of(12)
    state = received(plan, 4).state()
    assert (state["epoch"], state["position"], state["batches"]) == (1, 4, 4)
    for known in (state, {**state, "weights": ""}):
        assert plan.resumed(known).begin().state() == state


def test_a_state_whose_rest_of_the_epoch_is_no_round_begins_the_next_one() -> None:
    plan = plan_of(12, last_batch="drop")
    state = {**received(plan, 2).state(), "position": 9}
    assert plan_of(12, last_batch="drop").resumed(state).begin().at == (1, 0)
