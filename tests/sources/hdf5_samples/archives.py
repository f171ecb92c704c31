"""HDF5 files with a data set per sample, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
from blobfeed.workers.api import AnyArray

from blobfeed import RaggedRows, Source
from tests.support.stored import rows_of

KIND = "hdf5_samples"
SAMPLES = 23


def archive(path: Path, samples: Sequence[AnyArray] | AnyArray, first: int = 0, **options: Any) -> None:
    """`samples` as trajectory_<number>, with attributes: a number, an array and a name for each."""
    with h5py.File(path, "w") as file:
        for number, sample in enumerate(samples, first):
            dataset = file.create_dataset(f"trajectory_{number}", data=sample, **options)
            dataset.attrs.update({"label": number % 7, "pose": np.arange(3.0) + number, "name": f"no. {number}"})


def labels(samples: int) -> dict[str, AnyArray]:
    return {
        "label": np.arange(samples) % 7,
        "pose": np.arange(3.0) + np.arange(samples)[:, None],
        "name": np.array([f"no. {number}".encode() for number in range(samples)]),
    }


def assert_ragged(source: Source, indices: Sequence[int], samples: Sequence[AnyArray]) -> None:
    rows = rows_of(source, indices)["data"]
    assert isinstance(rows, RaggedRows)
    for row, index in enumerate(indices):
        found = rows.get(row)
        assert found.shape == samples[index].shape
        assert found.tolist() == samples[index].tolist()
