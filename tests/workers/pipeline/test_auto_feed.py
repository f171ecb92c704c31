"""`num_loaders: auto`: loaders from the first batch on, but for arrays in memory that no hook touches."""

from __future__ import annotations

import errno
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.workers.transport import ring

from blobfeed import BatchReader, RingAllocationError

SETTINGS: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "epochs": None}
ROWS = np.zeros((64, 3, 224, 224), np.uint8) + np.arange(64, dtype=np.uint8).reshape(64, 1, 1, 1)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", ROWS)
    return tmp_path / "rows.npy"


@pytest.mark.parametrize("hook", [{}, {"decode": lambda sample, rng: dict(sample)}, {"transform": {"crop_size": 192}}])
def test_files_and_arrays_that_are_changed_are_read_by_loaders_from_the_first_batch_on(
    stored: Path, hook: dict[str, Any]
) -> None:
    source = {"npy": {"data": str(stored)}} if not hook else {"arrays": {"data": ROWS}}
    with BatchReader(source, **SETTINGS, **hook) as reader:
        next(iter(reader))
        assert reader.statistics().loaders > 0


def test_arrays_in_memory_are_read_by_the_trainer() -> None:
    children = psutil.Process().children()
    with BatchReader({"arrays": {"data": ROWS}}, **SETTINGS) as reader:
        for batch in islice(reader, 20):
            np.testing.assert_array_equal(batch["data"], ROWS[batch.indices])
        assert psutil.Process().children() == children


def test_loaders_that_cannot_start_are_an_error_at_the_first_batch(
    monkeypatch: pytest.MonkeyPatch, stored: Path
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no memory is left")

    monkeypatch.setattr(ring, "allocate", refuse)  # the assembler has started by then
    children = psutil.Process().children()
    with BatchReader({"npy": {"data": str(stored)}}, **SETTINGS) as reader, pytest.raises(RingAllocationError):
        next(iter(reader))
    assert psutil.Process().children() == children
