"""Pixels that compress and decode like photographs: crops of the two that scikit-learn brings along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def _originals() -> list[Pixels]:
    import cv2
    import sklearn.datasets  # type: ignore[import-untyped]

    folder = Path(sklearn.datasets.__file__).parent / "images"
    # Read by OpenCV: scikit-learn's own loader would want Pillow.
    return [np.asarray(cv2.imread(str(folder / name)), np.uint8) for name in ("china.jpg", "flower.jpg")]


def crops(height: int, width: int, count: int) -> Iterator[Pixels]:
    """`count` different crops, shape (height, width, 3), BGR; always the same ones."""
    rng = np.random.default_rng(0)
    originals = _originals()
    for index in range(count):
        picture = originals[index % 2]
        y = rng.integers(picture.shape[0] - height + 1)
        x = rng.integers(picture.shape[1] - width + 1)
        crop = picture[y : y + height, x : x + width]
        yield crop[:, ::-1] if rng.random() < 0.5 else crop


def stamp(sample: NDArray[np.generic], index: int) -> None:
    """Write `index` over the first 8 bytes of `sample`, C-contiguous, so that what is delivered can be checked."""
    sample.reshape(-1).view(np.uint8)[:8] = np.frombuffer(np.int64(index).tobytes(), np.uint8)


def stamped(rows: Pixels) -> NDArray[np.int64]:
    """The indices stamped on uint8 `rows`, shape (rows, ...)."""
    first = np.ascontiguousarray(rows.reshape(len(rows), -1)[:, :8])
    return first.view(np.int64).reshape(len(rows))
