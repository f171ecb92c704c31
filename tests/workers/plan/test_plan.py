"""What the trainer asks the plan: the batches in slots, how far it has come, and going on from there."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blobfeed.supplies import EpochOrder, MixedOrder, StreamSupply, make_order
from blobfeed.workers.api import Parameters, RemoteLoaders
from blobfeed.workers.loading import Conversion
from blobfeed.workers.plan import Batch, Plan, SlotTops, max_loaders, usable_cores
from blobfeed.workers.transport import Announce, Packed, Run

from blobfeed import ArraySpec, ParameterError

pytestmark = pytest.mark.pure

SPECS = {"data": ArraySpec((2,), np.dtype(np.float32))}
SAMPLES = 10
ORDER = make_order(SAMPLES, shuffle=True, seed=5)
DECODED: Packed[Any] = Packed(SimpleNamespace(identity='{"source": "hdf5"}'))
OF_STREAM: Packed[Any] = Packed(SimpleNamespace(identity=""))


def indexed(batches_per_task: int = 2, **values: Any) -> Plan:
    given: dict[str, Any] = {"source": {}, "batch_size": 4, "epochs": 3, "last_batch": "partial", "seed": 5} | values
    parameters = Parameters(**given)
    return Plan(
        parameters=parameters, supply=ORDER, batches_per_task=batches_per_task,
        decoded=DECODED, specs=SPECS, slot_specs=SPECS, postprocesses=False, max_loaders=1,
    )  # fmt: skip


def stream(shards: int = 2, **values: Any) -> Plan:
    given: dict[str, Any] = {"source": {}, "batch_size": 4, "last_batch": "partial", "seed": 5} | values
    parameters = Parameters(**given)
    return Plan(
        parameters=parameters, supply=StreamSupply(shards, capacity=6), decoded=OF_STREAM,
        specs=SPECS, slot_specs=SPECS, postprocesses=False, max_loaders=1,
    )  # fmt: skip


def unpacked(plan: Plan, first: int, replaced: Any = (), slot: int = 0) -> list[Batch]:
    """The batches that are opened together from `first` on, behind those before them."""
    schedule, count = plan.schedule(), 0
    while schedule.opened <= first:
        count = schedule.open(plan.batches_per_task)
    announce = schedule.announcement(first, count, slot, replaced)
    assert announce is not None
    return plan.unpack(announce, rows())


def rows(count: int = 24) -> dict[str, Any]:
    return {"data": np.arange(2 * count, dtype=np.float32).reshape(count, 2)}


# ---- batches in slots


def test_batches_are_views_on_their_rows_and_know_where_they_stand() -> None:
    plan, slots = replace(indexed(), first_number=7), rows()
    schedule = plan.schedule()
    while schedule.opened < 3:  # the last one of the first epoch is short
        schedule.open(2)
    assert schedule.open(2) == 2
    announce = schedule.announcement(3, 2, 4, ())
    assert announce is not None
    first, second = plan.unpack(announce, slots)
    assert [(batch.number, batch.epoch, batch.position, batch.rows) for batch in (first, second)] == [
        (10, 1, 0, 4),
        (11, 1, 4, 4),
    ]
    assert np.shares_memory(first.tops["data"], slots["data"])
    np.testing.assert_array_equal(first.tops["data"], slots["data"][16:20])
    np.testing.assert_array_equal(second.tops["data"], slots["data"][20:24])
    np.testing.assert_array_equal(first.indices, ORDER.indices(10, 4))
    np.testing.assert_array_equal(second.indices, ORDER.indices(14, 4))
    assert (first.sequence, second.sequence) == (3, 4)


def test_the_views_of_a_slot_are_made_once_for_whole_batches() -> None:
    plan, made = indexed(), dict[int, SlotTops]()
    schedule = plan.schedule()
    opened = [(schedule.opened, schedule.open(2)) for _ in range(3)]
    announces = [schedule.announcement(first, count, 0, ()) for first, count in opened]
    whole, short, again = (plan.unpack(announce, rows(), made)[0].tops for announce in announces if announce)
    assert whole is again
    assert [len(tops["data"]) for tops in (whole, short)] == [4, 2]


def test_each_batch_has_the_replacements_of_its_own_rows() -> None:
    first, second = unpacked(indexed(), 0, ((0, 90), (3, 93), (4, 94), (7, 97)))
    assert (first.replaced, second.replaced) == ({0: 90, 3: 93}, {0: 94, 3: 97})
    assert (first.indices[[0, 3]].tolist(), second.indices[[0, 3]].tolist()) == ([90, 93], [94, 97])


def test_a_loader_that_fetches_rows_at_once_has_one_task_more() -> None:
    plan = indexed()
    assert [replace(plan, rows_at_once=rows).tasks_in_flight for rows in (1, 2, 64)] == [2, 3, 3]
    assert plan.tasks_in_flight == 2


def test_a_sample_of_a_mix_has_the_epoch_of_its_own_source_wherever_it_is_named() -> None:
    order = MixedOrder([3, 97], [1, 1], shuffle=False, seed=0)
    plan = indexed(batches_per_task=1)
    plan = replace(plan, supply=order)
    (batch,) = unpacked(plan, 3)
    assert batch.epoch == 0
    assert batch.indices.tolist() == [0, 9, 1, 10]
    assert batch.epochs.tolist() == [2, 0, 2, 0]
    schedule = plan.schedule()
    assert [schedule.open(1) for _ in range(4)] == [1] * 4
    assert [schedule.sample_in(3, row, -1)[:2] for row in range(4)] == [(2, 0), (0, 9), (2, 1), (0, 10)]


def test_a_streams_batch_has_as_many_rows_as_were_there() -> None:
    plan = replace(stream(), first_number=30)
    (batch,) = plan.unpack(Announce(3, 0, (), (Run(0, 3, 1, 8, shard=1),), ((1, 6),)), rows())
    assert (batch.number, batch.epoch, batch.position, batch.rows, batch.end, batch.sequence) == (
        33,
        1,
        8,
        3,
        (1, 6),
        3,
    )
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
    plan = replace(stream(2, world_size=3, rank=1), supply=StreamSupply(2, 6, any_number=True))
    assert plan.resumed(plan.begin().state()).supply == plan.supply
    other = plan.resumed({**plan.begin().state(), "shards": 5}).supply
    assert other == StreamSupply(5, 6, any_number=True)


def test_a_loop_over_a_stream_that_was_left_is_followed_by_whole_epochs() -> None:
    plan = stream(last_batch="wrap", epochs=2)
    position = plan.begin()
    for batch in of_stream(plan, [Run(0, 4, 0, 0), Run(0, 3, 0, 0, shard=1)]):
        position = position.after(batch)
    following = position.plan_from(2).begin().state()
    assert [following[name] for name in ("epoch", "position", "batches")] == [2, 0, 2]


def test_a_state_says_where_the_next_batch_stands() -> None:
    state = after(indexed(), [*unpacked(indexed(), 0), *unpacked(indexed(), 2), *unpacked(indexed(), 3)])
    assert state == {
        "version": 3,
        "batches": 5,
        "position": 18,
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
    assert schedule.open(1)
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
    plan = replace(indexed(), supply=order)
    state = plan.begin().state()
    assert plan.resumed(state).begin().state() == state
    for other in others:
        with pytest.raises(ParameterError):
            replace(indexed(), supply=other).resumed(state)


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


# ---- conversion


@pytest.mark.parametrize(
    ("postprocesses", "remote", "by_loaders"), [(False, None, 1), (True, None, 0), (False, RemoteLoaders(1), 0)]
)
def test_loaders_convert_what_no_hook_sees_before_and_no_network_carries(
    postprocesses: bool, remote: RemoteLoaders | None, by_loaders: int
) -> None:
    plan = replace(indexed(remote_loaders=remote), postprocesses=postprocesses)
    assert len(plan.converted({"data": Conversion()}).conversions) == by_loaders


# ---- sizes


@pytest.mark.parametrize(
    ("prefetch", "batches_per_task", "loans", "slots"),
    [
        (1, 1, 0, 1),
        (4, 1, 0, 4),
        (5, 2, 0, 5),
        (4, 1, 1, 5),
        ("auto", 1, 0, 5),
        ("auto", 16, 0, 80),
    ],
)
def test_the_ring_has_slots_for_what_may_be_made_ahead_and_what_is_lent(
    prefetch: int | str, batches_per_task: int, loans: int, slots: int
) -> None:
    plan = indexed(batches_per_task, prefetch_batches=prefetch)
    plan = replace(plan, loans=loans) if loans else plan
    assert plan.slots == slots
    assert plan.layout.rows == 4


def test_small_batches_share_a_task_but_not_those_of_a_streams_shards() -> None:
    assert [replace(plan, seconds_per_row=1e-6).sized().batches_per_task for plan in (indexed(1), stream())] == [64, 1]


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
