"""What somebody watching is told."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from blobfeed.trainer.solving import Meter, Output, Reporter, Solver, asked_by_signals, fix_threads
from hypothesis import given
from hypothesis import strategies as st

from blobfeed.training_display import Bar, make_reporter
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


@given(st.lists(st.tuples(st.floats(0.01, 10), st.integers(0, 1000), st.floats(0, 1)), min_size=1, max_size=10))
def test_a_meter_measures_between_two_readings(steps: list[tuple[float, int, float]]) -> None:
    meter, time_s, samples, stall_s = Meter(100.0), 100.0, 0, 0.0
    for passed, more, share in steps:
        time_s, samples, stall_s = time_s + passed, samples + more, stall_s + share * passed
        speed, stalled = meter.read(time_s, samples, stall_s)
        assert speed == pytest.approx(more / passed, rel=1e-6)
        assert stalled == pytest.approx(share, rel=1e-4, abs=1e-6)


def test_a_loss_that_is_no_number_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "display: 1")
    with Solver.from_file(path) as solver:
        reporter = Reporter(Output())
        for _ in range(3):
            solver.step()
            reporter.stepped(solver)
            for learnt in solver.train_net.learnt():
                learnt.weights.data.fill_(float("nan"))
    said = capsys.readouterr().out
    assert said.count("lower base_lr") == 1
    assert "the loss is nan" in said


def test_lines_tell_loss_speed_and_stall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_project(tmp_path, solver=SMALL_SOLVER + "display: 2")
    (tmp_path / "batches.py").write_text(WITH_STATISTICS)
    with Solver.from_file(path) as solver:
        reporter = Reporter(Output())
        for _ in range(3):
            loss = float(solver.step())
            reporter.stepped(solver)
            if solver.iteration == 2:
                shown = loss
        reporter.close()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"iteration 2/30: loss {shown:.6g}, rate 0.1, ")
    assert "samples/s, stall 4.00 s (" in line


def test_a_terminal_that_draws_nothing_gets_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "dumb")
    with Solver.from_file(write_project(tmp_path, solver=SMALL_SOLVER + "display: 1")) as solver:
        solver.step()
        make_reporter(solver).stepped(solver)
    assert capsys.readouterr().out.startswith("iteration 1/30: loss ")
    assert not terminal.getvalue()


def test_what_is_said_beside_the_bar_goes_where_output_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with Solver.from_file(write_project(tmp_path)) as solver:
        monkeypatch.setattr(sys, "stderr", terminal)
        with contextlib.closing(Bar(solver)) as bar:
            bar.put("snapshot", {"files": "kept in a file [not markup]"})
        assert capsys.readouterr().out == "snapshot: kept in a file [not markup]\n"
        monkeypatch.setattr(sys, "stdout", terminal)
        with contextlib.closing(Bar(solver)) as bar:
            bar.put("snapshot", {"files": "kept on the screen [not markup]"})
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
