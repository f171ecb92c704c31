"""Keras on the digits, from a pair of .npy files, validated after every epoch."""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import h5py  # type: ignore[import-untyped]
import keras  # type: ignore[import-untyped]
import numpy as np

from blobfeed import KerasDataset

DIGITS = Path(__file__).parent.parent / "digits"


def write_pairs(folder: Path) -> None:
    """The digits as train_data.npy, train_label.npy, test_data.npy and test_label.npy."""
    for part in ("train", "test"):
        with h5py.File(DIGITS / f"digits_{part}.h5") as file:
            np.save(folder / f"{part}_data.npy", file["data"][...])
            np.save(folder / f"{part}_label.npy", file["label"][...])


def digits(folder: Path, part: str, shuffle: bool) -> KerasDataset:
    source = {"npy": {"data": f"{part}_data.npy", "label": f"{part}_label.npy"}}
    return KerasDataset(source, base_dir=folder, batch_size=64, shuffle=shuffle, seed=1, transform={"scale": 1 / 16})


keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(128, "relu"), keras.layers.Dense(10, "softmax")])
model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])

with tempfile.TemporaryDirectory() as name:
    write_pairs(Path(name))
    with digits(Path(name), "train", shuffle=True) as train, digits(Path(name), "test", shuffle=False) as test:
        history = model.fit(train, validation_data=test, epochs=10, verbose=2 if sys.stdout.isatty() else 0).history
        print(f"{history['val_accuracy'][-1]:.1%} of {test.reader.samples} test digits right")
