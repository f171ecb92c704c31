"""Every wait has an end: what is told of a stall, how soon the assembler's death is seen, that Ctrl-C gets through."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, Hooks
from blobfeed.workers.pipeline import Pipeline, process_feed, what_loaders_do
from blobfeed.workers.plan import Batch
from blobfeed.workers.transport import Activity, LoaderState, Message, links

from blobfeed import AssemblerDied, PipelineClosed, PipelineStalled, Sample, SampleError
from tests.support import leftovers
from tests.support.part import some_of
from tests.support.pipelines import (
    Numbered,
    Promise,
    deliver,
    parameters,
    the_assembler,
)
from tests.support.trainers import trainer
from tests.support.waiting import DEADLINE_S, is_gone, wait_until


def assert_gone_soon(family: list[psutil.Process]) -> None:
    wait_until(lambda: all(is_gone(process.pid) for process in family), "all its processes are gone")


def slow_pipeline(gate: Path, source: Numbered | None = None, **values: float) -> Pipeline:
    """Sample 9 is not made before the file `gate` is there."""

    def decode(sample: Sample, _: np.random.Generator) -> tuple[AnyArray, AnyArray]:
        while sample.index == 9 and os.environ.get("BLOBFEED_ROLE") == "loader" and not gate.exists():
            time.sleep(0.005)
        return sample["data"], sample["label"]

    pipeline = open_pipeline(parameters(shuffle=False, epochs=1, **values), Hooks(decode), source=source or Numbered())
    return started(pipeline)


def started(pipeline: Pipeline) -> Pipeline:
    """Its two loaders have started and made a batch, however long that takes."""
    pipeline.start()
    wait_until(pipeline.is_ready, "the first batch is there")
    wait_until(lambda: len(pipeline.activities()) == 2, "both loaders have started")
    return pipeline


def take(pipeline: Pipeline) -> Batch:
    """However long that takes, which may be more than `timeout_s`."""
    wait_until(pipeline.is_ready, "the next batch is there")
    return pipeline.take()


class Elsewhere(Numbered):
    """Only a loader learns where its samples are: the server that says so does not answer the trainer."""

    def where(self, index: int) -> str:
        while os.environ.get("BLOBFEED_ROLE") != "loader":
            time.sleep(0.01)
        return f"shelf {index}"


# ---- slow loaders


def test_loaders_report_where_samples_are_and_the_trainer_asks_no_source_of_the_users(tmp_path: Path) -> None:
    with slow_pipeline(tmp_path / "gate", Elsewhere(), task_timeout_s=2.0) as pipeline:
        with pytest.raises(SampleError, match=r"sample 9 of epoch 0 \(shelf 9\): 2 loaders died on it"):
            list(deliver(pipeline))
        assert pipeline.statistics().loader_deaths >= 2


def test_a_stall_is_logged_with_what_every_loader_is_doing_and_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_feed, "_STALL_LOG_S", 0.15)
    gate = tmp_path / "gate"

    class OpensTheGate(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "decoding sample 9" in record.getMessage():
                gate.touch()

    handler = OpensTheGate()
    logging.getLogger("blobfeed").addHandler(handler)
    try:
        with slow_pipeline(gate) as pipeline:
            labels = [np.array(pipeline.take().tops["label"]) for _ in range(3)]
            assert np.concatenate(labels).tolist() == list(range(12))
    finally:
        logging.getLogger("blobfeed").removeHandler(handler)
    told = next(text for text in caplog.messages if "decoding sample 9" in text)
    assert "no batch for" in told
    assert told.count("loader ") == 2


def test_of_two_thousand_loaders_those_are_named_that_have_been_busy_the_longest() -> None:
    now = time.monotonic()
    states = [LoaderState(1, number, Activity.WAITING, 0, -1, now - 5000) for number in range(1000)]
    states += [LoaderState(1, number, Activity.DECODING, 1, number, now - number) for number in range(1000, 2000)]
    told = what_loaders_do(states)
    assert told.startswith("loader 1999 (pid 1): decoding sample 1999 for 1999.")
    assert told.endswith("; and the others: 1000 waiting, 984 decoding")
    assert told.count("loader ") == 16


def test_a_wait_that_is_too_long_is_an_error_that_says_the_same_and_the_next_wait_may_succeed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with slow_pipeline(gate, timeout_s=0.7) as pipeline:
        held = [take(pipeline), take(pipeline)]
        wait_until(lambda: "decoding sample 9" in str([*map(str, pipeline.activities())]), "sample 9 is being decoded")
        begun = time.monotonic()
        with pytest.raises(PipelineStalled, match=r"timeout_s=0\.7 .* sample 9 "):
            pipeline.take()
        assert time.monotonic() - begun >= 0.7
        gate.touch()
        third = take(pipeline)
        assert [batch.number for batch in (*held, third)] == [0, 1, 2]
        assert np.array(third.tops["label"]).tolist() == [8, 9, 10, 11]


# ---- the whole job stands still, as under a scheduler that suspends it


GATED = """
def decode(sample, rng):
    while os.environ.get("BLOBFEED_ROLE") == "loader" and sample.index >= 4 and not (HERE / "gate").exists():
        (HERE / f"waits-{os.getpid()}").touch()
        time.sleep(0.01)
    return sample["data"]

source = Numbers(items=1 << 20)  # so large that each batch has a slot of its own, and a loader
with pipeline(decode, source, task_timeout_s=LIMIT_S, timeout_s=LIMIT_S, epochs=1) as feed:
    steps(feed, 1)
    say("the next batch has to wait")
    steps(feed, feed.total_batches - 1)
    say(f"deaths: {feed.statistics().loader_deaths}")
