"""An input layer of one's own: `decode` runs in the loader processes, once for each sample and epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from blobfeed import MultiProcessInputLayer

Arrays = Mapping[str, NDArray[np.generic]]


class ShiftedDigitsLayer(MultiProcessInputLayer):
    """Digits moved by up to `max_shift` numbers in height and width: a net that sees them learns not to mind."""

    extra_parameters: ClassVar[Mapping[str, object]] = {"max_shift": 1}

    def decode(self, sample: Arrays, rng: np.random.Generator) -> Arrays:
        # `rng` belongs to this sample in this epoch: the same shifts again for the same seed, however many loaders.
        most = self.extra["max_shift"]
        assert isinstance(most, int), "checked in setup against the type of its default"
        down, right = rng.integers(-most, most, endpoint=True, size=2)
        return {"data": shifted(sample["data"], down, right), "label": sample["label"]}


def shifted(image: NDArray[np.generic], down: int, right: int) -> NDArray[np.generic]:
    """`image`, shape (channels, height, width), moved; zeros come in from outside."""
    height, width = image.shape[1:]
    moved = np.zeros_like(image)
    moved[:, max(down, 0) : height + down, max(right, 0) : width + right] = image[
        :, max(-down, 0) : height - down, max(-right, 0) : width - right
    ]
    return moved
