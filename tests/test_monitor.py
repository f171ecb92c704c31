"""`blobfeed monitor` against real runs: one that is starved, one that starves, one that waits for its source, one with
a stuck loader, one whose loaders die.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from blobfeed import BatchReader
from blobfeed.monitor import Monitor, Readings, as_mapping, sparkline, view

from .support.commands import run
from .support.programs import read_until, started
from .support.waiting import readable, wait_until
from .support.watched_trainer import STUCK_AT

ROOT = str(Path(__file__).resolve().parent.parent)
Trainer = subprocess.Popen[str]


@contextmanager
def trainer(how: str, folder: Path, *more: str, within: Sequence[str] = ()) -> Iterator[Trainer]:
    """It has got some batches. `within`: the command that starts it."""
    program = f"import sys; sys.path.append({ROOT!r}); from tests.support.watched_trainer import main; main()"
    command = [*within, sys.executable, "-P", "-c", program, how, str(folder), *more]
    with started(command, stderr=None) as process:
        read_until(process, "running")
        yield process


@pytest.fixture(scope="module")
def starving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """One that takes its time, for all tests that only look at it."""
    with trainer("starving", tmp_path_factory.mktemp("starving")) as process:
        yield process


def watched(process: Trainer, condition: Callable[[dict[str, Any]], bool], what: str) -> tuple[dict[str, Any], str]:
    """What the monitor tells of the trainer when `condition` holds, and its table."""
    monitor = Monitor(process.pid)
    told: list[dict[str, Any]] = []
    seen: list[Readings] = []

    def holds() -> bool:
        seen[:] = monitor.look()
        told[:] = [as_mapping(each) for each in seen]
        return bool(told) and condition(told[0])

    wait_until(holds, what)
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(view(seen))
    return told[0], console.export_text()


BLAMED = {
    # how a trainer runs: who is to blame, and words of the sentence and of the table
    "starved": ("loaders cores", "decode", "decoding"),  # where all cores are busy loaders may rightly lack one
    "local": ("loaders", "makes its batches itself, which takes", "making them"),
    "starving": ("trainer", "the net is the bottleneck", "■"),
    "waiting": ("storage", "of read is waiting", "[numbers]"),
    "dying": ("deaths", "killed by SIGKILL", "deaths"),
}


@pytest.mark.parametrize("how", BLAMED)
def test_the_one_to_blame_is_told(tmp_path: Path, how: str) -> None:
    blamed, words, shown = BLAMED[how]

    def is_blamed(told: dict[str, Any]) -> bool:
        return told["diagnosis_since_start"]["blame"] in blamed.split() and told["batches"] > 8

    with trainer(how, tmp_path) as process:
        told, table = watched(process, is_blamed, f"{blamed} to blame")
    assert words in told["diagnosis_since_start"]["sentence"]
    assert shown in table
    assert told["in_process"] == (told["loader_states"] == []) == (how == "local")
    assert bool(told["loader_deaths"]) == (how == "dying")
    assert told["samples"] == 8 * told["batches"]


def test_a_stuck_loader_is_named_with_its_sample_and_where_it_is_stored(tmp_path: Path) -> None:
    def places(told: dict[str, Any]) -> bool:
        return told["diagnosis"]["blame"] == "stuck" and "[numbers]/" in told["diagnosis"]["sentence"]

    with trainer("stuck", tmp_path) as process:
        told, table = watched(process, places, "a stuck loader is seen, and where its sample is stored")
    assert f"index {STUCK_AT}, [numbers]/{STUCK_AT}.txt" in told["diagnosis"]["sentence"]
    assert "is stuck: it has been in decode for" in told["diagnosis"]["sentence"]
    assert table.count(f"[numbers]/{STUCK_AT}.txt") == 2  # in the sentence, and in the loader's row
    assert "[numbers], trainer" in table


def test_a_pipeline_that_is_named_by_a_loader_is_shown_when_that_loader_has_died(tmp_path: Path) -> None:
    with trainer("starving", tmp_path) as process:
        told, _ = watched(process, lambda told: len(told["loader_states"]) == 2, "both loaders run")
        monitor, loader = Monitor(told["loader_states"][0]["pid"]), told["loader_states"][0]
        monitor.look()
        os.kill(loader["pid"], signal.SIGKILL)

        def is_replaced() -> bool:
            (readings,) = monitor.look()
            numbers = [each["loader"] for each in as_mapping(readings)["loader_states"]]
            return len(numbers) == 2 and loader["loader"] not in numbers

        wait_until(is_replaced, "another loader has taken its place")


def test_a_trainer_in_a_container_is_seen_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for what nobody removes if all processes are killed at once
    container = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
    if not shutil.which("unshare") or subprocess.run([*container, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets its users make no PID namespace")
    with trainer("starving", tmp_path, within=container) as process:
        (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (readings,) = Monitor(int(pid)).look()
        assert readings[-1].header.trainer == 1


def test_the_command_prints_json_of_one_process_and_draws_a_picture(starving: Trainer, tmp_path: Path) -> None:
    picture = tmp_path / "monitor.svg"
    as_json = run("monitor", starving.pid, "--json", "--seconds", "0.5")
    drawn = run("monitor", starving.pid, "--once", "--seconds", "0.5", "--svg", picture)
    (told,) = json.loads(as_json.stdout)
    assert told["trainer"] == starving.pid
    assert drawn.exit_code == 0
    assert picture.read_text().startswith("<svg")
    assert "url(" not in picture.read_text().replace("url(#", "")


def test_a_picture_is_drawn_where_only_ascii_is_spoken(starving: Trainer, tmp_path: Path) -> None:
    picture = tmp_path / "monitor.svg"
    ascii_only = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "blobfeed", "monitor", str(starving.pid), "--seconds", "0.1"]
    subprocess.run([*command, "--svg", str(picture)], env=ascii_only, check=True, capture_output=True, timeout=200)
    assert "■" in picture.read_text(encoding="utf-8")


def test_without_a_terminal_it_is_printed_once(starving: Trainer) -> None:
    printed = run("monitor", starving.pid, "--seconds", "0.5")
    assert f"trainer {starving.pid}" in printed.stdout


def test_batches_that_share_a_slot_are_said_to_be_counted_together() -> None:
    here = str(os.getpid())
    with BatchReader({"arrays": {"data": np.zeros((640, 1))}}, batch_size=1, num_loaders=1) as reader:
        next(iter(reader))
        printed = run("monitor", here, "--once", "--seconds", "0.1")
    assert re.search(r"batches  0, counted \d+ at a time", printed.stdout)


@pytest.mark.parametrize("width", [36, 48, 60, 80, 110])
def test_a_narrow_terminal_cuts_no_word(starving: Trainer, width: int) -> None:
    monitor = Monitor(starving.pid)
    wait_until(lambda: len(as_mapping(monitor.look()[0])["loader_states"]) == 2, "both loaders run")
    drawn, looked = {}, monitor.look()
    for columns in (width, 200):
        console = Console(width=columns, record=True, file=io.StringIO())
        console.print(view(looked, columns))
        drawn[columns] = console.export_text()
    assert max(map(len, drawn[width].splitlines())) <= width
    assert "…" not in drawn[width]
    known = {*re.findall(r"[A-Za-z]+", drawn[200]), "read", "reading", "decode", "decoding", "waiting", "starting"}
    told = as_mapping(looked[0])
    paths = {told["source"], *(loader["where"] for loader in told["loader_states"])}  # they alone are folded
    assert all(
        word in known or any(word in path for path in paths) for word in re.findall("[A-Za-z]{2,}", drawn[width])
    )


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_a_key_leaves_the_view_and_a_line_says_so(starving: Trainer, key: bytes) -> None:
    command = [sys.executable, "-m", "blobfeed", "monitor", str(starving.pid)]
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(command[0], command, {**os.environ, "TERM": "xterm"})
    shown = bytearray()

    def says_how_to_leave() -> bool:
        if readable(terminal, 0.1):
            shown.extend(os.read(terminal, 1 << 16))
        return b"q or Ctrl-C leaves" in shown

    try:
        wait_until(says_how_to_leave, "the view is drawn")
        os.write(terminal, key)
        with suppress(OSError):  # EIO: it has ended
            while part := os.read(terminal, 1 << 16):
                shown += part
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown.decode()
    finally:
        os.close(terminal)
    assert starving.poll() is None


def test_without_a_pipeline_there_is_a_message() -> None:
    result = run("monitor", "1", "--once")
    assert result.exit_code == 1
    assert "no pipeline with process 1 runs here" in result.output


def test_json_and_a_picture_at_once_are_a_usage_error(tmp_path: Path) -> None:
    result = run("monitor", "--json", "--svg", tmp_path / "a.svg")
    assert result.exit_code == 2
    assert "give --json or --svg, not both" in result.output


@pytest.mark.pure
@given(st.lists(st.floats(-1, 2), max_size=30))
def test_a_sparkline_has_a_character_for_each_share(shares: list[float]) -> None:
    line = sparkline(shares)
    assert len(line) == len(shares)
    assert [mark == "█" for mark in line] == [
        share >= 1 - 1 / 16 or round(min(1, max(0, share)) * 8) == 8 for share in shares
    ]
