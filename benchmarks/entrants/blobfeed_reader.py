"""blobfeed as a plain Python loop reads it: `for batch in BatchReader(...)`, NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from blobfeed import BatchReader

from ..works import Work
from . import Batch
from .orders import into_blob


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    parameters = {"batch_size": work.batch_size, "epochs": None, **work.parameters}
    with BatchReader(work.source(samples), **parameters) as reader:
        yield into_blob(work, (tuple(batch.values()) for batch in reader))
