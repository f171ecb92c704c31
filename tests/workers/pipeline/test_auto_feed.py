"""`num_loaders: auto` where no user code runs: first the trainer's process, then loaders, and no batch notices."""

from __future__ import annotations

import os
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.workers.api import Parameters
from blobfeed.workers.pipeline import Pipeline, ProcessFeed

from blobfeed import BatchReader, PipelineStalled, RingAllocationError, SampleError, SourceError
from tests.support.boards import boards_of

SAMPLES = 90
ARRAYS = {"data": np.arange(SAMPLES * 10).reshape(SAMPLES, 10), "label": np.arange(SAMPLES)}
IN_MEMORY = {"arrays": ARRAYS}
SETTINGS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "last_batch": "partial"}
LARGE: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3}
LARGE_ROWS = np.zeros((64, 3, 224, 224), np.uint8) + np.arange(64, dtype=np.uint8).reshape(64, 1, 1, 1)


@pytest.fixture
def stored(tmp_path: Path) -> dict[str, Any]:
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    return {"npy": {name: str(tmp_path / f"{name}.npy") for name in ARRAYS}}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    np.save(tmp_path / "large.npy", LARGE_ROWS)
    return tmp_path / "large.npy"


def read(source: dict[str, Any], epochs: int = 14, **settings: Any) -> tuple[list[tuple[int, list[int], bytes]], str]:
    """The batches, and for each one L if loaders ran when it was taken, else t."""
    children, ways = psutil.Process().children(), ""
    with BatchReader(source, **SETTINGS, **settings, epochs=epochs) as reader:
        batches = []
        for batch in reader:
            batches.append((batch.number, batch.indices.tolist(), batch["data"].tobytes()))
            ways += "L" if reader.statistics().loaders else "t"
        assert reader.statistics().batches == len(batches)
    assert psutil.Process().children() == children
    return batches, ways


@pytest.mark.parametrize("chosen", [{}, {"copy": False}, {"prefetch_batches": 2}, {"transform": {"scale": 0.5}}])
def test_loaders_go_on_for_good_where_the_trainer_has_ended(stored: dict[str, Any], chosen: dict[str, Any]) -> None:
    batches, ways = read(stored, **chosen)
    assert batches == read(stored, **chosen, num_loaders=0)[0]
    assert ways.startswith("t")
    assert ways.lstrip("t").strip("L") == ""
    assert ways.endswith("L")


def test_large_rows_are_read_by_the_trainer_for_sixteen_batches_at_most(large: Path) -> None:
    with BatchReader({"npy": {"data": str(large)}}, **LARGE) as reader:
        ways = []
        for batch in islice(reader, 40):
            np.testing.assert_array_equal(batch["data"], LARGE_ROWS[batch.indices])
            ways.append(reader.statistics().loaders > 0)
    assert not ways[0]
    assert all(ways[16:])


def test_loaders_end_with_a_head_start_that_fails(large: Path) -> None:
    me = psutil.Process()
    before = me.children(recursive=True)
    with BatchReader({"npy": {"data": str(large)}}, **LARGE) as reader:
        batches = iter(reader)
        next(batches)
        os.utime(large, ns=(1, 1))
        for _ in range(2):
            with pytest.raises(SampleError):
                next(batches)
            assert me.children(recursive=True) == before


def test_what_is_held_stays_as_it_is_when_loaders_take_over(large: Path) -> None:
    with Pipeline(Parameters(source={"npy": {"data": str(large)}}, tops=("data",), **LARGE)) as pipeline:
        pipeline.deliver_into_host(calls_make=False)
        held = [pipeline.take()]
        before = np.array(held[0].tops["data"])
        while not pipeline.statistics().loaders:
            pipeline.release(pipeline.take())
        for _ in range(10):
            pipeline.release(pipeline.take())
        np.testing.assert_array_equal(held[0].tops["data"], before)
        assert len({*before[:, 0, 0, 0].tolist()}) == LARGE["batch_size"]


def test_a_run_that_is_over_before_loaders_would_be_there_starts_none(large: Path) -> None:
    children = psutil.Process().children()
    with Pipeline(
        Parameters(source={"npy": {"data": str(large)}}, tops=("data",), batch_size=64, epochs=1)
    ) as pipeline:
        pipeline.deliver_into_host(calls_make=False)
        batch = pipeline.take()
        np.testing.assert_array_equal(batch.tops["data"], LARGE_ROWS)
        assert psutil.Process().children() == children


def test_arrays_in_memory_are_read_by_the_trainer_for_good() -> None:
    batches, ways = read(IN_MEMORY)
    assert set(ways) == {"t"}
    assert batches == read(IN_MEMORY, num_loaders=2)[0]


@pytest.mark.parametrize("hook", [{"decode": lambda sample, rng: dict(sample)}, {"transform": {"crop_size": 192}}])
def test_arrays_that_are_changed_are_read_by_loaders(hook: dict[str, Any]) -> None:
    with BatchReader({"arrays": {"data": LARGE_ROWS}}, **LARGE, **hook) as reader:
        for _ in islice(reader, 20):
            pass
        assert reader.statistics().loaders > 0


def test_loaders_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch, stored: dict[str, Any]) -> None:
    def refuse(*_: object) -> None:
        raise RingAllocationError("no memory is left")

    monkeypatch.setattr(ProcessFeed, "__init__", refuse)
    with BatchReader(stored, **SETTINGS) as reader, pytest.raises(RingAllocationError):
        for _ in islice(reader, 300):
            pass


def test_a_file_that_is_cut_is_an_error_by_default(large: Path) -> None:
    with BatchReader({"npy": {"data": str(large)}}, **LARGE) as reader:
        batches = iter(reader)
        for _ in islice(batches, 20):
            pass
        assert reader.statistics().loaders
        os.truncate(large, 4096)
        with pytest.raises(SampleError) as caught:
            for _ in islice(batches, 100):
                pass
        assert str(large) in caught.value.path
    assert isinstance(caught.value.__cause__, SourceError)


def test_a_read_that_hangs_is_an_error_by_default(large: Path) -> None:
    with BatchReader({"npy": {"data": str(large)}}, **LARGE, timeout_s=2) as reader:
        batches = iter(reader)
        for _ in islice(batches, 20):
            pass
        (board,) = boards_of(os.getpid())
        loaders = [line.pid for line in board.running]
        assert loaders
        for pid in loaders:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(PipelineStalled):
            for _ in islice(batches, 100):
                pass
