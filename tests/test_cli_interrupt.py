"""Ctrl-C in a real process: it stops after the iteration, saves, and leaves nothing running."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.trainer.solving import Solver
from blobfeed.trainer.solving import snapshot as snapshots

from .support.part import some_of
from .support.trainer_nets import BATCHES, SMALL_NET, SMALL_SOLVER, write_project
from .support.waiting import wait_until
from .test_cli import OURS

LONG = SMALL_SOLVER.replace("max_iter: 30", "max_iter: 1000000") + "display: 1"
PATIENCE_S = 60.0


class Command:
    """`blobfeed train` in a process group of its own, as a terminal starts it."""

    def __init__(self, solver: Path, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "blobfeed", "train", "--solver", str(solver), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Iterator[str]) -> None:
        for line in stream:
            self.lines.put(line)

    def wait_for(self, text: str) -> str:
        """The next line with `text` in it."""
        seen: list[str] = []
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and (self.process.poll() is None or not self.lines.empty()):
            try:
                seen.append(self.lines.get(timeout=0.5))
            except queue.Empty:
                continue
            if text in seen[-1]:
                return seen[-1]
        pytest.fail(f"waited for {text!r}, and saw only: {''.join(seen)}")

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code


@contextmanager
def training(solver: Path, *more: str) -> Iterator[Command]:
    command = Command(solver, *more)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            os.killpg(command.process.pid, signal.SIGKILL)
        command.process.wait()
        for stream in (command.process.stdout, command.process.stderr):
            if stream is not None:
                stream.close()


def group(leader: int) -> list[psutil.Process]:
    """The processes of the command's session, the command itself among them."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.parametrize("net", some_of([OURS, SMALL_NET], 2), ids=["MultiProcessInputLayer", "a layer of one's own"])
def test_a_hangup_saves_and_ctrl_c_stops_after_the_iteration_saves_and_leaves_no_process(
    tmp_path: Path, net: str
) -> None:
    path = write_project(tmp_path, net=net, solver=LONG)
    with training(path) as command:
        command.wait_for("iteration 3/")
        command.process.send_signal(signal.SIGHUP)
        assert "_iter_" in command.wait_for("snapshot: ")
        command.wait_for("iteration ")
        descendants = psutil.Process(command.process.pid).children(recursive=True)
        command.press_ctrl_c()
        assert command.end() == 0
        assert bool(descendants) == (net is OURS)
        _, alive = psutil.wait_procs(descendants, timeout=PATIENCE_S)
        assert not alive
        wait_until(lambda: not group(command.process.pid), "all processes of the command are gone")
        said = list(command.lines.queue)
    assert any("stopping after this iteration" in line for line in said)
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
    with training(path) as command:
        command.wait_for("hanging")
        command.press_ctrl_c()
        command.wait_for("stopping after this iteration")
        assert command.process.poll() is None
        command.press_ctrl_c()
        assert command.end() == 130
        assert "blobfeed: interrupted\n" in list(command.lines.queue)
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
    with training(write_project(tmp_path, solver=LONG), *effects) as command:
        command.wait_for("iteration 3/")
        command.process.send_signal(signal.SIGHUP)
        command.press_ctrl_c()
        assert "_iter_" in command.wait_for("snapshot: ")
        command.wait_for("iteration ")
        command.process.terminate()
        assert command.end() == 0
    assert len(list(tmp_path.glob("*.pt"))) == 2
