"""A batch in the trainer: views on its slot, and the indices of its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from ..api import DirectRows, IndexArray, Rows
from ..order import At, Supply
from ..transport import Run


class SlotTops(dict[str, Rows]):
    """The tops of the batch in a slot. A slot's are made once, and used for each whole batch that comes to lie there.

    `lendable`: what the delivery knows of their memory.
    """

    lendable: Any = None


class Batch(msgspec.Struct, eq=False, dict=True):
    """One filled batch; its arrays are the slot's own memory, valid until the batch is released.

    `number`: counts the batches of this run.  `epoch`, `position`: those of its first row.  `rows`: their number.
    `tops`: by name an array of shape (rows, *sample shape), C-contiguous, or RaggedRows if the samples' shapes vary.
    `sequence`: its place in the sequence that the ledger keeps; a stream may have no batch at a place.
    """

    number: int
    epoch: int
    position: int
    rows: int
    tops: Mapping[str, Rows]
    sequence: int
    runs: Sequence[Run]
    supply: Supply
    replaced: Mapping[int, int] = {}
    drawn: bytes = b""
    """The samples, int64, if a sampler drew them."""
    together: int = 1
    """The batches of its announcement, it included, if it is the first of them."""
    end: At | None = None
    """The place where the round behind it begins, unless that is computed."""

    make: Callable[[DirectRows], Mapping[int, int]] | None = None
    """Set until the batch is taken if its rows are still to be made: `make(into)` makes the tops of `into` right there
    and the others in the slot, and returns `replaced`. May be repeated after an interrupt, into other memory. Raises
    what `Feed.next` raises."""

    @cached_property
    def indices(self) -> IndexArray:
        """The sample index of each row, shape (rows,); for a bad sample that of its replacement.

        A stream's samples have no indices: these count the samples of its shard in this epoch.
        """
        if self.drawn:
            indices: IndexArray = np.frombuffer(self.drawn, np.int64).copy()
        else:
            indices = np.concatenate([self.supply.samples_of(run)[0] for run in self.runs])
        for row, index in self.replaced.items():
            indices[row] = index
        return indices

    @property
    def epochs(self) -> IndexArray:
        """The epoch of each sample, shape (rows,). A batch that wraps has samples of two or more epochs.

        In a mix each sample has the epoch of its own source, the same that hooks receive.
        """
        return np.concatenate([self.supply.epochs_of(run) for run in self.runs])
