"""HDF5 files for several tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
from blobfeed.workers.api import AnyArray

from tests.support.stored import some_array

SAMPLES = 41


def write(path: Path, arrays: Mapping[str, AnyArray], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return path


def three_files(folder: Path) -> dict[str, AnyArray]:
    whole = {"data": some_array((30, 3, 4), "f4"), "label": np.arange(30)}
    for number, (start, stop) in {2: (0, 4), 10: (4, 5), 11: (5, 30)}.items():
        write(folder / f"part{number}.h5", {name: array[start:stop] for name, array in whole.items()})
    return whole
