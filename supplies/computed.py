"""The computed supply: the sample index at each position, as a function of (seed, epoch, position).

Global position g counts samples since the start of epoch 0: epoch = g // samples, position = g % samples. No order
stores a list: memory does not grow with the number of samples, and position 10**12 costs the same as position 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from ..workers.api import IndexArray, Parameters
from ..workers.base import ParameterError, derive_key
from ..workers.order import At, DrawnEpoch, Permutation, Rounds, Supply, keyed_permutation
from ..workers.transport import Run
from .walk import Walk

BLOCK = 8192
"""Positions computed together: enough to amortise NumPy's cost per call, few enough for the processor's cache."""


class Block(NamedTuple):
    """The samples at consecutive global positions, shape (positions,).

    `epochs`: the epoch of each sample if it does not follow from the position, shape (positions,); else None.
    """

    start: int
    samples: IndexArray
    epochs: IndexArray | None = None


_NOTHING = Block(0, np.empty(0, np.int64))


class EpochOrder(Supply):
    """Sample indices by global position. Results depend on the arguments alone, not on earlier calls.

    Threads may call concurrently: one iterates, another reads `Batch.indices`. So an order caches one immutable object,
    replaced by a single assignment, and each call uses the object that it read first.
    """

    name = "shuffle"
    is_computed = True
    fixed = ("samples", "seed", "shuffle", "order")

    declared: str = ""
    """The facts that define the order beyond samples, seed and `shuffle`. A state resumes only if they are equal."""

    def __init__(self, samples: int) -> None:
        if samples < 1:
            raise ParameterError(f"the number of samples is {samples}: an order needs at least one")
        self.items = samples
        self._samples = samples
        self._block = _NOTHING

    def indices(self, start: int, count: int) -> IndexArray:
        """Return the samples at global positions start … start+count-1 in a new array of shape (count,).

        The range may cross the ends of epochs. Successive small ranges are cut from one computed block.
        """
        out = np.empty(count, np.int64)
        done = 0
        while done < count:
            block = self._block_at(start + done)
            first = start + done - block.start
            part = block.samples[first : first + count - done]
            out[done : done + len(part)] = part
            done += len(part)
        return out

    def with_epochs(self, start: int, count: int) -> tuple[IndexArray, IndexArray]:
        """Return the samples at these positions and the epoch of each; no sample comes twice in one epoch."""
        epoch, first = divmod(start, self._samples)
        if first + count <= self._samples:
            epochs = np.empty(count, np.int64)
            epochs.fill(epoch)
            return self.indices(start, count), epochs
        return self.indices(start, count), np.arange(start, start + count, dtype=np.int64) // self._samples

    # ---- the verbs

    def land(self, given: Parameters, state: Mapping[str, int | str] | None = None) -> tuple[Supply, At]:
        if state is not None:
            return self, At(*divmod(int(state["position"]), self._samples))
        return self, At(*divmod(rand_skip_of(given.seed, given.rand_skip), self._samples))

    def rounds(self, given: Parameters, at: At) -> Rounds:
        return Walk(self, given, at)

    def samples_of(self, run: Run) -> tuple[IndexArray, IndexArray, IndexArray]:
        indices, epochs = self.with_epochs(run.epoch * self._samples + run.position, run.rows)
        return indices, epochs, indices

    def identify(self, given: Parameters, at: At) -> dict[str, int | str]:
        return {
            "position": at.epoch * self._samples + at.item,
            "samples": self._samples,
            "shuffle": str(given.shuffle),
            "order": self.declared,
            "world_size": given.ranks,
        }

    @property
    def samples(self) -> int:
        return self._samples

    def among(self, run: Run) -> range:
        return range(self._samples)

    def epochs_of(self, run: Run) -> IndexArray:
        return self.samples_of(run)[1]

    def epoch_of(self, given: Parameters, epoch: int) -> DrawnEpoch:
        return DrawnEpoch(self.indices(epoch * self._samples, self._samples))

    def batch_key(self, run: Run, batch_size: int) -> tuple[int, ...]:
        return (run.epoch * self._samples + run.position,)

    # ---- for its rounds

    def length(self, _epoch: int) -> int:
        return self._samples

    def run(self, row: int, epoch: int, item: int, items: int) -> Run:
        return Run(row, items, epoch, item)

    def affinity(self, run: Run, skipped: int) -> int | None:
        return self.window_at(run.epoch * self._samples + run.position + skipped)

    def window_at(self, position: int) -> int | None:
        """Return the window of a global position, numbered through all epochs; None if windows do not matter.

        Only positions of the same window share storage chunks. One loader decodes such a chunk once; several loaders
        would each decode it. Without chunks that are decoded as a whole, the choice of loader does not matter.
        """
        return None

    def _block_at(self, position: int) -> Block:
        """Return the block that holds a global position."""
        block = self._block
        if not 0 <= position - block.start < len(block.samples):
            self._block = block = self._compute_block(position)
        return block

    @abstractmethod
    def _compute_block(self, position: int) -> Block:
        """Compute a block of global positions around `position`."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_block": _NOTHING}


class SequentialOrder(EpochOrder):
    """Samples as they are stored, in every epoch."""

    def _compute_block(self, position: int) -> Block:
        start, first, end = block_around(position, self._samples)
        return Block(start, np.arange(first, end, dtype=np.int64))


class ShuffledOrder(EpochOrder):
    """A new uniform permutation of all samples in each epoch."""

    def __init__(self, samples: int, seed: int) -> None:
        super().__init__(samples)
        self._key_of = partial(derive_key, seed, "shuffle")
        self._permutation: tuple[int, Permutation] | None = None

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_permutation": None}

    def _compute_block(self, position: int) -> Block:
        start, first, end = block_around(position, self._samples)
        return Block(start, self._of_epoch(start // self._samples)(np.arange(first, end, dtype=np.int64)))

    def _of_epoch(self, epoch: int) -> Permutation:
        kept = self._permutation
        if kept is None or kept[0] != epoch:
            self._permutation = kept = epoch, keyed_permutation(self._samples, self._key_of(epoch))
        return kept[1]


def block_around(position: int, samples: int) -> tuple[int, int, int]:
    """Return the block that holds a global position, as (global position of its start, first, end) within one epoch."""
    within = position % samples
    first = within - within % BLOCK
    return position - within + first, first, min(first + BLOCK, samples)


def rand_skip_of(seed: int, rand_skip: int) -> int:
    """Return the number of samples to skip at the start: uniform below `rand_skip`, equal for all ranks, or 0 for 0."""
    return derive_key(seed, "rand_skip") * rand_skip >> 64
