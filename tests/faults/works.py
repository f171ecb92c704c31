"""What the pipelines read while harm is done to them: real HDF5 files and streams, with and without hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, Hooks, check_parameters
from blobfeed.workers.pipeline import Pipeline

from blobfeed import Sample, StreamSource

SAMPLES = 600
EPOCHS = 10
TASK_TIMEOUT_S = 2.0
_SHAPE = (3, 48, 48)
_CHUNK = 20


def write_file(path: Path, compression: str | None = None) -> Path:
    """`data`, shape (600, 3, 48, 48) uint8 of noise that compresses by half, and `label`, each sample's number."""
    data = np.random.default_rng(0).integers(0, 16, (SAMPLES, *_SHAPE), np.uint8)
    chunks = (_CHUNK, *_SHAPE) if compression else None
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, chunks=chunks, compression=compression)
        file["label"] = np.arange(SAMPLES)
    return path


def augment(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
    """Noise of this sample in this epoch: what is done twice, or by another generator, has other bytes."""
    data = sample["data"].astype(np.float32)
    return {"data": data + rng.standard_normal(data.shape, np.float32), "label": sample["label"]}


def standardise(batch: dict[str, AnyArray]) -> None:
    """In place over the whole batch: done twice to the same rows it would give other bytes."""
    data = batch["data"]
    data[...] = (data - data.mean()) * 3 + 1


def numbered(shard: int, shards: int) -> Iterator[dict[str, object]]:
    """The samples of one shard, each with its number.

    Quickly made: a shard whose loader died is run again from its start, and where that takes longer than the time
    between two faults, several strike the same task, which is then taken for the culprit.
    """
    for number in range(shard, SAMPLES, shards):
        yield {"data": np.full((3, 32, 32), number, np.float32), "label": number}


@dataclass(frozen=True)
class Work:
    """One way to use a pipeline; `compression` of the file that it reads, or a `stream`."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    hooks: Hooks = Hooks()  # noqa: RUF009 - frozen
    compression: str | None = None
    stream: bool = False

    def open(self, folder: Path, **values: Any) -> Pipeline:
        given = {
            "batch_size": 12,
            "num_loaders": 3,
            "prefetch_batches": 3,
            "epochs": EPOCHS,
            "seed": 7,
            "task_timeout_s": TASK_TIMEOUT_S,
            "timeout_s": 60.0,
            **self.values,
            **values,
        }
        if self.stream:
            source = StreamSource(numbered, shards=3, capacity=64)
            return open_pipeline(check_parameters({"source": {"stream": {}}, **given}), self.hooks, source=source)
        path = folder / f"{self.compression}.h5"
        if not path.exists():
            write_file(path, self.compression)
        return open_pipeline(check_parameters({"source": {"hdf5": {"path": str(path)}}, **given}), self.hooks)


WORKS = (
    Work("HDF5 in file order"),
    Work("HDF5 gzip, shuffle: true", {"shuffle": True}, compression="gzip"),
    Work("HDF5 gzip, shuffle: chunk", {"shuffle": "chunk", "shuffle_window": 4}, compression="gzip"),
    Work("HDF5, decode", {"shuffle": True}, Hooks(decode=augment)),
    Work("HDF5, decode and postprocess", {"shuffle": True}, Hooks(augment, standardise)),
    Work("stream", stream=True),
    Work("stream, decode and postprocess", {"last_batch": "partial"}, Hooks(augment, standardise), stream=True),
)


def slow_augment(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
    """A heavy decode, of some milliseconds: the trainer waits for every batch."""
    made = augment(sample, rng)
    for _ in range(12):
        rng.standard_normal(made["data"].shape, np.float32)
    return made
