"""Several pipelines in one process, pipelines that are closed and made anew, and starts that fail: nothing is left."""

from __future__ import annotations

import gc
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, Self

import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Hooks
from blobfeed.workers.assembly import Death, Evidence, Ledger
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.plan import Batch
from blobfeed.workers.processes import Assembler, LoaderPool
from blobfeed.workers.transport import Activity, LoaderStarted, LoaderState, StatusBoard, links

from blobfeed import AssemblerDied, InterpreterError, LoaderDied, PipelineClosed, SocketPathError
from tests.support.leftovers import Belongings, descriptors, opened_since
from tests.support.part import some_of
from tests.support.pipelines import (
    Fault,
    NoHome,
    Numbered,
    Place,
    Promise,
    Trap,
    deliver,
    deliver_all,
    first_of_all,
    parameters,
    trapped_pipeline,
)
from tests.support.schedules import schedule_of
from tests.support.waiting import DEADLINE_S, wait_until, wait_until_none

SMALL = 12
"""Items of a sample so small that batches share tasks."""


@dataclass(frozen=True)
class Held:
    """What this process has at one moment."""

    descriptors: dict[int, str]
    threads: frozenset[str]
    belongings: Belongings

    @classmethod
    def now(cls) -> Self:
        threads = frozenset(entry.name for entry in Path("/proc/self/task").iterdir())
        return cls(descriptors(), threads, Belongings.now(Path(tempfile.gettempdir())))

    def grown(self) -> list[str]:
        """What has come since, in words."""
        now = Held.now()
        threads = [f"thread {number}" for number in now.threads - self.threads]
        return opened_since(self.descriptors) + threads + now.belongings.added_since(self.belongings)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Around what must leave no descriptor, thread, process, directory or shared memory."""
    before = Held.now()
    yield
    gc.collect()
    assert wait_until_none(before.grown, DEADLINE_S) == []


def memory_kib() -> int:
    """What this process has of its own and shared, in RAM: a ring that is still mapped would be part of it."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


# ---- several in one process


def test_closing_one_pipeline_leaves_the_other_alone() -> None:
    with trapped_pipeline(items=SMALL, epochs=4) as staying:
        delivering = deliver(staying)
        delivered = [next(delivering)]
        for _ in range(3):
            with nothing_left(), trapped_pipeline(items=SMALL, seed=9) as leaving:
                delivered.append(next(delivering))
                next(deliver(leaving))
        delivered += delivering
        assert staying.statistics().loader_deaths == 0
    assert delivered == Promise(parameters(epochs=4), items=SMALL).batches()


# ---- again and again


RING_KIB = 10_000
"""A little less than the ring that each of those pipelines has: one that is not given back is seen."""


def test_restarts_leave_nothing() -> None:
    promised = Promise(parameters(epochs=1)).batches()[:3]
    grown = []
    with nothing_left():
        for _ in range(5):
            with trapped_pipeline(epochs=1) as pipeline:
                assert list(itertools.islice(deliver(pipeline), 3)) == promised
            grown.append(memory_kib())
    assert grown[-1] - grown[2] < RING_KIB


# ---- closing


USES: dict[str, Callable[[Pipeline], object]] = {
    "start": Pipeline.start,
    "peek": Pipeline.peek,
    "take": Pipeline.take,
    "load_state_dict": lambda pipeline: pipeline.load_state_dict(pipeline.state_dict()),
}


def _wait_for_a_batch(pipeline: Pipeline) -> None:
    pipeline.start()
    wait_until(pipeline.is_ready, "a batch is ready")


STAGES: dict[str, Callable[[Pipeline], Batch | None]] = {
    "never started": lambda _: None,
    "just started": Pipeline.start,
    "with a batch that nobody took": _wait_for_a_batch,
    "with a batch that is held": Pipeline.take,
}


