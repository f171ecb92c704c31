"""Time Keras' `fit` over small rows, from plain arrays and from a KerasDataset: `python -m benchmarks.keras_fit`.

The arrays are loaded and the dataset is opened once, before; the first epoch, which compiles, does not count. They take
turns, so that a busy moment of the machine meets both.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras  # type: ignore[import-untyped]
import numpy as np

from blobfeed import KerasDataset

_ROWS = 6400
_BATCH = 64
_ROUNDS = 21


def seconds(fit: Callable[..., object], *data: Any, **options: Any) -> float:
    begun = time.perf_counter()
    fit(*data, verbose=0, **options)
    return time.perf_counter() - begun


def rounds_of(x: Path, y: Path) -> list[tuple[float, float]]:
    """Seconds of an epoch from the arrays, and from the dataset."""
    model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    arrays = np.load(x), np.load(y)
    with KerasDataset({"npy": {"data": str(x), "label": str(y)}}, batch_size=_BATCH, shuffle=True) as dataset:
        rounds = [
            (seconds(model.fit, *arrays, batch_size=_BATCH), seconds(model.fit, dataset)) for _ in range(1 + _ROUNDS)
        ]
    return rounds[1:]


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        x, y = Path(folder, "x.npy"), Path(folder, "y.npy")
        np.save(x, rng.random((_ROWS, 64), np.float32))
        np.save(y, rng.integers(10, size=_ROWS))
        rounds = rounds_of(x, y)
    arrays, dataset = (statistics.median(each) for each in zip(*rounds, strict=True))
    ratio = statistics.median(dataset / arrays for arrays, dataset in rounds)
    print(f"`fit` over {_ROWS:,} rows of 64 numbers, batches of {_BATCH}, backend {keras.config.backend()}\n")
    print("| from | seconds |\n|---|---:|")
    print(f"| arrays | {arrays:.3f} |\n| KerasDataset | {dataset:.3f} |\n")
    print(f"ratio {ratio:.2f}, median of {_ROUNDS} rounds")


if __name__ == "__main__":
    main()
