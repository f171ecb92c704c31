"""What somebody watching is told."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from blobfeed.trainer.solving import Event, Solver, asked_by_signals, fix_threads, printing

from blobfeed.training_display import bar, watching
from tests.support.trainer_nets import BATCHES, SMALL_SOLVER, write_project

WITH_STATISTICS = (
    BATCHES
    + """
    def statistics(self):
        return Statistics(0.25 * self.at)


class Statistics:
    def __init__(self, stall_s):
        self.stall_s = stall_s
"""
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_loss_that_is_no_number_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Solver.from_file(write_project(tmp_path)) as solver:
        for _ in range(3):
            solver.step()
            solver.loss()
            for learnt in solver.train_net.learnt():
                learnt.weights.data.fill_(float("nan"))
    assert caplog.messages == ["iteration 2: the loss is nan: lower base_lr, or set clip_gradients"]


def test_lines_tell_loss_and_the_speed_and_stall_since_the_line_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "display: 2")
    (tmp_path / "batches.py").write_text(WITH_STATISTICS)
    with Solver.from_file(path) as solver, monkeypatch.context() as patched:
        now = iter((100.0, 110.0, 118.0))
        patched.setattr("blobfeed.trainer.solving.progress.time.monotonic", lambda: next(now))
        watch = printing(solver)
        for _ in range(4):
            loss = float(solver.step())
            watch(Event())
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"iteration 2/30: loss \S+, rate 0.1, 2 samples/s, stall 4.00 s \(40.0% of the time\)", first)
    assert second == f"iteration 4/30: loss {loss:.6g}, rate 0.1, 2 samples/s, stall 4.00 s (50.0% of the time)"


def test_a_terminal_that_draws_nothing_gets_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "dumb")
    path = write_project(tmp_path, solver=SMALL_SOLVER + "display: 1")
    with Solver.from_file(path) as solver, watching(solver) as (watch,):
        solver.step()
        watch(Event())
    assert capsys.readouterr().out.startswith("iteration 1/30: loss ")
    assert not terminal.getvalue()


def test_what_is_said_beside_the_bar_goes_where_output_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with Solver.from_file(write_project(tmp_path)) as solver:
        monkeypatch.setattr(sys, "stderr", terminal)
        with bar(solver) as watch:
            watch(Event("snapshot: kept in a file [not markup]"))
        assert capsys.readouterr().out == "snapshot: kept in a file [not markup]\n"
        monkeypatch.setattr(sys, "stdout", terminal)
        with bar(solver) as watch:
            watch(Event("snapshot: kept on the screen [not markup]"))
    assert "snapshot: kept on the screen [not markup]" in terminal.getvalue()
    assert "kept in a file" not in terminal.getvalue()


def test_one_core_is_left_for_the_loaders_unless_told_otherwise() -> None:
    assert threads_set(None, cores=8) == 7
    assert threads_set(None, cores=1) == 1
    assert threads_set(None, cores=8, granted=2.5) == 2
    assert threads_set(3, cores=8, environment="2") == 3
    assert threads_set(None, cores=8, environment="2") is None


def threads_set(asked: int | None, cores: int, environment: str = "", granted: float | None = None) -> int | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", environment)
        patch.setattr(os, "sched_getaffinity", lambda _: range(cores))
        patch.setattr("blobfeed.workers.plan.plan.processors_granted", lambda: granted)
        patch.setattr(torch, "set_num_threads", (chosen := list[int]()).append)
        fix_threads(asked)
    return chosen[0] if chosen else None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_and_the_second_an_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with asked_by_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before
