"""The epoch order: which sample stands at which position, as a function of (seed, epoch, position).

Global position g counts samples since the start of epoch 0: epoch = g // samples, position = g % samples. No order
keeps a list: memory does not grow with the number of samples, and position 10**12 costs what position 0 does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import numpy as np

from ..base.errors import ParameterError
from ..base.keys import derive_key
from ..base.specs import IndexArray
from .permutation import Permutation, keyed_permutation

BLOCK = 8192
"""Positions computed together: enough to hide NumPy's cost per call, few enough to stay in the processor's cache."""

_NOTHING: IndexArray = np.empty(0, np.int64)


class EpochOrder(ABC):
    """Sample indices by global position; the same for equal arguments, whatever was asked before."""

    samples: int
    """Positions in one epoch."""

    declared: str = ""
    """What the order depends on beside samples, seed and `shuffle`: in another one a state would go on wrongly."""

    def __init__(self, samples: int) -> None:
        if samples < 1:
            raise ParameterError(f"the number of samples is {samples}: an order needs at least one")
        self.samples = samples
        self._block_start, self._block = 0, _NOTHING

    def indices(self, start: int, count: int) -> IndexArray:
        """The samples at global positions start … start+count-1; shape (count,), the caller's own.

        May cross the borders of epochs. Successive small ranges are cut from one computed block.
        """
        out = np.empty(count, np.int64)
        done = 0
        while done < count:
            part = self._rest_of_block(start + done)[: count - done]
            out[done : done + len(part)] = part
            done += len(part)
        return out

    def window_at(self, position: int) -> int | None:
        """The window that holds a global position, numbered through all epochs; None if that need not be known.

        Only positions of one window have storage chunks in common: given to one loader, they are decoded once, and
        given to several, once by each. Without chunks that are decoded as a whole it is all the same.
        """
        return None

    def _rest_of_block(self, position: int) -> IndexArray:
        offset = position - self._block_start
        if not 0 <= offset < len(self._block):
            self._block_start, self._block = self._compute_block(position)
            offset = position - self._block_start
        return self._block[offset:]

    @abstractmethod
    def _compute_block(self, position: int) -> tuple[int, IndexArray]:
        """Some range of global positions around `position`: its start, and its samples."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_block": _NOTHING}


class SequentialOrder(EpochOrder):
    """Samples as they are stored, in every epoch."""

    def _compute_block(self, position: int) -> tuple[int, IndexArray]:
        start, first, end = block_around(position, self.samples)
        return start, np.arange(first, end, dtype=np.int64)


class ShuffledOrder(EpochOrder):
    """A new uniform permutation of all samples in each epoch."""

    def __init__(self, samples: int, seed: int) -> None:
        super().__init__(samples)
        self._key_of = partial(derive_key, seed, "shuffle")
        self._permutation: tuple[int, Permutation] | None = None

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_permutation": None}

    def _compute_block(self, position: int) -> tuple[int, IndexArray]:
        start, first, end = block_around(position, self.samples)
        return start, self._of_epoch(start // self.samples)(np.arange(first, end, dtype=np.int64))

    def _of_epoch(self, epoch: int) -> Permutation:
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = epoch, keyed_permutation(self.samples, self._key_of(epoch))
        return self._permutation[1]


def block_around(position: int, samples: int) -> tuple[int, int, int]:
    """(global position of its start, first, end) of the block within one epoch that holds a global position."""
    within = position % samples
    first = within - within % BLOCK
    return position - within + first, first, min(first + BLOCK, samples)
