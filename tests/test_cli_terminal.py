"""`blobfeed train` in a terminal: what appears there is the bar and the lines above it, and nothing tears them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blobfeed.trainer.solving import Event

from blobfeed.training_display import watching

from .support.trainer_nets import SMALL_SOLVER, write_project
from .support.waiting import readable
from .test_cli import OURS

PATIENCE_S = 100.0
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LONG_ENOUGH = 600
"""Iterations for several bars, and for `num_loaders: auto` to say a number."""


def shown_in_a_terminal(*command: str | Path, size: tuple[int, int] = (0, 0)) -> str:
    """All that the command and its children write to a terminal that is their standard output and standard error.

    `size`: lines and columns; zeros for a terminal that does not say.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, size)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = bytearray()
    try:
        while readable(ours, PATIENCE_S) and (part := _read(ours)):
            shown += part
        assert process.wait(PATIENCE_S) == 0, shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO: nobody has the other end open any more
        return b""


def test_nothing_but_the_bar_and_its_own_lines_appears_in_a_terminal(tmp_path: Path) -> None:
    solver = SMALL_SOLVER.replace("max_iter: 30", f"max_iter: {LONG_ENOUGH}") + "test_iter: 1 test_interval: 200"
    path = write_project(tmp_path, net=OURS.replace("num_loaders: 1", "num_loaders: auto"), solver=solver)
    shown = shown_in_a_terminal(sys.executable, "-P", "-m", "blobfeed", "train", "--solver", path)
    pieces = [piece.strip() for piece in re.split(r"[\r\n]+", CONTROLS.sub("", shown)) if piece.strip()]
    bars = [piece for piece in pieces if re.fullmatch(r"\d+/\d+ .+ stall \d+\.\d s [-\d:]+", piece)]
    lines = [piece for piece in pieces if piece.startswith(("iteration ", "snapshot: ", "data of layer "))]
    assert bars[-1].startswith(f"{LONG_ENOUGH}/{LONG_ENOUGH} ")
    assert any("test net 0" in line for line in lines)
    assert len(bars) + len(lines) == len(pieces), set(pieces) - {*bars, *lines}


def test_the_iteration_is_whole_in_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    solver: Any = SimpleNamespace(
        iteration=450_000,
        param=SimpleNamespace(max_iter=450_000),
        samples=64,
        stall_s=lambda: 1234.5,
        loss=lambda: 0.0123456,
        rate=0.1,
    )
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with watching(solver) as (watch,):
        watch(Event())
    shown = CONTROLS.sub("", capsys.readouterr().err).split("\r")[-1]
    assert re.match(r"450000/450000 ━+ loss 0.01235 · .* samples/s · stall 1234.5 s ", shown)


def test_a_contact_sheet_appears_in_a_terminal_that_says_its_size(tmp_path: Path) -> None:
    pytest.importorskip("textual_image", reason="blobfeed[report] shows pictures in a terminal")
    np.save(tmp_path / "x.npy", np.arange(4 * 64, dtype=np.uint8).reshape(4, 1, 8, 8))
    command = (sys.executable, "-P", "-m", "blobfeed", "inspect", tmp_path / "x.npy", "--sheet", tmp_path / "sheet.png")
    assert "▀" in (shown := shown_in_a_terminal(*command, size=(40, 100))) or "▄" in shown
    silent = shown_in_a_terminal(*command)
    assert "4 samples (rows) in 6 epochs (columns)" in " ".join(CONTROLS.sub("", silent).split())
    assert "▀" not in silent
    assert "▄" not in silent
