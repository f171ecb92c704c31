"""Files that somebody writes to or replaces while they are read: an error that names the file, and no other data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Transform

from blobfeed import BatchReader, SampleError, SourceError
from tests.sources.contract.test_contract import overwrite
from tests.support.pictures import encoded
from tests.support.pipelines import parameters, take_for_ever
from tests.support.stored import in_loader, opened, rows_of
from tests.support.tars import write_tar

SAMPLES = 32
VALUES = np.arange(SAMPLES * 60, dtype=np.float32).reshape(SAMPLES, 60)


def test_a_file_is_looked_at_once_before_and_once_after_whatever_is_read_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "abc":
            file[name] = VALUES
    loader = in_loader(opened("hdf5", tmp_path, ["a", "b", "c"], path="a.h5"))
    rows_of(loader, [0])
    looks: list[object] = []
    for name in ("stat", "fstat", "lseek"):
        monkeypatch.setattr(os, name, _noted(getattr(os, name), looks))
    rows_of(loader, list(range(SAMPLES)))
    assert len(looks) == 2


def _noted(function: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    return noted


def _pictures(path: Path) -> None:
    write_tar(path, [(f"{n}.png", encoded(np.full((4, 4, 3), n, np.uint8), ".png")) for n in range(SAMPLES)])


@pytest.mark.parametrize(
    ("name", "write", "given"),
    [
        ("a.npy", partial(np.save, arr=VALUES), {"source": {"npy": {"data": "a.npy"}}}),
        # Pictures that are cropped are lent, one by one.
        (
            "a.tar",
            _pictures,
            {
                "source": {"tar": {"path": "a.tar", "members": {"data": "png"}, "equal_sizes": True}},
                "transform": Transform(crop_size=2),
            },
        ),
    ],
    ids=["read", "lent"],
)
def test_a_run_over_a_file_that_is_rewritten_ends_with_its_name(
    tmp_path: Path, name: str, write: Callable[[Path], None], given: dict[str, Any]
) -> None:
    path = tmp_path / name
    write(path)
    with open_pipeline(parameters(**given, tops=("data",), batch_size=4, epochs=None), base_dir=tmp_path) as pipeline:
        pipeline.release(pipeline.take())
        overwrite(path)
        with pytest.raises(SampleError, match=re.escape(name)) as caught:
            take_for_ever(pipeline)
    assert isinstance(caught.value.__cause__, SourceError)


def test_a_trainer_that_reads_itself_looks_at_the_size_before_each_task(tmp_path: Path) -> None:
    """Else a map of the rows that are gone would end it by SIGBUS."""
    path = tmp_path / "a.npy"
    np.save(path, VALUES)
    given: dict[str, Any] = {"batch_size": 4, "num_loaders": 0, "tops": ("data",)}
    with BatchReader(source={"npy": {"data": str(path)}}, **given) as reader:
        batches = iter(reader)
        np.testing.assert_array_equal(next(batches)["data"], VALUES[:4])
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(SampleError, match=r"a\.npy") as caught:
            deque(islice(batches, 1000), maxlen=0)  # one task may have read the next batches, too
    assert isinstance(caught.value.__cause__, SourceError)


def test_a_file_that_nothing_closes_is_closed_in_silence_at_the_end_of_its_process() -> None:
    # A module that ends before that of the file holds it, and the file's is kept: its names are None by then.
    script = """
import sys, types
held = sys.modules["held"] = types.ModuleType("held")
from blobfeed.sources.files import file
held.raw = file.RawFile(file.FileStamp.of(sys.executable))
sys.kept = file, held
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")
