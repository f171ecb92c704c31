"""The pipeline as a whole, with real processes: what it promises is what it delivers, and bad samples are told."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.watching.reading import Reading
from blobfeed.workers.api import AnyArray, Hooks, IndexArray
from blobfeed.workers.pipeline import Pipeline, ProcessFeed
from blobfeed.workers.transport import Activity, Announce, Count

from blobfeed import Sample, SampleError
from blobfeed.monitor import read_pipelines
from tests.support.part import some_of
from tests.support.pipelines import (
    LARGE,
    SAMPLES,
    Delivered,
    Fault,
    Harm,
    Numbered,
    Place,
    Promise,
    Trap,
    deliver,
    deliver_all,
    parameters,
    trapped_pipeline,
)
from tests.support.waiting import wait_until

SMALL = 8


def boards_of_this_process() -> list[Reading]:
    """Find and read the boards as `blobfeed monitor` does."""
    return [reading for _, reading, pids in read_pipelines() if os.getpid() in pids]


# ---- what is promised


def test_a_default_timeout_of_the_programs_sockets_is_none_of_ours() -> None:
    given = parameters(num_loaders=1)
    socket.setdefaulttimeout(0.2)
    try:
        assert deliver_all(open_pipeline(given, source=Numbered())) == Promise(given).batches()
    finally:
        socket.setdefaulttimeout(None)


class PatchedSocket(socket.socket):
    """As gevent patches it: what has not arrived is waited for, whatever the flags say, unless the timeout is 0."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        try:
            return super().recv(size, flags)
        except BlockingIOError:
            assert self.gettimeout() == 0, "such a look would block"
            raise


def test_sockets_that_gevent_has_patched_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", PatchedSocket)
    given = parameters(num_loaders=1)
    assert deliver_all(open_pipeline(given, source=Numbered())) == Promise(given).batches()


@pytest.mark.parametrize(
    ("num_loaders", "items"),
    some_of([(2, SMALL), (1, SMALL), (1, LARGE), ("auto", LARGE), (5, SMALL), (5, LARGE)], 3),
)
def test_what_is_delivered_does_not_depend_on_the_number_of_loaders(num_loaders: int | str, items: int) -> None:
    given = parameters(num_loaders=num_loaders)
    assert deliver_all(open_pipeline(given, source=Numbered(items=items))) == Promise(given, items=items).batches()


def test_a_peek_takes_nothing() -> None:
    with open_pipeline(parameters(), source=Numbered(items=SMALL)) as pipeline:
        first = pipeline.peek()
        assert pipeline.peek() is first
        assert pipeline.take() is first
        assert pipeline.peek().number == 1
        assert pipeline.statistics().batches == 1


def test_looking_ahead_counts_as_no_batch_taken_and_leaves_the_state_where_it_is() -> None:
    with open_pipeline(parameters(), source=Numbered(items=SMALL)) as pipeline:
        pipeline.look_ahead()  # nothing has been started yet, and is not by this
        assert pipeline.statistics().batches == 0
        pipeline.release(pipeline.take())
        state = pipeline.state_dict()
        wait_until(pipeline.is_ready, "the next batch is there")
        pipeline.look_ahead()
        assert pipeline.state_dict() == state
        assert (pipeline.take().number, pipeline.statistics().batches) == (1, 2)


def test_an_error_that_is_met_by_looking_ahead_waits_until_its_batch_is_asked_for() -> None:
    given = parameters(shuffle=False)
    trap = Trap(Fault.EXCEPTION, Place.READ, frozenset({Promise(given).sample_at(given.batch_size)}))
    with trapped_pipeline(trap, shuffle=False) as pipeline:
        pipeline.release(pipeline.take())
        wait_until(pipeline.is_ready, "the error is there")
        pipeline.look_ahead()
        with pytest.raises(SampleError):
            pipeline.take()


