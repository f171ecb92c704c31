"""The order of the samples, shuffled anew each epoch, and a blob, for entrants that have none of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..reading import Array, Labels
from ..works import Work
from . import Batch

Indices = NDArray[np.int64]

_WINDOW_CHUNKS = 16


def shuffled_batches(samples: int, batch_size: int, seed: int = 0) -> Iterator[Indices]:
    """Whole batches of indices; what does not fill a batch at the end of an epoch is dropped."""
    rng = np.random.default_rng(seed)
    while True:
        yield from _batches(rng.permutation(samples), batch_size)


def batches_of(work: Work, samples: int, seed: int = 0) -> Iterator[Indices]:
    """For those who read whole batches: if chunks are decompressed as a whole, windows of chunks are shuffled.

    Anyone who holds a window's chunks decompresses each of them once.
    """
    if not work.chunk:
        yield from shuffled_batches(samples, work.batch_size, seed)
    rng = np.random.default_rng(seed)
    while True:
        chunks = rng.permutation(samples // work.chunk)
        for start in range(0, len(chunks), _WINDOW_CHUNKS):
            window = chunks[start : start + _WINDOW_CHUNKS, None] * work.chunk + np.arange(work.chunk)
            yield from _batches(rng.permutation(window.reshape(-1)), work.batch_size)


def _batches(order: Indices, batch_size: int) -> Iterator[Indices]:
    for start in range(0, len(order) - batch_size + 1, batch_size):
        yield order[start : start + batch_size]


def into_blob(work: Work, batches: Iterable[tuple[Array, Labels]]) -> Iterator[Batch]:
    """Batches of another type are converted into an array that was there before, as a trainer's own code would."""
    blob = np.zeros((work.batch_size, *work.shape), work.dtype)
    for data, labels in batches:
        if data.dtype == blob.dtype:
            yield data, labels
        else:
            work.normalise(data, blob)
            yield blob, labels
