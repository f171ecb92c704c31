"""Errors of a run that cannot start or go on: errors.txt has the words of processes, transport and pipeline."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
import zmq
from blobfeed.cluster import Bridge
from blobfeed.readers.opening import open_pipeline, planning
from blobfeed.watching import trace
from blobfeed.workers.api import AnyArray, Hooks, RemoteLoaders
from blobfeed.workers.assembly import Death, Evidence
from blobfeed.workers.base import extras
from blobfeed.workers.pipeline import Pipeline, ProcessFeed
from blobfeed.workers.processes import LoaderPool, interpreter, process
from blobfeed.workers.transport import About, Activity, LoaderState, StatusBoard, TasksLeft, links

from blobfeed import BatchReader, StreamSource
from tests.support.catalogue import Catalogue, Scenario, scenario
from tests.support.pipelines import Fault, Harm, NoHome, Numbered, Place, Trap, parameters, take_for_ever, the_assembler
from tests.support.reader_data import write_hdf5
from tests.support.waiting import wait_until
from tests.workers.pipeline.test_resume import NOW_NS, load, saved

SMALL = 8
DAY_NS = 86_400 * 10**9


def run(hooks: Hooks = Hooks(), trap: Trap | None = None, **values: Any) -> Scenario:  # noqa: B008 - frozen
    """A run to its end with one loader, so that its steps come in one order."""
    source = Numbered(items=SMALL) if trap is None else Numbered(items=SMALL, trap=trap)
    return lambda folder: open_pipeline(
        parameters(**{"num_loaders": 1, **values}), hooks, source=source, base_dir=folder
    )


@scenario
def started(folder: Path, /, then: Callable[[Pipeline], object], **values: Any) -> Any:
    """A pipeline that has given one batch, and holds it."""
    with open_pipeline(parameters(epochs=None, **values), source=Numbered(items=SMALL)) as pipeline:
        pipeline.take()
        then(pipeline)


@scenario
def patched(folder: Path, /, target: Any, name: str, value: Any, then: Callable[[], object]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, value)
        return then()


def raises_from(first: int) -> Hooks:
    def decode(sample: Any, rng: np.random.Generator) -> AnyArray:
        if sample.index >= first and os.environ.get("BLOBFEED_ROLE") == "loader":
            raise Harm(sample.index)
        label: AnyArray = sample["label"]
        return label

    return Hooks(decode=decode)


def _complain(batch: dict[str, AnyArray]) -> None:
    if os.environ.get("BLOBFEED_ROLE") == "loader":
        raise Harm("all")


def _locked(result: Callable[[Any], Any]) -> Any:
    """A hook of the script that cannot be pickled."""
    lock = threading.Lock()

    def hook(first: Any, *_: Any) -> Any:
        with lock:
            return result(first)

    return hook


def _kill_nursery(pipeline: Pipeline) -> None:
    loader = next(state.pid for state in pipeline.activities() if state.pid)
    os.kill(psutil.Process(loader).ppid(), signal.SIGKILL)
    take_for_ever(pipeline)


def _kill_assembler(pipeline: Pipeline) -> None:
    the_assembler().kill()
    take_for_ever(pipeline)


def _close_and_take(pipeline: Pipeline) -> None:
    pipeline.close()
    pipeline.take()


def _take_all(pipeline: Pipeline) -> None:
    held = [pipeline.take()]
    while True:
        held.append(pipeline.take())


def _end_twice(folder: Path) -> Any:
    with open_pipeline(parameters(epochs=1), source=Numbered(items=SMALL)) as pipeline:
        for _ in range(pipeline.total_batches or 0):
            pipeline.release(pipeline.take())
        pipeline.peek()


@scenario
def _many_deaths(folder: Path, /, how: str) -> Any:
    board = StatusBoard.create(1)
    pool = LoaderPool(NoHome(), board, wanted=1, lines=[], numbers=itertools.count(1), start_timeout_s=60.0)
    state = LoaderState(9, 1, Activity.DECODING, 1, 5, time.monotonic())
    death = Death(1, state, how, was_ready=True, dismissed=False, evidence=Evidence.CRASHED)
    try:
        for _ in range(11):
            pool.count(death, was_idle=False, tasks_done=0, now=0.0)
    finally:
        board.close()


# ---- waits and their deadlines


def _hangs_from(first: int, role: str = "loader") -> Hooks:
    def decode(sample: Any, rng: np.random.Generator) -> tuple[AnyArray, AnyArray]:
        while sample.index >= first and os.environ.get("BLOBFEED_ROLE", "") == role:
            time.sleep(0.01)
        return sample["data"], sample["label"]

    return Hooks(decode=decode)


def _stalled(folder: Path) -> Any:
    """A batch is waited for when the only loader is known to be at the next sample."""
    given = parameters(num_loaders=1, timeout_s=0.3, shuffle=False)
    with open_pipeline(given, _hangs_from(4), source=Numbered()) as pipeline:
        pipeline.start()
        wait_until(pipeline.is_ready, "the first batch is there")
        pipeline.release(pipeline.take())
        wait_until(lambda: pipeline.activities()[0].sample == 4, "it hangs")
        pipeline.take()


def _stopped(folder: Path) -> Any:
    """A batch is waited for when the assembler has been stopped, and the only loader has nothing to do."""
    given = parameters(num_loaders=1, prefetch_batches=2, timeout_s=0.3)
    with open_pipeline(given, source=Numbered()) as pipeline:
        pipeline.start()
        held = []
        for _ in range(2):
            wait_until(pipeline.is_ready, "the next batch is there")
            held.append(pipeline.take())
        wait_until(lambda: pipeline.activities()[0].activity == Activity.WAITING, "all slots are full")
        the_assembler().suspend()
        pipeline.release(held[0])
        pipeline.take()


def _closed_by_a_signal(folder: Path) -> Any:
    given = parameters(num_loaders=1, shuffle=False)
    with open_pipeline(given, _hangs_from(4), source=Numbered()) as pipeline:
        pipeline.release(pipeline.take())
        before = pipeline.statistics().stalls

        def closes(*_: object) -> None:
            if pipeline.statistics().stalls > before:
                pipeline.close()
            else:
                signal.setitimer(signal.ITIMER_REAL, 0.01)

        handler = signal.signal(signal.SIGALRM, closes)
        try:
            closes()
            take_for_ever(pipeline)
        finally:
            signal.signal(signal.SIGALRM, handler)


def _closed_while_it_starts(folder: Path) -> Any:
    pipeline = open_pipeline(parameters(), source=Numbered(items=SMALL))
    return patched(ProcessFeed, "map_slots", lambda _: pipeline.close(), pipeline.take)(folder)


WAITS: dict[str, Scenario] = {
    "no batch for long": _stalled,
    "an assembler that is stopped": _stopped,
    "closed while a batch is waited for": _closed_by_a_signal,
    "closed while it starts": _closed_while_it_starts,
    "a hook that hangs in setup": run(_hangs_from(0, role=""), timeout_s=1.0),
}


# ---- streams


def streamed(make: Callable[[int, int], Iterator[int]], hooks: Hooks = Hooks(), **values: Any) -> Scenario:  # noqa: B008
    given = {"num_loaders": 0, "shuffle": False, "on_error": "replace", **values}
    return lambda folder: open_pipeline(parameters(**given), hooks, source=StreamSource(make, shards=1))


def _five(shard: int, shards: int) -> Iterator[int]:
    yield from range(5)


def _five_and_a_cut_line(shard: int, shards: int) -> Iterator[int]:
    yield from range(5)
    raise OSError("the line is cut")


def _refuse_the_last(sample: Any, rng: np.random.Generator) -> AnyArray:
    if sample.index == 4:
        raise Harm(4)
    data: AnyArray = sample["data"]
    return data


def _once() -> Scenario:
    items = iter(range(5))
    return streamed(lambda shard, shards: items)


STREAMS: dict[str, Scenario] = {
    "a stream that is empty the second time": _once(),
    "a stream without a full batch": streamed(_five, last_batch="drop", batch_size=6),
    "a stream's bad sample": streamed(_five, Hooks(_refuse_the_last), tops=("data",), last_batch="partial"),
    "a stream that fails": streamed(_five_and_a_cut_line, last_batch="partial"),
}


# ---- states


@scenario
def changed(folder: Path, /, mix: bool = False, **then: Any) -> Any:
    """A state whose file was written a day later, or is read with other parameters `then`."""
    sources = [write_hdf5(folder / f"{name}.h5", 40) for name in "ab"]
    for name in "ab":
        os.utime(folder / f"{name}.h5", ns=(NOW_NS, NOW_NS))
    given: dict[str, Any] = {"source": None, "mix": sources} if mix else {"source": sources[1]}
    state = saved(**given)
    if not then:
        os.utime(folder / "b.h5", ns=(NOW_NS, NOW_NS + DAY_NS))
    load(state, **given, **then)


# ---- files and places


def _pipe(folder: Path) -> Any:
    os.mkfifo(folder / "pipe")
    return open_pipeline(parameters(metrics="pipe"), source=Numbered(), base_dir=folder)


def _two_traces(folder: Path) -> Any:
    given = parameters(trace=str(folder / "run.json"), epochs=1)
    with open_pipeline(given, source=Numbered()) as one, open_pipeline(given, source=Numbered()) as other:
        one.start()
        other.start()


def _trace_over_link(folder: Path) -> Any:
    (folder / "link").symlink_to(folder / "t")
    trace.TraceFile.create(folder / "link", About(1, 2, 3, "numbers"), 4, 2)


def _no_trace(folder: Path) -> Any:
    (folder / "t").write_text('{"traceEvents": 7}')
    trace.load(folder / "t")


def _no_short_path(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/tmp")
        patch.setattr(links, "_MAX_PATH", 5)
        links.choose_socket_directory()


def _is_there(folder: Path) -> Any:
    (folder / "blobfeed-x").mkdir()
    links.make_socket_directory(folder / "blobfeed-x")


@scenario
def _no_python(folder: Path, /, answer: str | None) -> Any:
    if answer is not None:
        (folder / "python").write_text(f"#!/bin/sh\n{answer}\n")
        (folder / "python").chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOBFEED_PYTHON", str(folder / "python"))
        interpreter.find_interpreter()


def _frozen(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        patch.setattr(sys, "executable", str(folder / "train"))
        interpreter.find_interpreter()


def _four_threads() -> Any:
    start, before = threading.Thread.start, threading.active_count()

    def start_one_of_four(thread: threading.Thread) -> None:
        if threading.active_count() == before + 4:
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_one_of_four)
        try:
            process.require_threads()
        finally:
            assert threading.active_count() == before


RUNS: dict[str, Scenario] = {
    "a sample raises": run(trap=Trap(Fault.EXCEPTION, Place.READ, frozenset({9}))),
    "more bad samples than allowed": run(
        raises_from(9), tops=("label",), shuffle=False, on_error="replace", max_bad_samples=3
    ),
    "all samples are bad": run(raises_from(0), tops=("label",), on_error="replace", shuffle=False),
    "a sample kills its loaders": run(trap=Trap(Fault.KILLED, Place.READ, frozenset({9}))),
    "a sample crashes its loaders": run(trap=Trap(Fault.SEGMENTATION_FAULT, Place.READ, frozenset({9}))),
    "postprocess raises": run(Hooks(postprocess=_complain), shuffle=False),
    "loaders are killed in a row": _many_deaths("killed by SIGKILL"),
    "loaders crash in a row": _many_deaths("exited with code 1"),
    "the nursery dies": started(_kill_nursery),
    "the assembler dies": started(_kill_assembler),
    "all slots are held": started(_take_all, prefetch_batches=2),
    "a closed pipeline": started(_close_and_take),
    "behind the last batch": _end_twice,
    "a rand_skip beyond the epochs": run(rand_skip=1_000_000),
    "a hook that holds a lock": run(Hooks(decode=_locked(lambda sample: sample["data"])), tops=("data",)),
    "a postprocess hook that holds a lock": run(Hooks(postprocess=_locked(lambda _: None))),
    "a sampler that holds a lock": run(sampler=_locked(lambda _: range(40)), shuffle=False),
}
STATES: dict[str, Scenario] = {
    "of another time": changed(),
    "of a mix": changed(mix=True),
    "of other arrays": changed(tops="label"),
}
PLACES: dict[str, Scenario] = {
    "metrics into a pipe": _pipe,
    "metrics in no folder": run(metrics="/nowhere/x.prom"),
    "metrics without loaders": run(metrics="x.prom", num_loaders=0),
    "a trace of two pipelines": _two_traces,
    "a trace over a link": _trace_over_link,
    "no trace": _no_trace,
    "no short path for sockets": _no_short_path,
    "a directory of sockets that is there": _is_there,
}
STARTS: dict[str, Scenario] = {
    "a frozen program": _frozen,
    "a missing Python": _no_python(None),
    "an older Python": _no_python("echo 2.7"),
    "no /proc": patched(process, "_OWN_DESCRIPTORS", Path("/nowhere/fd"), lambda: process.require_descriptors(1)),
    "too few descriptors": patched(
        resource, "getrlimit", lambda _: (500, 500), lambda: process.require_descriptors(99)
    ),
    "too few threads": lambda _: _four_threads(),
    "too few processes": lambda _: process.loaders_that_fit(9, least=9, tasks=TasksLeft(11, 100, Path("/group"))),
    "a ring that is too large": run(batch_size=1 << 36),
}


def _use(pipeline: Pipeline) -> None:
    with pipeline:
        take_for_ever(pipeline)


def _reads(folder: Path) -> Any:
    return BatchReader({"arrays": {"data": np.zeros((4, 2))}}, batch_size=2, remote_loaders={})


def _no_cluster(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        return run(num_loaders=0, remote_loaders=RemoteLoaders())(folder)


def _refused(*_: object, **_options: object) -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _no_bridge(folder: Path) -> Any:
    plan = SimpleNamespace(max_loaders=1, max_remote_loaders=2, parameters=SimpleNamespace(task_timeout_s=60.0))
    config: Any = SimpleNamespace(plan=plan, start=_refused)
    with closing(Bridge(config, zmq.Poller())) as bridge:
        for now in (0.0, 0.5, 1.5):
            bridge.start_if_due(now)


REMOTE: dict[str, Scenario] = {
    "a cluster that is not there": _no_cluster,
    "remote loaders without Ray": patched(extras, "find_spec", lambda _: None, partial(_reads, Path())),
    "too many arrays for a cluster": patched(planning, "_MOST_SENT_BYTES", 10, partial(_reads, Path())),
    "a bridge for which there is no process": _no_bridge,
    "a sampler beside remote loaders alone": run(
        num_loaders=0, remote_loaders=RemoteLoaders(), sampler={"draws": 9}, shuffle=False
    ),
}

ERRORS = Catalogue(
    Path(__file__).with_name("errors.txt"),
    {
        **RUNS,
        **WAITS,
        **STREAMS,
        **{f"a state {name}": scenario for name, scenario in STATES.items()},
        **PLACES,
        **STARTS,
        **REMOTE,
    },
    _use,
)


@pytest.mark.parametrize("name", ERRORS.scenarios)
def test_the_error_is_the_one_in_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    ERRORS.check(name, tmp_path, update=pytestconfig.getoption("--update"))


def test_the_catalogue_has_these_scenarios_and_no_others() -> None:
    ERRORS.check_names()
