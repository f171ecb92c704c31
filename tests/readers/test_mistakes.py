"""Mistakes that newcomers make, and what the errors say: the thing, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb, format_exception
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

import blobfeed
from blobfeed import BatchReader, BlobfeedError, HDF5InputLayer, LayerHarness, Sample

LABELS = np.arange(8)
ARRAYS = {"arrays": {"data": np.zeros((8, 3, 4), np.uint8), "label": LABELS}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data"], file["label"] = np.zeros((8, 3)), LABELS
    return tmp_path


def test_a_batch_is_a_mapping_that_may_be_asked_for_a_name_that_it_lacks() -> None:
    with BatchReader(ARRAYS, batch_size=4, num_loaders=0) as reader:
        batch = next(iter(reader))
    assert list(batch) == [*batch] == ["data", "label"]
    assert {**batch} == dict(batch) == batch
    assert batch.get("dta") is None
    assert "dta" not in batch


# ---- what stands before the message; tests/test_printed_errors.py counts it


def fails_on_the_fifth(sample: Sample, _rng: np.random.Generator) -> Sample:
    if sample["label"] == 5:
        raise ZeroDivisionError("the fifth")
    return sample


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_a_traceback_has_the_users_lines_and_the_message_alone(num_loaders: int) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "epochs": 1, "num_loaders": num_loaders}
    with pytest.raises(BlobfeedError) as caught, BatchReader(ARRAYS, decode=fails_on_the_fifth, **settings) as reader:
        list(reader)
    printed = "".join(format_exception(caught.value))
    assert "in fails_on_the_fifth" in printed
    assert not [line for line in printed.splitlines() if "blobfeed/workers" in line and "tracebacks.py" not in line]


def test_a_hook_that_fails_in_setup_keeps_its_own_frames_alone() -> None:
    def decode(_sample: Sample, _rng: np.random.Generator) -> Sample:
        raise ZeroDivisionError("in setup")

    with pytest.raises(ZeroDivisionError) as caught:
        BatchReader(ARRAYS, batch_size=4, decode=decode)
    names = [frame.name for frame in extract_tb(caught.value.__traceback__)]
    assert names[1:] == ["decode"]
    assert caught.value.__notes__ == ["raised in setup, by sample 0 (arrays[0])"]


def loops() -> None:
    with BatchReader(ARRAYS, decode=fails_on_the_fifth, batch_size=4, num_loaders=1) as reader:
        list(reader)


def runs_out() -> None:
    with LayerHarness(HDF5InputLayer, "{path: x.h5, batch_size: 4, epochs: 1, num_loaders: 0}") as harness:
        for _ in range(3):
            harness.forward()


# The classes that need torch are imported by their use: the hooks' loaders import this module.
MISTAKES: dict[str, Callable[[], object]] = {
    "a reader": lambda: BatchReader("none.h5", batch_size=4),
    "a loop": loops,
    "an archive": lambda: blobfeed.H5Dataset("none.h5"),
    "pairs": lambda: blobfeed.AsyncReader(hdf5_path="none.h5", batch_size=4),
    "a layer": lambda: LayerHarness(HDF5InputLayer, {"path": "none.h5", "batch_size": 4}),
    "a layer's batches": runs_out,
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_pytest_and_ipython_hide_the_frames_of_the_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[], object]
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(BlobfeedError) as caught:
        mistake()
    assert {str(entry.path) for entry in caught.traceback.filter(caught)} == {__file__}
    assert len(caught.traceback) <= len(caught.traceback.filter(caught)) + 3


# ---- batches as tuples


def test_tuples_have_the_arrays_in_the_order_of_the_tops() -> None:
    settings: dict[str, Any] = {"batch_size": 4, "epochs": 1, "num_loaders": 0, "tops": ["label", "data"]}
    with BatchReader(ARRAYS, **settings, tuples=True) as reader:
        pairs: Any = iter(reader)
        unpacked = [(label.tolist(), data.shape) for label, data in pairs]
    assert unpacked == [([0, 1, 2, 3], (4, 3, 4)), ([4, 5, 6, 7], (4, 3, 4))]
