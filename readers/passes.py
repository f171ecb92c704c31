"""Passes over a reader for trainers that look before they train."""

from __future__ import annotations

from collections.abc import Iterator

from .batch_reader import BatchReader
from .delivery.named_batches import NamedBatch

_PEEK = 2
"""Batches that Keras and TensorFlow may draw and throw away, to learn what a model gets, before they begin."""


class Passes:
    """The reader's batches without end, cut into passes of one loop's length.

    The first pass after a state was loaded goes on into the next loop, so that every pass is as long as was promised.
    What is left of a pass that ended early is skipped, unless it was only a peek: then the next pass begins with what
    was looked at. A pass is taken for a peek once: whoever trains one step at a time must not get the first batches for
    ever.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.length = reader.batches_per_loop
        self.begun = 0
        """Passes so far."""
        self.restart()

    def restart(self) -> None:
        """Go on with what the reader gives next: its state was changed."""
        self._loop: Iterator[NamedBatch] = iter(self._reader)
        self._count = 0
        self._replayed = False
        self._drawn: list[NamedBatch] = []
        self._again: list[NamedBatch] = []

    def begin(self) -> None:
        if self._reader.was_moved:
            self.restart()
        self.begun += 1
        left_early = 0 < self._count != self.length
        self._replayed = left_early and self._count <= _PEEK and not self._replayed
        self._again = self._drawn + self._again if self._replayed else []
        if left_early and not self._replayed:
            self._loop = iter(self._reader)
        self._count = 0
        self._drawn = []

    def next(self) -> NamedBatch:
        """The pass's next batch; after its last one, the first of the next pass."""
        if self._count == self.length:
            self.begin()
        batch = self._again.pop(0) if self._again else self._from_reader()
        self._count += 1
        if self._count <= _PEEK:
            self._drawn.append(batch)
        else:
            self._drawn.clear()
        return batch

    def _from_reader(self) -> NamedBatch:
        while True:
            try:
                return next(self._loop)
            except StopIteration:
                self._loop = iter(self._reader)
