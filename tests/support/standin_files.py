"""Small data files for the tests of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
from blobfeed.workers.api import AnyArray
from numpy.typing import NDArray

from blobfeed import Sample


def write_hdf5(path: Path, **arrays: NDArray[Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def write_images(path: Path, samples: int = 20, dtype: str = "uint8") -> Path:
    """`data`: samples × 3 × 4 × 5, each pixel another number; `label`: the sample's index, int64."""
    count = samples * 3 * 4 * 5
    data = (np.arange(count) % 251).astype(dtype).reshape(samples, 3, 4, 5)
    return write_hdf5(path, data=data, label=np.arange(samples))


def images(samples: int = 20) -> NDArray[np.float32]:
    """What `write_images` writes as data."""
    return (np.arange(samples * 60) % 251).astype(np.float32).reshape(samples, 3, 4, 5)


def narrowed(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
    """A decode hook: every third sample is narrower. A loader imports the hook's module: this one brings no torch."""
    return {"data": sample["data"][:, :, : 3 + (sample.index % 3 > 0)], "label": sample["label"]}
