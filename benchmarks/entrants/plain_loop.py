"""No workers at all: read, stack, go on. `batched`: whole batches at a time, as a generator over arrays does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..reading import stack
from ..works import Work
from . import Batch
from .orders import shuffled_batches


@contextmanager
def open_batches(work: Work, samples: int, batched: bool = False) -> Iterator[Iterator[Batch]]:
    reader = work.reader(samples)

    def batches() -> Iterator[Batch]:
        for indices in shuffled_batches(samples, work.batch_size):
            data, labels = reader.many(indices) if batched else stack([reader.one(int(i)) for i in indices])
            yield data.astype(np.dtype(work.dtype), copy=False), labels

    yield batches()
