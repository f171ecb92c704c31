"""Small files for the tests of the readers: every value says which sample it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
from blobfeed.workers.api import AnyArray

from blobfeed import Sample

IMAGE = (2, 3, 4)


def images(samples: int) -> AnyArray:
    """Shape (samples, 2, 3, 4) float32, all different."""
    values: AnyArray = np.arange(samples * 24, dtype=np.float32).reshape(samples, *IMAGE)
    return values


def labels(samples: int) -> AnyArray:
    """Shape (samples,): the number of the sample."""
    values: AnyArray = np.arange(samples, dtype=np.int64)
    return values


def write_hdf5(path: Path, samples: int) -> dict[str, Any]:
    """A file with `data` and `label`; returns the source that reads it."""
    with h5py.File(path, "w") as file:
        file["data"] = images(samples)
        file["label"] = labels(samples)
    return {"hdf5": {"path": str(path)}}


def records(shard: int, shards: int) -> Iterator[tuple[AnyArray, int, str]]:
    """A stream of 60. Loaders import the module of the function that they run: this one brings no framework."""
    for number in range(shard, 60, shards):
        yield np.full((2,), number, np.float32), number % 3, f"record {number}"


def boxes(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
    """A decode hook: 0, 1 or 2 boxes for each sample."""
    return {"boxes": np.ones((int(sample["label"]) % 3, 4), np.float32)}
