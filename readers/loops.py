"""What one `for batch in reader` is: arithmetic over global positions, no data."""

from __future__ import annotations

from dataclasses import dataclass

from ..workers.batch_plan import BatchPlan, LastBatch


@dataclass(frozen=True, slots=True)
class Loops:
    """Cuts the endless sequence of batches into loops of `epochs` epochs each (None: one loop without end).

    With `drop` and `partial` a loop begins and ends where an epoch does. With `wrap`, where an epoch may end inside a
    batch, every loop has the same number of full batches, enough for its epochs, and the next loop goes on with the
    batch that follows: nothing is left out or repeated, and `len()` does not change from loop to loop.
    """

    samples: int
    batch_size: int
    last_batch: LastBatch
    world_size: int
    epochs: int | None

    @property
    def batches(self) -> int | None:
        """Batches of one whole loop."""
        return self._plan(0, self.epochs).total

    def remaining(self, position: int) -> int | None:
        """Batches from a global position, where a batch begins, to the end of the loop that it lies in."""
        if self.epochs is None:
            return None
        if self.last_batch == "wrap":
            return self._wrap_batches - self._number(position) % self._wrap_batches
        return self._plan(position, (position // self._loop_samples + 1) * self.epochs).total

    def next_loop(self, position: int) -> int:
        """Where the loop after the one that holds a global position begins; an endless loop has none after it."""
        if self.epochs is None:
            return position
        if self.last_batch == "wrap":
            rounds = self._wrap_batches - self._number(position) % self._wrap_batches
            return position + rounds * self._round
        return (position // self._loop_samples + 1) * self._loop_samples

    @property
    def _round(self) -> int:
        return self.batch_size * self.world_size

    @property
    def _loop_samples(self) -> int:
        return self.samples * (self.epochs or 1)

    @property
    def _wrap_batches(self) -> int:
        return -(-self._loop_samples // self._round)

    def _number(self, position: int) -> int:
        return position // self._round

    def _plan(self, start: int, epochs: int | None) -> BatchPlan:
        return BatchPlan(self.samples, self.batch_size, self.last_batch, epochs, 0, self.world_size, start)
