"""What hangs in setup is broken off after `timeout_s`, and nothing of the program's own is touched."""

from __future__ import annotations

import bdb
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Hooks, check_parameters
from blobfeed.workers.base import deadline, moving

from blobfeed import ParameterError, PipelineStalled, Sample
from tests.support.pipelines import Numbered
from tests.support.stored import opened
from tests.support.waiting import wait_until

_TIMERS = Path("/proc/self/timers")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No signal handler, no timer, no thread."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    timers = _TIMERS.read_text() if _TIMERS.exists() else ""
    threads = threading.active_count()
    yield
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
    assert (_TIMERS.read_text() if _TIMERS.exists() else "") == timers
    assert threading.active_count() == threads


def sleeps(sample: Sample, rng: np.random.Generator) -> Any:
    time.sleep(1000)


def loops(sample: Sample, rng: np.random.Generator) -> Any:
    while True:
        pass


def catches_all_once(sample: Sample, rng: np.random.Generator) -> Any:
    try:
        time.sleep(1000)
    except Exception:
        time.sleep(1000)


@pytest.mark.parametrize("decode", [sleeps, loops, catches_all_once])
def test_a_decode_hook_that_hangs_is_broken_off(decode: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    parameters = check_parameters({"source": {"npy": {"data": "a.npy"}}, "batch_size": 2, "timeout_s": 0.5})
    with pytest.raises(PipelineStalled, match=r"timeout_s=0\.5 ") as error:
        open_pipeline(parameters, Hooks(decode), base_dir=tmp_path)
    assert error.traceback[-2].name == decode.__name__


class _Endless(Numbered):
    def __len__(self) -> int:
        time.sleep(1000)
        raise AssertionError


def test_a_source_of_one_s_own_that_hangs_is_broken_off_and_an_empty_one_is_still_a_source() -> None:
    parameters = check_parameters({"source": {"numbered": {}}, "batch_size": 2, "timeout_s": 0.5})
    with pytest.raises(PipelineStalled, match=r"timeout_s=0\.5 "):
        open_pipeline(parameters, source=_Endless())
    with pytest.raises(ParameterError):
        open_pipeline(parameters, source=Numbered(samples=0))


@pytest.mark.parametrize("way", ["data", "inner/data", "soft"])
def test_a_link_to_a_fifo_in_an_hdf5_file_is_broken_off(way: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("inner")
        file["soft"] = h5py.SoftLink("inner/link")
        file["inner/link" if way == "soft" else way] = h5py.ExternalLink("fifo", "data")
        file["label"] = np.arange(3)
    with pytest.raises(PipelineStalled, match=rf"timeout_s=0\.3 .*a\.h5:{way};"), deadline(0.3):
        opened("hdf5", tmp_path, path="a.h5", tops=(way, "label"))


def test_a_sample_that_is_a_link_to_a_fifo_is_broken_off(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sample_0"] = h5py.ExternalLink("fifo", "data")
    with pytest.raises(PipelineStalled, match=r"timeout_s=0\.5 .*a\.h5"), deadline(0.5):
        opened("hdf5_samples", tmp_path, path="a.h5")


def test_what_moves_starts_the_clock_anew() -> None:
    with deadline(0.5):
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() > begun + 0.3, "more than half of the time is over")
        moving("something")
        begun = time.monotonic()
        with pytest.raises(PipelineStalled, match=r"timeout_s=0\.5 .*something"):
            time.sleep(1000)
    assert time.monotonic() >= begun + 0.5


class _Sits(bdb.Bdb):
    """A debugger that somebody leaves when `leaves` is true."""

    def __init__(self, leaves: Callable[[], bool]) -> None:
        super().__init__()
        self._leaves = leaves

    def user_line(self, frame: FrameType) -> None:
        wait_until(self._leaves, "the deadline is over, and was put off")
        self.set_continue()


def test_the_time_in_a_debugger_does_not_count() -> None:
    left = False
    with pytest.raises(PipelineStalled), deadline(0.3):  # noqa: PT012 - it may come as soon as the user has left
        begun = time.monotonic()
        _Sits(lambda: time.monotonic() > begun + 1.0).runcall(lambda: None)
        left = True
        time.sleep(1000)
    assert left


def test_the_time_under_a_tool_that_traces_without_a_user_counts() -> None:
    before = sys.gettrace()
    sys.settrace(lambda *_: None)  # as coverage does
    try:
        with pytest.raises(PipelineStalled), deadline(0.05):
            time.sleep(1000)
    finally:
        sys.settrace(before)


def _outlasts(seconds: float) -> None:
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + 10 * seconds, "a deadline would be over")


def test_a_deadline_may_be_infinite() -> None:
    with deadline(float("inf")):
        moving("something")
        _outlasts(0.01)


def test_the_outermost_deadline_counts_and_outside_of_any_nothing_moves() -> None:
    with deadline(1000.0):
        with deadline(0.01):
            _outlasts(0.01)
        _outlasts(0.01)
    moving("nothing")


def test_a_thread_beside_the_main_one_has_none() -> None:
    found: list[object] = []

    def inside() -> None:
        with deadline(0.01):
            _outlasts(0.01)
        found.append("no deadline")

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found


def test_a_system_without_timers_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, **_: Any) -> Any:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", refuse)
    with deadline(0.01):
        _outlasts(0.01)
