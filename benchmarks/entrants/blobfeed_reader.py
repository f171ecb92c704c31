"""blobfeed as a plain Python loop reads it: `for batch in BatchReader(...)`, NumPy arrays.

`copy=True` gives arrays of one's own, `copy=False` the slot itself. Where floats are wanted, they are converted into an
array that was there before, as a trainer's own code would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from blobfeed.readers.batch_reader import BatchReader

from ..works import Work
from . import WORKERS, Batch


@contextmanager
def open_batches(work: Work, samples: int, copy: bool = True) -> Iterator[Iterator[Batch]]:
    parameters = {"batch_size": work.batch_size, "num_loaders": WORKERS, **work.parameters}
    with BatchReader(work.source(samples), copy=copy, **parameters) as reader:
        yield _batches(reader, work)


def _batches(reader: BatchReader, work: Work) -> Iterator[Batch]:
    blob = np.ones((work.batch_size, *work.shape), work.dtype)
    for batch in reader:
        data, labels = batch.values()
        if data.dtype == work.dtype:
            yield data, labels
        else:
            np.copyto(blob, data)
            yield blob, labels
