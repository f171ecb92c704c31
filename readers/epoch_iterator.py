"""Epochs of one length over a reader, for trainers that look at batches before they train."""

from __future__ import annotations

from collections.abc import Iterator

from .batch_reader import BatchReader
from .delivery import NamedBatch

_PEEK = 2
"""The most batches that Keras and TensorFlow draw and throw away before they begin, to learn what a model gets."""


class EpochIterator:
    """The reader's batches without end, in epochs of the length of one loop.

    The first epoch after a loaded state goes on into the next loop, so that every epoch has the same length. The rest
    of an epoch that ended early is skipped, unless the trainer only looked at its first batches: then the next epoch
    begins with these, once. A trainer of one step at a time must not get the same batches again and again.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.length = reader.batches_per_loop
        self.begun = 0
        """The number of epochs so far."""
        self._count = 0
        self._restart()

    def _restart(self) -> None:
        self._loop: Iterator[NamedBatch] = iter(self._reader)
        self._replayed = False
        self._drawn: list[NamedBatch] = []
        self._again: list[NamedBatch] = []

    def begin(self) -> None:
        """Begin an epoch."""
        if not self._reader.is_newest(self._loop):
            self._restart()
            self._count = 0
        self.begun += 1
        left_early = 0 < self._count != self.length
        self._replayed = left_early and self._count <= _PEEK and not self._replayed
        self._again = self._drawn + self._again if self._replayed else []
        if left_early and not self._replayed:
            self._loop = iter(self._reader)
        self._count = 0
        self._drawn = []

    def next(self) -> NamedBatch:
        """Return the epoch's next batch; after its last one, the first of the next epoch."""
        if self._reader.was_moved:  # the epoch keeps its count: if it began anew, it would seem to be left early
            self._restart()
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
