"""No workers at all: read, stack, go on. `batched`: whole batches at a time, into one array that is used again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..reading import Array, stack
from ..works import Work
from . import Batch
from .orders import batches_of, into_blob, shuffled_batches

_LARGE_ROW_ITEMS = 1 << 14
"""Rows of so many are converted one by one; smaller ones as a batch, once they are gathered."""


@contextmanager
def open_batches(work: Work, samples: int, batched: bool = False) -> Iterator[Iterator[Batch]]:
    yield _whole_batches(work, samples) if batched else _single_samples(work, samples)


def _single_samples(work: Work, samples: int) -> Iterator[Batch]:
    reader = work.reader(samples)
    for indices in shuffled_batches(samples, work.batch_size):
        data, labels = stack([reader.one(int(index)) for index in indices])
        yield data.astype(np.dtype(work.dtype), copy=False), labels


def _whole_batches(work: Work, samples: int) -> Iterator[Batch]:
    reader, memory = work.reader(samples), list[Array]()

    def again(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if not memory:
            converts = math.prod(shape[1:]) >= _LARGE_ROW_ITEMS
            memory.append(np.empty(shape, work.dtype if converts else dtype))
        return memory[0]

    yield from into_blob(work, (reader.many(indices, again) for indices in batches_of(work, samples)))
