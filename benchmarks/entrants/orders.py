"""The order of the samples for entrants that have none of their own: shuffled anew each epoch, without end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def shuffled_batches(samples: int, batch_size: int, seed: int = 0) -> Iterator[NDArray[np.int64]]:
    """Whole batches of indices; what does not fill a batch at the end of an epoch is left out."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(samples)
        for start in range(0, samples - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