@pytest.mark.parametrize("stage", some_of(STAGES, 3))
def test_a_pipeline_may_be_closed_at_any_stage_and_twice_and_says_so_of_each_use(stage: str) -> None:
    with nothing_left():
        pipeline = trapped_pipeline(items=SMALL)
        held = STAGES[stage](pipeline)
        rows = None if held is None else np.asarray(held.tops["data"])
        before = None if rows is None else rows.copy()
        pipeline.close()
        counted = pipeline.statistics()
        pipeline.close()
        assert pipeline.statistics() == counted
        assert counted.batches == (held is not None)
        assert pipeline.activities() == []
        uses = list(USES.values())
        if held is not None:
            uses.append(partial(Pipeline.release, batch=held))
        for use in uses:
            with pytest.raises(PipelineClosed):
                use(pipeline)
        if rows is not None:
            np.testing.assert_array_equal(rows, before)  # what is still held stays readable
        del held, rows, use, uses


# ---- interrupted


def test_an_assembler_whose_start_is_interrupted_before_anybody_holds_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def interrupted(*command: Any, **options: Any) -> NoReturn:
        started.append(start(*command, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with nothing_left(), small() as pipeline:
        with pytest.raises(KeyboardInterrupt):
            pipeline.start()
        started[0].wait(DEADLINE_S)
        monkeypatch.undo()
        assert delivers(pipeline)


@pytest.mark.parametrize(
    ("module", "step"),
    [(subprocess, "Popen"), (links, "open_socket"), (os, "posix_fallocate"), (StatusBoard, "describe")],
)
def test_ctrl_c_waits_until_a_process_or_a_socket_or_memory_is_in_somebodys_hands(
    module: ModuleType | type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(module, step)

    def interrupted(*values: Any, **options: Any) -> object:
        made = original(*values, **options)
        signal.raise_signal(signal.SIGINT)
        return made

    pipeline = small()
    monkeypatch.setattr(module, step, interrupted)
    with nothing_left():
        with pytest.raises(KeyboardInterrupt):
            pipeline.start()
        monkeypatch.undo()
        assert delivers(pipeline)
        pipeline.close()


# ---- starts that fail


class Unlucky(Numbered):
    """Its loader is killed at a late sample, once; those that start after it, or only the next one, lack memory."""

    def __init__(self, folder: Path, always: bool) -> None:
        victim = Promise(parameters()).sample_at(30)
        super().__init__(trap=Trap(Fault.KILLED, Place.READ, frozenset({victim}), folder / "killed"))
        self._folder, self._always = folder, always

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if os.environ.get("BLOBFEED_ROLE") != "loader" or not (self._folder / "killed").exists():
            return
        if first_of_all(self._folder / "failed") or self._always:
            raise MemoryError


def test_a_loader_that_cannot_start_in_place_of_a_dead_one_is_tried_again(tmp_path: Path) -> None:
    given = parameters(num_loaders=1)
    with open_pipeline(given, source=Unlucky(tmp_path, always=False)) as pipeline:
        assert list(deliver(pipeline)) == Promise(given).batches()
        assert pipeline.statistics().loader_deaths == 2


def test_if_no_loader_can_start_in_place_of_a_dead_one_the_run_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_pipeline(parameters(num_loaders=1), source=Unlucky(tmp_path, always=True)) as pipeline:
        with pytest.raises(LoaderDied):
            list(deliver(pipeline))
        # The loader was killed in the eighth batch; its report of the seventh may have died with it.
        assert pipeline.statistics().batches in (6, 7)
    assert "could not start: MemoryError" in caplog.text


def small() -> Pipeline:
    return trapped_pipeline(items=SMALL)


def delivers(pipeline: Pipeline) -> bool:
    return deliver_all(pipeline) == Promise(parameters(), items=SMALL).batches()


def _no_interpreter(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("BLOBFEED_PYTHON", "/nowhere/python")


def _no_short_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(links, "_MAX_PATH", 20)


def _no_folder(patch: pytest.MonkeyPatch) -> None:
    """The assembler waits for a directory that cannot be made."""
    patch.setattr(links, "choose_socket_directory", lambda: Path("/nowhere/blobfeed-x"))


@pytest.mark.parametrize(
    ("breaks", "error"),
    [
        (_no_interpreter, InterpreterError),
        (_no_short_path, SocketPathError),
        (_no_folder, SocketPathError),
    ],
)
def test_a_start_that_fails_leaves_nothing_and_fails_again_until_its_reason_is_gone(
    breaks: Callable[[pytest.MonkeyPatch], None], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = small()
    breaks(monkeypatch)
    for _ in range(2):
        with nothing_left(), pytest.raises(error):
            pipeline.peek()
    monkeypatch.undo()
    assert delivers(pipeline)


def test_an_interpreter_that_cannot_run_the_assembler_is_an_error_that_says_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    liar = tmp_path / "python"
    liar.write_text(f'#!/bin/sh\ncase "$*" in *version_info*) echo {version};; *) exit 3;; esac\n')
    liar.chmod(0o700)
    monkeypatch.setenv("BLOBFEED_PYTHON", str(liar))
    with nothing_left(), small() as pipeline, pytest.raises(AssemblerDied, match=r"\b3\b"):
        pipeline.peek()


@pytest.mark.slow
def test_hundreds_of_loaders_start_and_end() -> None:
    loaders = 600  # from 557 on, the assembler and the nursery once waited for each other, both in send
    given = parameters(batch_size=2, num_loaders=loaders, epochs=None)
    with open_pipeline(given, Hooks(), source=Numbered(SMALL, 4)) as pipeline:
        pipeline.release(pipeline.take())
        wait_until(lambda: pipeline.statistics().loaders == loaders, f"{loaders} loaders", 120)
        pipeline.release(pipeline.take())
        assert pipeline.statistics().loader_deaths == 0


def test_the_pause_before_the_next_of_hundreds_of_loaders_grows_to_a_second_and_no_further() -> None:
    board = StatusBoard.create(1)
    pool = LoaderPool(NoHome(), board, wanted=600, lines=[], numbers=itertools.count(1), start_timeout_s=60.0)
    state = LoaderState(9, 1, Activity.WAITING, 0, -1, 0.0)
    death = Death(
        1, state, "the bridge has ended", was_ready=True, dismissed=False, evidence=Evidence.KILLED_FROM_OUTSIDE
    )
    pauses = []
    for _ in range(1200):
        pool.count(death, was_idle=False, tasks_done=0, now=0.0)
        pauses.append(pool.tend(-1.0))
    assert pauses[:8] == [0, 0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert pauses[-1] == 1.0
    board.close()


def test_a_loader_that_never_starts_ends_no_run_in_which_others_work() -> None:
    board = StatusBoard.create(1)
    pool = LoaderPool(NoHome(), board, wanted=4, lines=[], numbers=itertools.count(1), start_timeout_s=60.0)
    state = LoaderState(9, 1, Activity.STARTING, 0, -1, 0.0)
    death = Death(1, state, "exit code 1", was_ready=False, dismissed=False, evidence=Evidence.CRASHED)

    def die(done: Iterable[int]) -> None:
        for tasks_done in done:
            pool.count(death, was_idle=False, tasks_done=tasks_done, now=0.0)

    die(range(40))
    with pytest.raises(LoaderDied):
        die(itertools.repeat(40, 40))
    board.close()


def test_the_assembler_does_not_spin_while_a_loader_that_it_has_killed_does_not_die() -> None:
    board = StatusBoard.create(1)
    pool = LoaderPool(NoHome(), board, wanted=1, lines=[0], numbers=itertools.count(1), start_timeout_s=60.0)
    pool.tend(0.0)
    pool.handle_event(LoaderStarted(1), 0.0)
    assert pool.note_ready(1)
    assert not pool.note_ready(1), "a repeated message"
    ledger = Ledger(schedule_of(4), slots=1)
    ledger.add_loader(1)
    ledger.open()
    assert list(ledger.assign(0.0))
    assembly = SimpleNamespace(ledger=ledger, schedule=SimpleNamespace(can_be_cut=True), last=None)
    plan = SimpleNamespace(parameters=SimpleNamespace(task_timeout_s=5.0))
    at: Any = SimpleNamespace(_assembly=assembly, _plan=plan, _pools_due=math.inf)
    at._clock = SimpleNamespace(now=6.0, time_of=lambda moment: moment)
    at._pool_of = lambda _loader: pool
    assert Assembler._timeout_ms(at) == 1
    Assembler._kill_overdue(at)
    assert Assembler._timeout_ms(at) > 400
    board.close()
