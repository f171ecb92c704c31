"""Samples that vary in size: setup names the one that alone makes batches large, and max_length bounds them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from PIL import Image

from blobfeed import BatchReader
from tests.support.tars import write_tar

SIZES = [10] * 200
SIZES[123] = 400_000


def _parquet(path: Path) -> None:
    texts = ["w" * size for size in SIZES]
    pq.write_table(pa.table({"data": texts, "items": [[1] * size for size in SIZES]}), path, row_group_size=20)


def _tar(path: Path, extensions: Sequence[str] = ("txt", "bin"), begin: bytes = b"") -> None:
    sizes = enumerate(SIZES)
    write_tar(path, [(f"{n:03}.{extension}", begin + b"w" * size) for n, size in sizes for extension in extensions])


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.array(["w" * size for size in SIZES], h5py.string_dtype())
        items = file.create_dataset("items", len(SIZES), h5py.vlen_dtype("u1"))
        for number, size in enumerate(SIZES):
            items[number] = np.zeros(size, "u1")


def _hdf5_samples(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for number, size in enumerate(SIZES):
            file[f"{number:03}"] = np.zeros((size, 2), "u1")


@pytest.mark.parametrize(
    ("kind", "write", "tops"),
    [
        ("parquet", _parquet, ["data", "items"]),
        ("tar", _tar, ["txt", "bin"]),
        ("hdf5", _hdf5, ["data", "items"]),
        ("hdf5_samples", _hdf5_samples, ["data"]),
    ],
)
def test_a_sample_that_alone_makes_batches_large_is_named_and_max_length_replaces_it(
    kind: str, write: Callable[[Path], None], tops: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a")
    given: dict[str, Any] = {"tops": tops, "batch_size": 50, "epochs": 1, "num_loaders": 0, "on_error": "replace"}
    with BatchReader({kind: {"path": str(tmp_path / "a")}}, **given) as reader:
        next(iter(reader))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(tops)
    assert all("max_length" in text and "sample 123 " in text for text in said)
    caplog.clear()
    with BatchReader({kind: {"path": str(tmp_path / "a"), "max_length": 350_000}}, **given) as reader:
        indices = [index for batch in reader for index in batch.indices.tolist()]
    assert len(indices) == len(SIZES)
    assert 123 not in indices
    (replaced,) = [record.getMessage() for record in caplog.records]
    assert "400000" in replaced


def test_the_bytes_of_a_picture_say_nothing_of_its_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "png")
    _tar(tmp_path / "a.tar", ["png"], picture.getvalue())
    with BatchReader({"tar": {"path": str(tmp_path / "a.tar"), "max_height": 400}}, batch_size=50, num_loaders=0):
        assert not caplog.records
