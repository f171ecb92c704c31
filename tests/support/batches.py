"""Batches from plain numbers, and the range of each by arithmetic: what the rounds of an order are compared with."""

from __future__ import annotations

from typing import NamedTuple

from blobfeed.workers.api import LastBatch, Parameters
from blobfeed.workers.order import Batches


class BatchRange(NamedTuple):
    """The range of one batch: global positions start … start+rows-1."""

    start: int
    rows: int


class RankedBatches(Batches):
    """The batches of one rank, with the range of each."""

    def batch(self, k: int) -> BatchRange:
        """Return the k-th batch of this rank; raises IndexError if there is no such batch."""
        total, rank = self.total, self.parameters.rank or 0
        if k < 0 or (total is not None and k >= total):
            raise IndexError(f"batch {k} of {total} batches")
        start = self.round_start(k)
        batch_size = self.parameters.batch_size
        rest = self.samples - start % self.samples
        if self.parameters.last_batch != "partial" or rest >= self.round_rows:
            return BatchRange(start + rank * batch_size, batch_size)
        rows, longer = divmod(rest, self.world_size)
        return BatchRange(start + rank * rows + min(rank, longer), rows + (rank < longer))


def batches(
    samples: int,
    batch_size: int,
    last_batch: LastBatch = "wrap",
    epochs: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
) -> RankedBatches:
    parameters = Parameters(
        batch_size=batch_size, last_batch=last_batch, epochs=epochs, rank=rank, world_size=world_size
    )
    return RankedBatches(samples, parameters, start)
