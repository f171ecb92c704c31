"""What the trainer asks the plan: the batches in a slot, how far it has come, and going on from there."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.api import Parameters, RemoteLoaders
from blobfeed.workers.order import EpochOrder, MixedOrder, Shards, make_order
from blobfeed.workers.plan import Batch, Plan, max_loaders, usable_cores
from blobfeed.workers.transport import Announce, Packed, Run

from blobfeed import ArraySpec, ParameterError

pytestmark = pytest.mark.pure

SPECS = {"data": ArraySpec((2,), np.dtype(np.float32))}
SAMPLES = 10
ORDER = make_order(SAMPLES, shuffle=True, seed=5)
DECODED: Packed[Any] = Packed(SimpleNamespace(identity='{"source": "hdf5"}'))


def indexed(batches_per_slot: int = 2, **values: Any) -> Plan:
    given: dict[str, Any] = {"source": {}, "batch_size": 4, "epochs": 3, "last_batch": "partial", "seed": 5} | values
    parameters = Parameters(**given)
    return Plan(
        parameters=parameters, order=ORDER, batches_per_slot=batches_per_slot,
        decoded=DECODED, specs=SPECS, slot_specs=SPECS, postprocesses=False, max_loaders=1,
    )  # fmt: skip


def stream(shards: int = 2, **values: Any) -> Plan:
    given: dict[str, Any] = {"source": {}, "batch_size": 4, "last_batch": "partial", "seed": 5} | values
    parameters = Parameters(**given)
    return Plan(
        parameters=parameters, shards=Shards(shards, capacity=6), decoded=DECODED,
        specs=SPECS, slot_specs=SPECS, postprocesses=False, max_loaders=1,
    )  # fmt: skip


def announced(plan: Plan, group: int, replaced: Any = (), good_rows: int = -1) -> Announce | None:
    """The announcement of `group`, behind those before it."""
    schedule = plan.schedule()
    assert all(schedule.has(each) for each in range(group + 1))
    return schedule.announcement(group, 0, replaced, good_rows)


def unpacked(plan: Plan, group: int, replaced: Any = (), good_rows: int = -1) -> list[Batch]:
    announce = announced(plan, group, replaced, good_rows)
    return [] if announce is None else plan.unpack(announce, rows())


def rows(count: int = 8) -> dict[str, Any]:
    return {"data": np.arange(2 * count, dtype=np.float32).reshape(count, 2)}


# ---- batches in a slot


def test_a_groups_batches_are_views_on_their_rows_and_know_where_they_stand() -> None:
    plan, slot = indexed(), rows()
    announce = announced(plan, 1)
    assert announce is not None
    first, second = plan.unpack(announce, slot)
    assert [(batch.number, batch.epoch, batch.position, batch.rows) for batch in (first, second)] == [
        (2, 0, 8, 2),
        (3, 1, 0, 4),
    ]
    assert np.shares_memory(first.tops["data"], slot["data"])
    np.testing.assert_array_equal(first.tops["data"], slot["data"][:2])
    np.testing.assert_array_equal(second.tops["data"], slot["data"][4:8])
    np.testing.assert_array_equal(first.indices, ORDER.indices(8, 2))
    np.testing.assert_array_equal(second.indices, ORDER.indices(10, 4))
    assert first.group == second.group == 1


def test_each_batch_has_the_replacements_of_its_own_rows() -> None:
    first, second = unpacked(indexed(), 0, ((0, 90), (3, 93), (4, 94), (7, 97)))
    assert (first.replaced, second.replaced) == ({0: 90, 3: 93}, {0: 94, 3: 97})
    assert (first.indices[[0, 3]].tolist(), second.indices[[0, 3]].tolist()) == ([90, 93], [94, 97])


@pytest.mark.parametrize("per_slot", [1, 2, 5])
@pytest.mark.parametrize("starts_small", [True, False])
def test_a_groups_first_batch_is_counted_behind_those_of_the_groups_before(per_slot: int, starts_small: bool) -> None:
    plan = replace(indexed(per_slot, epochs=9), starts_small=starts_small, first_number=7)
    schedule, number = plan.schedule(), 7
    for group in range(4):
        assert plan.first_batch(group) == number
        assert schedule.has(group)
        batches = 1 if starts_small and not group else per_slot
        assert len(schedule.batch_rows(group, 1 << 40)) == batches
        number += batches


def test_a_loader_that_fetches_rows_at_once_has_one_task_more() -> None:
    plan = indexed()
    assert [replace(plan, rows_at_once=rows).tasks_in_flight for rows in (1, 2, 64)] == [2, 3, 3]
    assert plan.tasks_in_flight == 2


def test_a_sample_of_a_mix_has_the_epoch_of_its_own_source_wherever_it_is_named() -> None:
    order = MixedOrder([3, 97], [1, 1], shuffle=False, seed=0)
    plan = indexed(batches_per_slot=1)
    plan = replace(plan, order=order)
    (batch,) = unpacked(plan, 3)
    assert batch.epoch == 0
    assert batch.indices.tolist() == [0, 9, 1, 10]
    assert batch.epochs.tolist() == [2, 0, 2, 0]
    schedule = plan.schedule()
    assert all(schedule.has(group) for group in range(4))
    assert [schedule.sample_in(3, row, -1)[:2] for row in range(4)] == [(2, 0), (0, 9), (2, 1), (0, 10)]


def test_a_streams_batch_has_as_many_rows_as_were_there() -> None:
    plan = replace(stream(), first_number=30)
    (batch,) = plan.unpack(Announce(3, 0, (), (Run(0, 3, 1, 8, shard=1),), ((1, 6),)), rows(4))
    assert (batch.number, batch.epoch, batch.position, batch.rows, batch.end, batch.group) == (33, 1, 8, 3, (1, 6), 3)
    assert batch.indices.tolist() == [8, 9, 10]
    assert batch.epochs.tolist() == [1, 1, 1]
    assert np.asarray(batch.tops["data"]).shape == (3, 2)


# ---- going on


def after(plan: Plan, batches: list[Batch]) -> dict[str, Any]:
    """The state behind `batches`."""
    progress = plan.begin()
    for batch in batches:
        progress = progress.after(batch)
    return progress.state()


def of_stream(plan: Plan, runs: list[Run]) -> list[Batch]:
    announces = (
        Announce(number, 0, (), (run,), ((run.epoch, run.position // 4 * 2 + run.shard + 1),))
        for number, run in enumerate(runs)
    )
    return [batch for announce in announces for batch in plan.unpack(announce, rows())]


def test_a_stream_of_any_number_of_shards_goes_on_with_that_of_its_state() -> None:
    plan = replace(stream(2, world_size=3, rank=1), shards=Shards(2, 6, any_number=True))
    decoded = SimpleNamespace(num_shards=6)
    plan = replace(plan, decoded=Packed(decoded))
    assert plan.resumed(plan.begin().state()).shards == plan.shards
    assert decoded.num_shards == 6
    other = plan.resumed({**plan.begin().state(), "shards": 5}).shards
    assert (other, decoded.num_shards) == (Shards(5, 6, any_number=True), 15)


def test_a_loop_over_a_stream_that_was_left_is_followed_by_whole_epochs() -> None:
    plan = stream(last_batch="wrap", epochs=2)
    position = plan.begin()
    for batch in of_stream(plan, [Run(0, 4, 0, 0), Run(0, 3, 0, 0, shard=1)]):
        position = position.after(batch)
    following = position.plan_from(2).begin().state()
    assert [following[name] for name in ("epoch", "position", "batches")] == [2, 0, 2]


def test_a_state_says_where_the_next_batch_stands() -> None:
    state = after(indexed(), [*unpacked(indexed(), 0), *unpacked(indexed(), 1)])
    assert state == {
        "version": 3,
        "batches": 4,
        "position": 14,
        "samples": SAMPLES,
        "seed": 5,
        "shuffle": "False",
        "order": "",
        "data": '{"source": "hdf5"}',
        "world_size": 1,
    }


def test_going_on_far_away_costs_what_beginning_does() -> None:
    # Anything that walked there would never come back.
    far = indexed(epochs=None).resumed({**indexed().begin().state(), "position": 10**15 + 4})
    schedule = far.schedule()
    assert schedule.has(0)
    assert schedule.runs(0, 0, 4) == (Run(0, 4, 10**14, 4),)


def chunked(chunk_samples: int, window_chunks: int) -> EpochOrder:
    return make_order(SAMPLES, shuffle="chunk", seed=5, chunk_samples=chunk_samples, window_chunks=window_chunks)


def mixed(*weights: float, sizes: tuple[int, int] = (4, 6), chunk_samples: int = 2) -> EpochOrder:
    return MixedOrder(sizes, weights, shuffle="chunk", seed=5, chunk_samples=[chunk_samples] * 2)


@pytest.mark.parametrize(
    ("order", "others"),
    [
        (chunked(2, 4), [chunked(2, 1), chunked(1, 4), mixed(1, 1)]),
        (mixed(1, 1), [mixed(1, 2), mixed(1, 1, sizes=(6, 4)), mixed(1, 1, chunk_samples=3)]),
    ],
    ids=["chunk", "mix"],
)
def test_a_state_of_other_chunks_windows_or_weights_is_refused(order: EpochOrder, others: list[EpochOrder]) -> None:
    plan = replace(indexed(), order=order)
    state = plan.begin().state()
    assert plan.resumed(state).begin().state() == state
    for other in others:
        with pytest.raises(ParameterError):
            replace(indexed(), order=other).resumed(state)


@pytest.mark.parametrize("last_batch", ["wrap", "partial"])
def test_epochs_that_a_stream_joins_without_a_border_stay_as_many(last_batch: str) -> None:
    plan = stream(last_batch=last_batch, epochs=2)
    state = after(plan, of_stream(plan, [Run(0, 3, 0, 0, shard=1)]))
    assert stream(last_batch=last_batch, epochs=2).resumed(state).begin().state() == state
    for epochs in (5, None):
        other = stream(last_batch=last_batch, epochs=epochs)
        if last_batch == "wrap":
            with pytest.raises(ParameterError):
                other.resumed(state)
        else:
            assert other.resumed(state).begin().state() == state


# ---- sizes


@pytest.mark.parametrize(
    ("prefetch", "batches_per_slot", "delivery", "slots"),
    [
        (1, 1, "copy", 1),
        (4, 1, "copy", 4),
        (5, 2, "copy", 2),
        (4, 1, "view", 5),
        ("auto", 1, "copy", 5),
        ("auto", 16, "copy", 5),
    ],
)
def test_the_ring_has_slots_for_what_may_be_made_ahead_and_what_is_lent(
    prefetch: int | str, batches_per_slot: int, delivery: str, slots: int
) -> None:
    plan = indexed(batches_per_slot, prefetch_batches=prefetch, delivery=delivery)
    assert plan.slots == slots
    assert plan.layout.rows == 4 * batches_per_slot


@pytest.mark.parametrize(
    ("cores", "granted", "share", "usable", "loaders"),
    [
        (8, None, 1.0, 8, 8),
        (8, None, 0.8, 8, 6),
        (10, None, 0.7, 10, 7),  # 10 * 0.7 is a little less than 7 in binary
        (8, None, 0.01, 8, 1),
        (8, 2.0, 1.0, 2, 2),
        (8, 2.5, 1.0, 3, 3),
        (8, 0.2, 0.5, 1, 1),
        (2, 16.0, 0.5, 2, 1),
    ],
)
def test_auto_takes_its_share_of_the_cores_that_affinity_and_control_groups_grant(
    monkeypatch: pytest.MonkeyPatch, cores: int, granted: float | None, share: float, usable: int, loaders: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr("blobfeed.workers.plan.plan.processors_granted", lambda: granted)
    assert usable_cores() == usable
    assert max_loaders(Parameters(source={}, batch_size=1, num_loaders="auto", cpu_share=share)) == loaders
    assert max_loaders(Parameters(source={}, batch_size=1, num_loaders=20, cpu_share=share)) == 20


def test_every_loader_has_a_line_of_the_status_board_and_the_sampler_one() -> None:
    assert replace(indexed(), max_loaders=3).status_lines == 3
    assert replace(indexed(remote_loaders=RemoteLoaders(count=5)), max_loaders=3).status_lines == 3 + 5


def test_only_the_cores_of_this_very_process_count() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
