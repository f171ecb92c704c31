"""Counts the rounds of epochs that all have the same length: arithmetic, O(1) for any batch.

A *round* is one batch for each rank: batch k of every rank is round k. Positions are global (see epoch_order).
rounds.py cuts the same rounds one after the other, also of epochs whose lengths differ.
"""

from __future__ import annotations

import msgspec

from ..api import Parameters, without_source
from ..base import ParameterError, derive_key

_TASK_BYTES = 4 << 20
_TASK_S = 0.004
"""Twice the useful time, because the trial of a row takes twice as long beside other work."""
_MOST_BATCHES = 64


class Batches:
    """The batches of one rank; every rank has the same number of them, but for `partial`.

    `last_batch` applies when an epoch is not a multiple of batch_size × world_size:

    - wrap: the endless sequence of epochs is cut into full batches. With `epochs`, samples of one more epoch fill the
      last round.
    - drop: each epoch has as many full rounds as fit; the samples behind them are skipped.
    - partial: the last round of an epoch splits the remaining samples among the ranks, in parts whose sizes differ by
      one at most; a rank that gets none has a round less in that epoch.

    `start`: the global position of the first round, to resume or to skip. Batches with `start=other.round_start(k)` and
    otherwise equal arguments are exactly those of `other` from k on. batch_size, world_size and last_batch may differ,
    too, and still no sample of the epoch comes twice. `epochs` counts from epoch 0 for any `start`.

    Raises ParameterError if a rank would receive no samples.
    """

    def __init__(self, samples: int, parameters: Parameters, start: int = 0) -> None:
        self.samples = samples
        self.parameters = without_source(parameters)
        self.world_size = parameters.ranks
        self.start = start
        self.round_rows = parameters.batch_size * self.world_size
        self._first_epoch, skipped = divmod(start, samples)
        self.batches_per_epoch = self._rounds_in(samples)
        """The number of this rank's batches in a whole epoch, rounded up for wrap: an epoch may end within a batch."""
        self._first_rounds = self._rounds_in(samples - skipped)
        self._check_every_rank_gets_some()
        self.total = self._total()
        """The number of this rank's batches from `start` to the end of the last epoch; None without an end."""

    def begun_at(self, start: int, epochs: int | None) -> Batches:
        """Return these batches from the global position `start` to the end of `epochs` epochs."""
        return Batches(self.samples, msgspec.structs.replace(self.parameters, epochs=epochs), start)

    def _total(self) -> int | None:
        epochs = self.parameters.epochs
        if epochs is None:
            return None
        if self.parameters.last_batch == "wrap":
            return max(0, -(-(epochs * self.samples - self.start) // self.round_rows))
        if self._first_epoch >= epochs:
            return 0
        return self._first_rounds + (epochs - self._first_epoch - 1) * self.batches_per_epoch

    def round_start(self, k: int) -> int:
        """Return the global position where round k begins: the position to store after k batches."""
        if self.parameters.last_batch == "wrap" or k < self._first_rounds:
            return self.start + k * self.round_rows
        epochs, number = divmod(k - self._first_rounds, self.batches_per_epoch)
        return (self._first_epoch + 1 + epochs) * self.samples + number * self.round_rows

    def ends_epoch(self, k: int) -> bool:
        """Return true if an epoch ends with round k or within it; the same for all ranks, but for `partial`."""
        return self.round_start(k) // self.samples < self.round_start(k + 1) // self.samples

    def _rounds_in(self, rows: int) -> int:
        whole, rest = divmod(rows, self.round_rows)
        least = {"wrap": 1, "drop": self.round_rows, "partial": self.parameters.own_rank + 1}
        return whole + (rest >= least[self.parameters.last_batch])

    @property
    def unequal_rest(self) -> int:
        """The samples in the last round of an epoch if only some ranks get one of them, else 0."""
        rest = self.samples % self.round_rows
        return rest if self.parameters.last_batch == "partial" and rest < self.world_size else 0

    def _check_every_rank_gets_some(self) -> None:
        last_batch = self.parameters.last_batch
        sizes = f"samples={self.samples}, batch_size={self.parameters.batch_size}, world_size={self.world_size}"
        if last_batch == "drop" and not self.batches_per_epoch:
            raise ParameterError(
                f"last_batch is 'drop', and an epoch has no full batch for every rank: {sizes}, but "
                f"{self.round_rows} samples are needed; use a smaller batch_size, or last_batch 'wrap' or 'partial'"
            )
        if last_batch == "partial" and self.samples < self.world_size:
            raise ParameterError(
                f"last_batch is 'partial', and an epoch has fewer samples than there are ranks, so some would get none:"
                f" {sizes}; use last_batch 'wrap', or fewer ranks"
            )


def rand_skip_of(seed: int, rand_skip: int) -> int:
    """Return the number of samples to skip at the start: uniform below `rand_skip`, equal for all ranks, or 0 for 0."""
    return derive_key(seed, "rand_skip") * rand_skip >> 64


def batches_per_task(batch_bytes: int, batch_size: int, seconds_per_row: float, ahead: int | None = None) -> int:
    """Return the number of batches that share a task: more than one only if they are small and quickly made.

    `ahead`: the bound on prefetched batches, or None. At least two tasks share that many.
    """
    by_size = _TASK_BYTES // max(1, batch_bytes)
    by_time = int(_TASK_S / max(1e-9, seconds_per_row * batch_size))
    return max(1, min(by_size, by_time, _MOST_BATCHES if ahead is None else ahead // 2))
