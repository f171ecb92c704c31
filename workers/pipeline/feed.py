"""The protocol by which the trainer receives its batches: ProcessFeed from loaders, InlineFeed made in its own process.

A group is the content of a slot, one batch or several. `next` returns the same group until it is accepted, so that a
call that Ctrl-C has interrupted may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..api import Statistics
from ..plan import Batch
from ..transport import Count, LoaderState, StatusBoard


class Feed(Protocol):
    """Gives the batches of one run, group by group."""

    def next(self) -> Sequence[Batch]:
        """Return the batches of the next group; waits for it at most `timeout_s`.

        Raises SampleError, SourceError, TooManyBadSamples, EndOfData, LoaderDied, AssemblerDied, and the same again
        after the first of them. Raises PipelineStalled if no batch came in time or all slots are held.
        """

    def ready(self) -> Sequence[Batch]:
        """Return the batches of the next group if it has come, else none; raises what `next` raises."""

    def accept(self, group: int) -> None:
        """Record `group` as received: the next one is another. May be repeated, as after a KeyboardInterrupt."""

    def release(self, group: int) -> None:
        """Give the slot of `group` back."""

    def go_on(self) -> bool:
        """Go on with the next loop over a stream; returns False, and does nothing, unless the last one has ended."""

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
