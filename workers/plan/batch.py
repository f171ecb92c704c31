"""A batch as the trainer sees it: views on its slot, and which samples it holds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec
import numpy as np

from ..base.specs import IndexArray, Rows
from ..order.epoch_order import EpochOrder
from ..transport.messages import DrawnBatch


class Batch(msgspec.Struct, eq=False, dict=True):
    """One filled batch; its arrays are the slot's own memory, valid until the batch is released.

    `number`: counts the batches of this run.  `epoch`, `position`: where its first row stands.  `rows`: how many.
    `tops`: by name an array of shape (rows, *sample shape), C-contiguous, or RaggedRows if the samples' shapes vary.
    """

    number: int
    epoch: int
    position: int
    rows: int
    tops: Mapping[str, Rows]
    group: int
    order: EpochOrder | None
    replaced: Mapping[int, int]
    shard: int = 0
    """Of a stream: which of its shards gave the batch."""
    drawn: DrawnBatch | None = None
    """Of a sampler: what it drew."""

    @cached_property
    def indices(self) -> IndexArray:
        """The sample of each row, shape (rows,); for a bad sample the one that took its place.

        A stream's samples have no indices: these count what its shard has given in this epoch.
        """
        if self.drawn is not None:
            indices: IndexArray = np.frombuffer(self.drawn.indices, np.int64).copy()
        elif self.order is not None:
            indices = self.order.indices(self.epoch * self.order.samples + self.position, self.rows)
        else:
            indices = np.arange(self.position, self.position + self.rows, dtype=np.int64)
        for row, index in self.replaced.items():
            indices[row] = index
        return indices

    @property
    def epochs(self) -> IndexArray:
        """The epoch of each sample, shape (rows,): a batch that wraps holds the end of one and the start of the next.

        In a mix each sample has the epoch of its own source, as hooks see it.
        """
        if self.drawn is not None:
            epochs, rows = zip(*self.drawn.epochs, strict=True)
            return np.repeat(np.array(epochs, np.int64), rows)
        if self.order is None:
            return np.full(self.rows, self.epoch, np.int64)
        return self.order.with_epochs(self.epoch * self.order.samples + self.position, self.rows)[1]
