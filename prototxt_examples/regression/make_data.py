"""Writes iris_train.h5 and iris_test.h5 beside this script, out of the iris measurements that scikit-learn ships.

    python make_data.py

30 of the 150 flowers, ten of each species, are held out for testing.
"""

from __future__ import annotations

from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_iris  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

_TEST_FLOWERS = 30


def write(path: Path, flowers: NDArray[np.float32]) -> None:
    """`flowers`: shape (count, 4), in cm: length and width of the sepal, length and width of the petal."""
    with h5py.File(path, "w") as file:
        # Without times the file is the same, byte for byte, whenever it is made.
        file.create_dataset("measures", data=flowers[:, :3], track_times=False)
        file.create_dataset("petal_width", data=flowers[:, 3:], track_times=False)


def main() -> None:
    iris = load_iris()
    train, test = train_test_split(
        iris.data.astype(np.float32), test_size=_TEST_FLOWERS, stratify=iris.target, random_state=0
    )
    folder = Path(__file__).parent
    write(folder / "iris_train.h5", train)
    write(folder / "iris_test.h5", test)


if __name__ == "__main__":
    main()
