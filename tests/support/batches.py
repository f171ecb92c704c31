"""Batches from plain numbers, and the range of each by arithmetic: what the rounds of an order are compared with."""

from __future__ import annotations

from typing import NamedTuple

from blobfeed.workers.api import LastBatch, Parameters
from blobfeed.workers.order import At, Cut


class BatchRange(NamedTuple):
    """The range of one batch: global positions start … start+rows-1."""

    start: int
    rows: int


class RankedBatches:
    """The batches of one rank from the global position `start` on, with the range of each; every epoch is as long."""

    def __init__(self, samples: int, parameters: Parameters, start: int = 0) -> None:
        self.samples, self.parameters = samples, parameters
        self.world_size, self.round_rows = parameters.ranks, parameters.batch_size * parameters.ranks
        self._cut, self._start = Cut(parameters, samples), At(*divmod(start, samples))
        self._cut.require()
        self.batches_per_epoch = self._cut.rounds_in(samples)
        self.total = self._cut.count(self._start, parameters.epochs)

    def round_start(self, k: int) -> int:
        """Return the global position where round k begins."""
        epoch, item = self._cut.start(self._start, k)
        return epoch * self.samples + item

    def ends_epoch(self, k: int) -> bool:
        """Return true if an epoch ends with round k or within it."""
        return self.round_start(k) // self.samples < self.round_start(k + 1) // self.samples

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
