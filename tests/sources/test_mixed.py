"""Several sources as one: what is read, where it lies, and the shares that a running pipeline delivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.sources.arrays import open_arrays
from blobfeed.sources.mixed import MixedSource
from blobfeed.workers.api import AnyArray, Hooks, check_parameters
from blobfeed.workers.pipeline import Pipeline

from blobfeed import Sample


def test_the_fingerprint_of_a_mix_changes_with_its_weights() -> None:
    parts = [open_arrays({"data": np.arange(3)}), open_arrays({"data": np.arange(4)})]
    one, same, other = (MixedSource(parts, weights).fingerprint() for weights in ([1, 1], [1, 1], [1, 2]))
    assert one == same != other


# ---- declared, and through a running pipeline


def write_npy(folder: Path, name: str, first: int, samples: int) -> dict[str, Any]:
    """A part of a mix whose sample i holds `first` + i; its weight is the caller's to set."""
    np.save(folder / f"{name}.npy", np.arange(first, first + samples, dtype=np.int64)[:, None])
    return {"npy": {"data": f"{name}.npy"}}


@pytest.fixture
def declared(tmp_path: Path) -> dict[str, Any]:
    """A mix of 0.7 and 0.3 of sources with 90 and 40 samples."""
    parts = [
        write_npy(tmp_path, "many", 0, 90) | {"weight": 0.7},
        write_npy(tmp_path, "few", 1000, 40) | {"weight": 0.3},
    ]
    return {"mix": parts, "batch_size": 10, "num_loaders": 0, "shuffle": True, "seed": 4}


def delivered(pipeline: Pipeline, batches: int) -> Iterator[AnyArray]:
    for _ in range(batches):
        batch = pipeline.take()
        yield np.asarray(batch.tops["data"]).ravel().copy()
        pipeline.release(batch)


def noise(sample: Sample, rng: np.random.Generator) -> AnyArray:
    return rng.integers(1 << 60, size=1)


def test_a_sample_of_a_large_weight_is_augmented_anew_each_time(tmp_path: Path, declared: dict[str, Any]) -> None:
    first, second = declared["mix"]
    uneven = declared | {"mix": [first | {"weight": 0.05}, second | {"weight": 0.95}]}
    with open_pipeline(check_parameters(uneven), Hooks(decode=noise), base_dir=tmp_path) as pipeline:
        drawn = np.concatenate(list(delivered(pipeline, 39)))
    assert len(np.unique(drawn)) == len(drawn) == 390
