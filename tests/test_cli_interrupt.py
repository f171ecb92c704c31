"""Ctrl-C in a real process: it stops after the iteration, saves, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.trainer.solving import Solver
from blobfeed.trainer.solving import snapshot as snapshots

from .support.part import some_of
from .support.programs import read_until, started
from .support.trainer_nets import BATCHES, SMALL_NET, SMALL_SOLVER, write_project
from .test_cli import OURS

LONG = SMALL_SOLVER.replace("max_iter: 30", "max_iter: 1000000") + "display: 1"
PATIENCE_S = 60.0


def training(solver: Path, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """`blobfeed train`, as a terminal starts it: what it says goes to one place."""
    command = [sys.executable, "-P", "-m", "blobfeed", "train", "--solver", str(solver), *more]
    return started(command, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"})


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("net", some_of([OURS, SMALL_NET], 2), ids=["MultiProcessInputLayer", "a layer of one's own"])
def test_a_hangup_saves_and_ctrl_c_stops_after_the_iteration_saves_and_leaves_no_process(
    tmp_path: Path, net: str
) -> None:
    path = write_project(tmp_path, net=net, solver=LONG)
    with training(path) as process:
        read_until(process, "iteration 3/")
        process.send_signal(signal.SIGHUP)
        assert "_iter_" in read_until(process, "snapshot: ")
        read_until(process, "iteration ")
        descendants = psutil.Process(process.pid).children(recursive=True)
        press_ctrl_c(process)
        said, _ = process.communicate(timeout=PATIENCE_S)  # nobody has its pipe any more
        assert process.returncode == 0
        assert bool(descendants) == (net is OURS)
        _, alive = psutil.wait_procs(descendants, timeout=PATIENCE_S)
        assert not alive
    assert "stopping after this iteration" in said
    _, saved = sorted(tmp_path.glob("*.pt"), key=lambda path: snapshots.load(path).iteration)
    stopped = snapshots.load(saved).iteration
    assert saved.name == f"solver_iter_{stopped}.pt"
    assert f"stopped after iteration {stopped}, as asked\n" in said
    assert f"snapshot: {saved}\n" in said
    if net is OURS:
        with Solver.from_file(path, device="cpu") as solver:
            solver.restore(saved)
            solver.step()
            assert solver.iteration == stopped + 1


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    path = write_project(tmp_path, solver=LONG)
    pause = "import time; print('hanging', flush=True); time.sleep(600)"
    hanging = BATCHES.replace("        rows =", f"        {pause}\n        rows =")
    (tmp_path / "batches.py").write_text(hanging)
    with training(path) as process:
        read_until(process, "hanging")
        press_ctrl_c(process)
        read_until(process, "stopping after this iteration")
        assert process.poll() is None
        press_ctrl_c(process)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert "blobfeed: interrupted\n" in said
    assert not list(tmp_path.glob("*.pt"))


def test_ctrl_c_at_the_end_of_python_says_nothing() -> None:
    code = """
import atexit, os, signal, sys
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
from blobfeed.cli import main
sys.argv = ["blobfeed", "--version"]
main()
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("blobfeed ")
    assert done.stderr == ""


@pytest.mark.slow
def test_signals_have_the_effects_that_are_asked_for(tmp_path: Path) -> None:
    effects = ("--sigint_effect", "snapshot", "--sighup_effect=none")
    with training(write_project(tmp_path, solver=LONG), *effects) as process:
        read_until(process, "iteration 3/")
        process.send_signal(signal.SIGHUP)
        press_ctrl_c(process)
        assert "_iter_" in read_until(process, "snapshot: ")
        read_until(process, "iteration ")
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert len(list(tmp_path.glob("*.pt"))) == 2