def test_an_error_that_came_together_with_batches_waits_until_they_are_taken() -> None:
    given = parameters(shuffle=False)
    trap = Trap(Fault.EXCEPTION, Place.READ, frozenset({Promise(given).sample_at(3 * given.batch_size)}))
    with trapped_pipeline(trap, shuffle=False) as pipeline:
        pipeline.release(pipeline.take())
        wait_until(lambda: pipeline.statistics().tasks >= 4, "the error is there")
        assert [pipeline.take().number for _ in range(2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(SampleError):
                pipeline.take()


def test_an_announcement_that_comes_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    received = ProcessFeed._received

    def twice(feed: ProcessFeed, wanted: int) -> Iterator[Announce]:
        return itertools.chain.from_iterable((each, each) for each in received(feed, wanted))

    monkeypatch.setattr(ProcessFeed, "_received", twice)
    given = parameters()
    assert deliver_all(open_pipeline(given, source=Numbered(items=SMALL))) == Promise(given, items=SMALL).batches()


# ---- wrong use


def test_a_batch_is_released_once_and_to_its_own_pipeline() -> None:
    with (
        open_pipeline(parameters(), source=Numbered()) as pipeline,
        open_pipeline(parameters(), source=Numbered()) as another,
    ):
        batch = pipeline.take()
        with pytest.raises(ValueError, match=f"batch {batch.number} "):
            another.release(batch)
        pipeline.release(batch)
        with pytest.raises(ValueError, match=f"batch {batch.number} "):
            pipeline.release(batch)


# ---- what is counted


def slow_pipeline(num_loaders: int) -> Pipeline:
    def slow(sample: Sample, _: np.random.Generator) -> tuple[AnyArray, AnyArray]:
        time.sleep(0.005)
        return sample["data"], sample["label"]

    return open_pipeline(parameters(num_loaders=num_loaders, epochs=None), Hooks(decode=slow), source=Numbered())


def take_until_one_more_stall(pipeline: Pipeline) -> None:
    def has_stalled(stalls: int) -> bool:
        pipeline.release(pipeline.take())
        return pipeline.statistics().stalls > stalls

    wait_until(partial(has_stalled, pipeline.statistics().stalls), "a batch that the trainer has to wait for")


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_the_wait_for_the_first_batch_is_counted_by_itself_too(num_loaders: int) -> None:
    with slow_pipeline(num_loaders) as pipeline:
        assert pipeline.statistics().start_s == 0
        pipeline.release(pipeline.take())
        first = pipeline.statistics()
        assert first.start_s == first.stall_s > 0
        take_until_one_more_stall(pipeline)
        last = pipeline.statistics()
    assert last.stall_s > last.start_s == first.start_s


def test_where_nobody_waits_for_the_first_batch_a_later_wait_is_not_counted_as_that() -> None:
    with slow_pipeline(1) as pipeline:
        pipeline.start()
        wait_until(pipeline.is_ready, "the first batch is there")
        pipeline.release(pipeline.take())
        take_until_one_more_stall(pipeline)
        counted, (board,) = pipeline.statistics(), boards_of_this_process()
        assert board.header.counts[Count.FIRST_BATCH_NS]
        assert board.header.counts[Count.START_NS] == 0
    assert counted.stall_s > counted.start_s == 0


# ---- bad samples


def test_what_fails_once_in_a_task_of_one_row_is_tried_again(tmp_path: Path) -> None:
    trap = Trap(Fault.EXCEPTION, Place.DECODE, frozenset({7}), tmp_path / "struck")
    with trapped_pipeline(trap, batch_size=1, epochs=1) as pipeline:
        assert sorted(batch.indices[0] for batch in deliver(pipeline)) == list(range(SAMPLES))
    assert (tmp_path / "struck").exists()


@pytest.mark.parametrize("on_error", some_of(["replace", "raise"], 2))
def test_any_text_can_be_in_an_exception(on_error: str) -> None:
    def decode(sample: Sample, _: np.random.Generator) -> AnyArray:
        if sample.index == 9:
            raise ValueError("no Unicode: \udcff\udc80, lines:\n, and " + "endless " * 100_000)
        return sample["label"]

    given = parameters(tops=("label",), on_error=on_error, epochs=1)
    with open_pipeline(given, Hooks(decode=decode), source=Numbered(items=SMALL)) as pipeline:
        if on_error == "replace":
            assert len(list(deliver(pipeline))) == pipeline.total_batches
            return
        with pytest.raises(SampleError) as caught:
            list(deliver(pipeline))
    assert len(str(caught.value)) < 1000


class Awkward(Numbered):
    """Cannot say where its samples are, and fails when told of them ahead."""

    def where(self, index: int) -> str:
        raise LookupError(f"no place for {index}")

    def will_need(self, indices: IndexArray) -> None:
        raise OSError("the disk does not listen")


def test_a_source_that_cannot_say_where_a_sample_is_does_not_hide_what_was_wrong_with_it() -> None:
    trap = Trap(Fault.EXCEPTION, Place.READ, frozenset({11}))
    with (
        open_pipeline(parameters(), source=Awkward(trap=trap)) as pipeline,
        pytest.raises(SampleError, match="no place for 11") as caught,
    ):
        list(deliver(pipeline))
    assert caught.value.index == 11
    assert isinstance(caught.value.__cause__, Harm)
    with open_pipeline(parameters(), source=Awkward()) as pipeline:
        assert list(deliver(pipeline)) == Promise(parameters()).batches()
        assert pipeline.statistics().loader_deaths == 0


class Noting(Numbered):
    """Waits for a network, so that its loader has several tasks; notes the first sample of each one announced."""

    rows_at_once = 4

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self._notes = notes

    def will_need(self, indices: IndexArray) -> None:
        with self._notes.open("a") as file:
            print(indices[0], file=file)


def test_a_task_that_arrives_behind_others_is_announced_once(tmp_path: Path) -> None:
    with open_pipeline(parameters(num_loaders=1, epochs=1), source=Noting(tmp_path / "notes")) as pipeline:
        list(deliver(pipeline))
    announced = (tmp_path / "notes").read_text().split()
    assert sorted(announced) == sorted({*announced})


# ---- whole batches


@dataclass(frozen=True)
class Shift:
    """Adds a thousand to the labels in place, twice as surely as it should if it is run twice; `act` may spoil it."""

    act: Callable[[int], object] = lambda _: None

    def __call__(self, batch: dict[str, AnyArray]) -> None:
        label: Any = batch["label"]
        label += 500
        self.act(int(label[0]) - 500)
        label += 500


def shifted(batches: list[Delivered]) -> list[Delivered]:
    return [
        replace(batch, tops=batch.tops | {"label": (np.array(batch.indices) + 1000).tobytes()}) for batch in batches
    ]


@pytest.mark.parametrize("items", some_of([SMALL, LARGE], 2))
def test_a_loader_that_dies_in_postprocess_does_not_make_it_run_twice(items: int, tmp_path: Path) -> None:
    trap = Trap(Fault.KILLED, Place.READ, frozenset(range(SAMPLES)), tmp_path / "struck")
    given = parameters()
    hooks = Hooks(postprocess=Shift(lambda first: trap.meet(Place.READ, first)))
    with open_pipeline(given, hooks, source=Numbered(items=items)) as pipeline:
        assert list(deliver(pipeline)) == shifted(Promise(given, items=items).batches())
        assert pipeline.statistics().loader_deaths == 1


@pytest.mark.parametrize("items", some_of([SMALL, LARGE], 2))
@pytest.mark.parametrize("fault", [Fault.EXCEPTION, Fault.SEGMENTATION_FAULT])
def test_a_batch_that_postprocess_fails_on_is_named_by_its_first_sample(items: int, fault: Fault) -> None:
    given = parameters()
    victim = Promise(given).sample_at(12)
    trap = Trap(fault, Place.READ, frozenset({victim}))
    hooks = Hooks(postprocess=Shift(lambda first: trap.meet(Place.READ, first)))
    delivered: list[Delivered] = []
    with (
        open_pipeline(given, hooks, source=Numbered(items=items)) as pipeline,
        pytest.raises(SampleError) as caught,
    ):
        delivered.extend(deliver(pipeline))
    if fault is Fault.EXCEPTION:
        assert isinstance(caught.value.__cause__, Harm)
        assert delivered == shifted(Promise(given, items=items).batches())[:3]
        assert caught.value.index == victim
    else:
        assert "SIGSEGV" in str(caught.value)


# ---- deaths that are nobody's fault


def idle_loaders_of(pipeline: Pipeline) -> list[int]:
    return [state.pid for state in pipeline.activities() if state.activity is Activity.WAITING]


def test_loaders_that_are_killed_while_there_is_nothing_to_do_are_replaced_for_ever() -> None:
    with open_pipeline(parameters(), source=Numbered()) as pipeline:
        held = pipeline.take()
        for deaths in range(13):  # eleven in a row would be too many

            def all_are_idle(deaths: int = deaths) -> bool:
                return pipeline.statistics().loader_deaths == deaths and len(idle_loaders_of(pipeline)) == 2

            wait_until(all_are_idle, "all loaders are there and idle")
            os.kill(idle_loaders_of(pipeline)[deaths % 2], signal.SIGKILL)
        first = Delivered.copy_of(held)
        pipeline.release(held)
        rest = [Delivered.copy_of(pipeline.take()) for _ in range(3)]
        assert [first, *rest] == Promise(parameters()).batches()[:4]


@pytest.mark.parametrize(
    ("room", "loans", "slots"), some_of([(7.0, 0, 3), (100.0, 0, 5), (1.0, 0, 2), (14.0, 3, 7), (7.0, 3, 5)], 5)
)
def test_the_default_ring_takes_at_most_half_of_the_memory_or_two_slots_beside_those_lent(
    monkeypatch: pytest.MonkeyPatch, room: float, loans: int, slots: int
) -> None:
    given = parameters(epochs=2)
    with open_pipeline(given, source=Numbered(), loans=loans) as pipeline:
        available = int(room * pipeline.plan.layout.nbytes)
        monkeypatch.setattr("blobfeed.workers.pipeline.process_feed.available_memory", lambda: available)
        delivered = list(deliver(pipeline))
        (board,) = boards_of_this_process()
        assert board.header.slots == slots
    assert delivered == Promise(given).batches()
