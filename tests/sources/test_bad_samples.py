"""Faults of single samples that setup finds: refused, unless on_error or a sampler says that others will do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from blobfeed import BatchReader, SampleError, SourceError
from tests.support.datums import encoded_datum, write_lmdb
from tests.support.part import some_of
from tests.support.pictures import encoded, noise
from tests.support.tars import write_tar

PICTURES = [b"no picture", *(encoded(noise(4, 4), ".png") for _ in range(3))]
EQUAL = {"equal_sizes": True}


def _tar(folder: Path, first: str = "cls") -> dict[str, Any]:
    """`first`: the extension of the first sample's label."""
    pictures = [(f"{number}.png", picture) for number, picture in enumerate(PICTURES)]
    labels = [(f"{number}.{'cls' if number else first}", b"1") for number, _ in enumerate(PICTURES)]
    write_tar(folder / "a.tar", sorted(pictures + labels))
    return {"tar": {"path": "a.tar", "members": {"data": "png", "label": "cls"}, **EQUAL}}


def _tar_lacking(folder: Path) -> dict[str, Any]:
    return _tar(folder, "other")


def _parquet(folder: Path) -> dict[str, Any]:
    pq.write_table(pa.table({"data": PICTURES}), folder / "a.parquet")
    return {"parquet": {"path": "a.parquet", "pictures": ["data"], **EQUAL}}


def _lmdb(folder: Path) -> dict[str, Any]:
    write_lmdb(folder / "a", [encoded_datum(picture, 1) for picture in PICTURES])
    return {"lmdb": {"path": "a"}}


def _image_list(folder: Path) -> dict[str, Any]:
    for number, picture in enumerate(PICTURES[1:], 1):
        (folder / f"{number}.png").write_bytes(picture)
    (folder / "a.txt").write_text("".join(f"{number}.png 1\n" for number in range(4)))
    return {"image_list": {"path": "a.txt", **EQUAL}}


def _hdf5_samples(folder: Path) -> dict[str, Any]:
    with h5py.File(folder / "a.h5", "w") as file:
        for number in range(6):
            sample = file.create_group(str(number))
            if number != 2:
                sample["x"] = np.zeros((4, 4), "f4" if number != 3 else "i4")
            sample["y"] = np.full(2, number)
            if number != 4:
                sample.attrs["label"] = number
    return {"hdf5_samples": {"path": "a.h5", "datasets": ["x", "y"], "labels": ["label"]}}


@pytest.mark.parametrize("loaders", some_of([0, 1], 2))
def test_samples_of_hdf5_that_are_not_like_the_others_are_replaced(tmp_path: Path, loaders: int) -> None:
    source = _hdf5_samples(tmp_path)
    given: dict[str, Any] = {"batch_size": 3, "epochs": 1, "num_loaders": loaders, "base_dir": tmp_path}
    with pytest.raises(SourceError, match="2 lacks x"):
        BatchReader(source, **given)
    with BatchReader(source, **given, on_error="replace") as reader:
        batches = [batch.copy() for batch in reader]
    labels = np.concatenate([batch["label"] for batch in batches])
    assert set(labels.tolist()) == {0, 1, 5}
    assert np.concatenate([batch["y"] for batch in batches])[:, 0].tolist() == labels.tolist()


@pytest.mark.parametrize("write", [_tar, _tar_lacking, _parquet, _lmdb, _image_list])
def test_a_bad_sample_keeps_a_source_shut_unless_it_is_replaced_or_left_out(
    write: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    given: dict[str, Any] = {"batch_size": 1, "epochs": 1, "num_loaders": 0, "base_dir": tmp_path}
    source = write(tmp_path)
    with pytest.raises((SourceError, SampleError)):
        BatchReader(source, **given)
    for how in ({"on_error": "replace"}, {"sampler": {"indices": np.arange(1, 3)}}):
        with BatchReader(source, **given, **how) as reader:
            read = {int(batch.indices[0]): batch["data"].shape[-2:] for batch in reader}
        assert 0 not in read
        assert set(read.values()) == {(4, 4)}
