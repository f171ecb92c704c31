"""The protocol by which the trainer receives its batches: ProcessFeed from loaders, InlineFeed made in its own process.

The trainer says each time from which batch on it wants them, and which it has released, so a message that comes twice
changes nothing. A call that Ctrl-C has broken off is not repeated: the trainer ends the run, and begins another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from ..api import Statistics
from ..plan import Batch
from ..transport import Count, LoaderState, StatusBoard


class Held:
    """The batches that have come to the trainer and are not released, by their place in the sequence.

    `upto`: all others below that are released; those that are not are on loan.
    """

    def __init__(self) -> None:
        self.batches: dict[int, object] = {}
        """In the order in which they came."""
        self.upto = 0

    def release(self, place: int) -> None:
        """Let go of the batch at that place, whichever came before it or behind it."""
        self.upto = max(self.upto, place + 1)
        del self.batches[place]

    @property
    def loans(self) -> tuple[int, ...]:
        return tuple(takewhile(lambda place: place < self.upto, self.batches))


class Feed(Protocol):
    """Gives the batches of one run, some at a time."""

    def next(self, wanted: int, held: Held) -> Sequence[Batch]:
        """Return the next batches, from `wanted` on in their sequence; waits for them at most `timeout_s`.

        Raises SampleError, SourceError, TooManyBadSamples,
        EndOfData, LoaderDied, AssemblerDied, and the same again after the first of them. Raises PipelineStalled if no
        batch came in time or all slots are held.
        """

    def ready(self, wanted: int) -> Sequence[Batch]:
        """Return the next batches, from `wanted` on, if they have come, else none; raises what `next` raises."""

    def note_start(self) -> None:
        """Record that the trainer has its first batch."""

    def release(self, held: Held) -> None:
        """Give back the slots of the batches that are not held any more."""

    def states(self) -> list[LoaderState]:
        """Return what each loader is doing."""

    def statistics(self) -> Statistics:
        """Return the counts, after `close` the last ones; the number of batches that the trainer has taken is 0."""

    def close(self) -> None:
        """End what runs, then give everything back. May be repeated."""


def counts_on(board: StatusBoard) -> Statistics:
    """Return the counts of a feed that are on its board."""
    counts = board.counts
    return Statistics(
        stalls=counts[Count.STALLS],
        stall_s=counts[Count.WAITED_NS] / 1e9,
        start_s=counts[Count.START_NS] / 1e9,
        loaders=counts[Count.LOADERS],
        loader_deaths=counts[Count.LOADER_DEATHS],
        replaced=counts[Count.REPLACED],
        dropped_messages=counts[Count.DROPPED_MESSAGES],
        tasks=counts[Count.TASKS],
    )
