"""A batch in the trainer: views on its slot, and the indices of its samples."""

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

    `number`: counts the batches of this run.  `epoch`, `position`: those of its first row.  `rows`: their number.
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
    """The stream's shard from which the batch comes."""
    drawn: DrawnBatch | None = None
    """The sampler's draws for the batch, if there is a sampler."""

    @cached_property
    def indices(self) -> IndexArray:
        """The sample index of each row, shape (rows,); for a bad sample that of its replacement.

        A stream's samples have no indices: these count the samples of its shard in this epoch.
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
        """The epoch of each sample, shape (rows,). A batch that wraps has samples of two or more epochs.

        In a mix each sample has the epoch of its own source, the same that hooks receive.
        """
        if self.drawn is not None:
            epochs, rows = zip(*self.drawn.epochs, strict=True)
            return np.repeat(np.array(epochs, np.int64), rows)
        if self.order is None:
            return np.full(self.rows, self.epoch, np.int64)
        return self.order.with_epochs(self.epoch * self.order.samples + self.position, self.rows)[1]
