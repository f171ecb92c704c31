"""`num_loaders: auto` if no user code runs: a LocalFeed at first, and loader processes when they are better.

Both ways give the same batches, so where one ends the other goes on; choice.py says when.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeGuard

from ..base.closing import close_all
from ..base.errors import BlobfeedError
from ..base.hooks import Hooks
from ..base.source import CacheCounts
from ..base.statistics import Statistics
from ..plan.batch import Batch
from ..plan.plan import IndexedPlan, Plan
from ..processes.process import interrupts_deferred
from ..sources import is_our_own
from ..transport.messages import Announce
from .choice import Choice, HeadStart, LocalOrLoaders
from .feed import Feed
from .local_feed import LocalFeed, reads_only

_HEAD_START_S = 0.2
_HEAD_START_BATCHES = 4

_log = logging.getLogger("blobfeed")


class AutoFeed:
    """A LocalFeed or a Feed, whichever is in use."""

    def __init__(self, plan: IndexedPlan, *, promises: bool, forget: Callable[[], None]) -> None:
        """`forget`: called when it is changed over. What is held then stays as it is and is not to be released, for the
        next groups are numbered anew."""
        self._plan = plan
        self._choice: LocalOrLoaders | HeadStart | None = _choice(plan)
        self._use(LocalFeed(plan, promises=promises))
        self._next: Feed | None = None
        """Processes that are starting."""
        self._past = Statistics(0, 0, 0.0, 0.0, 0, 0, 0, 0, 0)
        """What the feeds have counted that are not used any more."""
        self._promises = promises
        self._forget = forget
        self._announced: Announce | None = None
        self._batches_announced = 0
        self._batches = 0
        """Accepted so far."""
        self._accepted_at = time.monotonic()
        """When the last of them was. It is what rates are measured by: a time before or within the reading of the next
        batch would make the same pace seem higher in one window and lower in another."""

    def _use(self, feed: LocalFeed | Feed) -> None:
        """What needs no word of ours goes straight to the feed: calls in between are 1 % of a small batch."""
        self._now = feed
        self.is_promised, self.make, self.release = feed.is_promised, feed.make, feed.release
        self.use_huge_pages, self.set_weights, self.states = feed.use_huge_pages, feed.set_weights, feed.states

    # ---- groups

    def next_group(self) -> Announce:
        self._reconsider()
        self._announced = self._now.next_group()
        return self._announced

    def ready_group(self) -> Announce | None:
        self._reconsider()
        self._announced = self._now.ready_group()
        return self._announced

    def open(self, announce: Announce) -> list[Batch]:
        batches = self._now.open(announce)
        self._batches_announced = len(batches)
        return batches

    def accept(self, group: int) -> None:
        self._now.accept(group)
        if self._announced is not None and self._announced.group == group:
            self._batches, self._announced = self._batches + self._batches_announced, None
            self._accepted_at = time.monotonic()

    @property
    def has_failed(self) -> bool:
        return self._now.has_failed

    # ---- which way

    def _reconsider(self) -> None:
        """Between two groups, so that nothing that was announced is lost."""
        if self._choice is None or self._announced is not None or self._now.has_failed:
            return
        if self._accepted_at < self._choice.next_look:
            return
        waited_s = self._past.stall_s + self._now.waited_ns / 1e9
        try:
            match self._choice.observe(self._batches, waited_s, self._accepted_at):
                case Choice.START:
                    self._start_loaders(self._choice)
                case Choice.CHANGE:
                    with interrupts_deferred():
                        self._change()
                        self._choice.changed(self._batches, waited_s, time.monotonic())
        except (BlobfeedError, OSError) as error:
            self._choice = None
            _log.warning("num_loaders: auto stays with what reads now, for what would follow cannot start: %s", error)

    def _start_loaders(self, choice: LocalOrLoaders | HeadStart) -> None:
        groups = math.ceil(choice.ahead / self._now.batches_per_group)
        choice.change_at = first = self._batches + groups * self._now.batches_per_group
        total = self._plan.total_batches
        if total is not None and first >= total:
            self._choice = None  # the run is over before they would be of use
            return
        with interrupts_deferred():
            self._next = Feed(self._plan.from_batch(first))

    def _change(self) -> None:
        old = self._now
        new = self._next or LocalFeed(self._plan.from_batch(self._batches), promises=self._promises)
        self._past, self._next = self._counted(old, 0), None
        self._use(new)
        self._forget()
        old.close()
        if isinstance(old, LocalFeed):
            self._plan.source.close()  # its files, and the decoded chunks that it keeps
        where = "in the trainer's process" if isinstance(new, LocalFeed) else "with loader processes"
        _log.info("num_loaders: auto reads %s", where)

    # ---- counts, the end

    def statistics(self, batches: int) -> Statistics:
        return self._counted(self._now, batches)

    def _counted(self, feed: LocalFeed | Feed, batches: int) -> Statistics:
        now, past = feed.statistics(batches), self._past
        return replace(
            now,
            stalls=past.stalls + now.stalls,
            stall_s=past.stall_s + now.stall_s,
            start_s=past.start_s or now.start_s,
            loader_deaths=past.loader_deaths + now.loader_deaths,
            dropped_messages=past.dropped_messages + now.dropped_messages,
            tasks=past.tasks + now.tasks,
        ).with_cache(CacheCounts(past.cache_hits, past.cache_misses, past.damaged_in_cache))

    def end(self) -> None:
        """End the processes, those that start for the next feed too."""
        close_all(*(feed.end for feed in (self._now, self._next) if feed is not None))

    def close(self) -> None:
        starting, self._next = self._next, None
        close_all(*(feed.close for feed in (self._now, starting) if feed is not None))


def may_be_local(plan: Plan) -> TypeGuard[IndexedPlan]:
    """Whether only code of ours makes the batches, so that it does not matter in which process."""
    if not isinstance(plan, IndexedPlan) or plan.postprocesses:
        return False
    if plan.parameters.on_error != "raise":
        return False  # each feed counts bad samples for itself
    if plan.rows_at_once > 1:
        return False  # many requests at a time take threads, which no trainer's process starts
    decoded = plan.decoded.value
    return decoded.rows.hooks == Hooks() and is_our_own(decoded.source)


def _choice(plan: IndexedPlan) -> LocalOrLoaders | HeadStart:
    if reads_only(plan):
        return LocalOrLoaders(time.monotonic())
    batch_s = plan.seconds_per_row * plan.parameters.batch_size
    return HeadStart(max(1, min(_HEAD_START_BATCHES, int(_HEAD_START_S / max(batch_s, 1e-6)))))
