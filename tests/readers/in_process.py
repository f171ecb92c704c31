"""Sources, hooks and samplers for batches that the trainer's process makes itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.api import AnyArray, IndexArray, NamedRows

from blobfeed import ArraySpec, BatchReader, Sample, Source, StreamSource
from tests.support.reader_data import images, labels, write_hdf5

SAMPLES = 41
SETTINGS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "epochs": 2}
LARGE = (3, 224, 224)
"""Batches of four such rows are made right in the reader's memory, the last ones of a group like the first."""
ALONE: dict[str, Any] = {"prefetch_batches": 2}
"""Then a batch has a group to itself."""

Bytes = tuple[dict[str, bytes], list[int]]


def large(samples: int, shape: tuple[int, ...] = LARGE) -> AnyArray:
    values: AnyArray = np.random.default_rng(0).integers(0, 255, (samples, *shape), np.uint8)
    return values


def noisy(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
    """Takes its noise from every generator that a hook may know."""
    noise = rng.random() + random.random() + np.random.rand()  # noqa: NPY002
    return {"data": sample["data"] + np.float32(noise), "label": sample["label"]}


def doubled(batch: dict[str, AnyArray], rng: np.random.Generator) -> dict[str, AnyArray]:
    """The same over whole batches."""
    noise = rng.random() + random.random() + np.random.rand()  # noqa: NPY002
    return {"data": batch["data"] * 2.0 + noise, "index": batch.indices}  # type: ignore[attr-defined]


def backwards(epoch: int, samples: int, rng: np.random.Generator) -> AnyArray:
    return rng.permutation(samples)[: samples - epoch][::-1]


def uneven(epoch: int, samples: int, rng: np.random.Generator) -> Iterator[AnyArray]:
    del epoch
    for first in range(0, samples, 3):
        yield rng.integers(0, samples, 1 + first % 4)


def records(shard: int, shards: int, epoch: int) -> Iterator[tuple[AnyArray, int]]:
    for number in range(shard, 60, shards):
        yield np.full(5, number + 100 * epoch, np.float32), number


def read(source: Any, **settings: Any) -> list[Bytes]:
    with BatchReader(source, **settings) as reader:
        return [bytes_of(batch) for batch in islice(reader, 60)]


def bytes_of(batch: Any) -> Bytes:
    return {name: np.asarray(values).tobytes() for name, values in batch.items()}, batch.indices.tolist()


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        file.create_dataset("data", data=images(SAMPLES), chunks=(8, 2, 3, 4), compression="gzip")
        file["label"] = labels(SAMPLES)
    np.save(tmp_path / "data.npy", large(SAMPLES))
    np.save(tmp_path / "label.npy", labels(SAMPLES))
    return {
        "hdf5": write_hdf5(tmp_path / "train.h5", SAMPLES),
        "packed": {"hdf5": {"path": str(tmp_path / "packed.h5")}},
        "npy": {"npy": {"data": str(tmp_path / "data.npy"), "label": str(tmp_path / "label.npy")}},
        "arrays": {"arrays": {"data": large(SAMPLES), "label": labels(SAMPLES)}},
        "stream": StreamSource(records, shards=3, names=("data", "label")),
    }


class Broken(Source):
    """Sample 30 raises; so do all from `bad_from` on."""

    def __init__(self, bad_from: int = SAMPLES) -> None:
        self._bad_from = bad_from

    def __len__(self) -> int:
        return SAMPLES

    @property
    def specs(self) -> dict[str, ArraySpec]:
        return {"data": ArraySpec(LARGE, np.dtype(np.uint8)), "label": ArraySpec((), np.dtype(np.int64))}

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for row, index in enumerate(indices.tolist()):
            if index == 30 or index >= self._bad_from:
                raise ValueError(f"nothing good in {index}")
            out["data"][row], out["label"][row] = index, index  # type: ignore[index]


class BrokenRows(Broken):
    """Batches that are only copied are announced before they are made."""

    stores_rows = True


class Counted(Broken):
    """Counts the rows that are read."""

    rows = 0

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        self.rows += len(indices)
        out["data"][...], out["label"][...] = indices.reshape(-1, 1, 1, 1), indices  # type: ignore[index]


def check_labels(batch: Any) -> list[int]:
    np.testing.assert_array_equal(batch["data"][:, 0, 0, 0], batch["label"])
    np.testing.assert_array_equal(batch["data"][:, 2, 15, 15], batch["label"])
    return [int(label) for label in batch["label"]]
