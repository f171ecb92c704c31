"""Writes digits_train.h5 and digits_test.h5 beside this script, out of the digits that scikit-learn ships.

    python make_data.py

450 images, drawn at random with every digit in its proportion, are held out for testing: 9 batches of 50.
"""

from __future__ import annotations

from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

_TEST_IMAGES = 450


def write(path: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    """`images`: shape (count, 1, 8, 8), 0 to 16. `labels`: shape (count,), 0 to 9."""
    with h5py.File(path, "w") as file:
        # Without times the file is the same, byte for byte, whenever it is made.
        file.create_dataset("data", data=images, track_times=False)
        file.create_dataset("label", data=labels, track_times=False)


def main() -> None:
    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]
    labels = digits.target.astype(np.uint8)
    parts = train_test_split(images, labels, test_size=_TEST_IMAGES, stratify=labels, random_state=0)
    train_images, test_images, train_labels, test_labels = parts
    folder = Path(__file__).parent
    write(folder / "digits_train.h5", train_images, train_labels)
    write(folder / "digits_test.h5", test_images, test_labels)


if __name__ == "__main__":
    main()