"""


def test_time_for_which_the_whole_job_is_suspended_counts_for_no_deadline(tmp_path: Path) -> None:
    limit_s = 3.0
    with trainer(tmp_path, f"LIMIT_S = {limit_s}\n" + GATED) as run:
        run.expect("the next batch has to wait")
        wait_until(lambda: len(list(tmp_path.glob("waits-*"))) == 2, "both loaders have begun a task")
        family = run.family()
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + limit_s + 1.0
        wait_until(lambda: time.monotonic() > end, "more than both limits has passed")
        for pid in family:
            os.kill(pid, signal.SIGCONT)
        (tmp_path / "gate").touch()
        run.expect("deaths: 0")
        assert run.end() == 0, run.stderr
        assert "died" not in run.stderr


# ---- the assembler stands still


def test_an_assembler_that_stands_still_is_told_of_and_goes_on_where_it_was() -> None:
    given = parameters(timeout_s=0.5)
    with started(open_pipeline(given, source=Numbered())) as pipeline:
        delivered = list(islice(deliver(pipeline), 1))
        assembler = the_assembler()
        assembler.suspend()
        wait_until(lambda: assembler.status() == psutil.STATUS_STOPPED, "it is stopped")
        with pytest.raises(PipelineStalled, match=rf"\bpid {assembler.pid}\b"):
            delivered.extend(deliver(pipeline))
        assembler.resume()
        while len(delivered) < (pipeline.total_batches or 0):
            wait_until(pipeline.is_ready, "the next batch is there")
            delivered.extend(islice(deliver(pipeline), 1))
        assert delivered == Promise(given).batches()


def test_a_pipeline_whose_assembler_stands_still_closes() -> None:
    with open_pipeline(parameters(), source=Numbered()) as pipeline:
        pipeline.take()
        assembler = the_assembler()
        family = [assembler, *assembler.children(recursive=True)]
        assembler.suspend()
        wait_until(lambda: assembler.status() == psutil.STATUS_STOPPED, "it is stopped")
    assert_gone_soon(family)


# ---- another thread closes


def test_an_error_in_the_statistics_leaves_no_process_and_no_memory_when_the_pipeline_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = started(open_pipeline(parameters(), source=Numbered()))
    assembler = the_assembler()
    family = [assembler, *assembler.children(recursive=True)]
    gone_first: list[bool] = []

    def statistics(*_: object) -> None:
        gone_first.extend(is_gone(process.pid) for process in family)
        raise RuntimeError("counted wrong")

    monkeypatch.setattr(process_feed, "counts_on", statistics)
    with pytest.raises(RuntimeError, match="counted wrong"):
        pipeline.close()
    assert gone_first == [True] * len(family)
    assert not [target for target in leftovers.descriptors().values() if target.startswith("/memfd:blobfeed")]


def test_who_waits_while_another_thread_closes_is_told_that_it_is_closed(tmp_path: Path) -> None:
    with slow_pipeline(tmp_path / "gate") as pipeline, ThreadPoolExecutor(1) as waiter:
        held, stalls = [take(pipeline), take(pipeline)], pipeline.statistics().stalls
        waiting = waiter.submit(pipeline.take)
        wait_until(lambda: pipeline.statistics().stalls > stalls, "the thread waits for sample 9")
        pipeline.close()
        with pytest.raises(PipelineClosed):
            waiting.result(DEADLINE_S)
        del held


# ---- the assembler dies


@pytest.mark.parametrize("number", some_of([signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT], 3))
def test_the_death_of_the_assembler_is_seen_and_named(number: signal.Signals, tmp_path: Path) -> None:
    with slow_pipeline(tmp_path / "gate") as pipeline:
        held = [pipeline.take(), pipeline.take()]
        assembler = the_assembler()
        family = assembler.children(recursive=True)
        assembler.send_signal(number)
        with pytest.raises(AssemblerDied, match=number.name):
            pipeline.take()
        with pytest.raises(AssemblerDied, match=number.name):
            pipeline.peek()
        assert_gone_soon(family)
        assert np.array(held[1].tops["label"]).tolist() == [4, 5, 6, 7]
        for batch in held:
            pipeline.release(batch)


def test_a_batch_can_be_released_though_the_assembler_has_died_and_nobody_knows(tmp_path: Path) -> None:
    with slow_pipeline(tmp_path / "gate") as pipeline:
        batch = pipeline.take()
        assembler = the_assembler()
        assembler.kill()
        wait_until(lambda: not psutil.pid_exists(assembler.pid), "it is dead")
        pipeline.release(batch)


def test_the_death_of_the_assembler_while_it_starts_is_seen() -> None:
    with open_pipeline(parameters(), source=Numbered()) as pipeline:
        pipeline.start()
        the_assembler().kill()
        with pytest.raises(AssemblerDied):
            pipeline.peek()


# ---- Ctrl-C


def test_ctrl_c_gets_through_to_who_waits_and_no_batch_is_lost(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with slow_pipeline(gate) as pipeline:
        taken = [pipeline.take(), pipeline.take()]
        for _ in range(3):
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may come before `take` is called
                timer.start()
                pipeline.take()
            timer.join()
        gate.touch()
        for batch in taken:
            pipeline.release(batch)
        rest = [pipeline.take() for _ in range(3)]
        assert [batch.number for batch in rest] == [2, 3, 4]


def test_who_presses_ctrl_c_again_while_it_ends_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = started(open_pipeline(parameters(), source=Numbered()))
    assembler = the_assembler()
    family = [assembler, *assembler.children(recursive=True)]
    frame_of = links.frame_of

    def interrupted(message: Message) -> bytes:
        os.kill(os.getpid(), signal.SIGINT)
        return frame_of(message)

    monkeypatch.setattr(links, "frame_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.close()
    assert_gone_soon(family)
