"""`num_loaders: auto` if no user code runs: the trainer makes the first batches while loaders start, they all others.

Both make the same batches, so where one ends the other goes on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeGuard

from ..base.closing import close_all
from ..base.hooks import Hooks
from ..base.source import CacheCounts
from ..base.statistics import Statistics
from ..plan.plan import IndexedPlan, Plan
from ..processes.process import interrupts_deferred
from ..sources import is_in_memory, is_our_own
from ..transport.messages import Announce
from .feed import Feed
from .local_feed import LocalFeed, reads_only

_HEAD_START_S = 0.2
_HEAD_START_BATCHES = 4

_log = logging.getLogger("blobfeed")


class AutoFeed:
    """A LocalFeed for the first groups, then a Feed."""

    def __init__(self, plan: IndexedPlan, *, promises: bool, forget: Callable[[], None]) -> None:
        """`forget`: called when it is changed over. What is held then stays as it is and is not to be released, for the
        next groups are numbered anew."""
        self._plan = plan
        self._forget = forget
        local = LocalFeed(plan, promises=promises)
        self._use(local)
        self._head_start = max(2, math.ceil(_head_start(plan) / local.batches_per_group))
        """Groups that the trainer makes, the first one before loaders start; 0 if it makes all, or no more."""
        self._first = local.first_of(self._head_start)
        """The loaders' first batch."""
        if plan.total_batches is not None and self._first >= plan.total_batches:
            self._head_start = 0  # the run is over before loaders would be of use
        self._accepted = 0
        """Groups of the head start."""
        self._loaders: Feed | None = None
        """While they start."""
        self._past = Statistics(0, 0, 0.0, 0.0, 0, 0, 0, 0, 0)
        """The counts of the head start, once it is over."""

    def _use(self, feed: LocalFeed | Feed) -> None:
        """Let calls go straight to the feed where nothing is to be decided: one more is 1 % of a small batch."""
        self._now = feed
        self.is_promised, self.make, self.release = feed.is_promised, feed.make, feed.release
        self.ready_group, self.open = feed.ready_group, feed.open
        self.use_huge_pages, self.set_weights, self.states = feed.use_huge_pages, feed.set_weights, feed.states

    # ---- groups

    def next_group(self) -> Announce:
        """See Feed. Raises what it raises, and what the start of processes raises."""
        if self._head_start and not self._now.has_failed:
            with interrupts_deferred():
                if self._loaders is None:
                    if self._accepted:  # the first group does not wait for the start of a process
                        self._loaders = Feed(self._plan.from_batch(self._first))
                elif self._accepted == self._head_start:
                    self._change(self._loaders)
        return self._now.next_group()

    def accept(self, group: int) -> None:
        self._now.accept(group)
        self._accepted = group + 1  # may be repeated, as after a KeyboardInterrupt

    @property
    def has_failed(self) -> bool:
        return self._now.has_failed

    def _change(self, loaders: Feed) -> None:
        """Between two groups, so that nothing that was announced is lost."""
        local = self._now
        self._past, self._head_start, self._loaders = self.statistics(0), 0, None
        self._use(loaders)
        self._forget()
        local.close()
        self._plan.source.close()  # its files, and the decoded chunks that it keeps
        _log.info("num_loaders: auto reads with loader processes now")

    # ---- counts, the end

    def statistics(self, batches: int) -> Statistics:
        now, past = self._now.statistics(batches), self._past
        return replace(
            now,
            stalls=past.stalls + now.stalls,
            stall_s=past.stall_s + now.stall_s,
            start_s=past.start_s or now.start_s,
            tasks=past.tasks + now.tasks,
        ).with_cache(CacheCounts(past.cache_hits, past.cache_misses, past.damaged_in_cache))

    def end(self) -> None:
        """End the processes, those that start for the next feed too."""
        close_all(*(feed.end for feed in (self._now, self._loaders) if feed is not None))

    def close(self) -> None:
        starting, self._loaders = self._loaders, None
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


def copies_memory(plan: IndexedPlan) -> bool:
    """Whether rows are only copied from memory: no file can be cut or hang meanwhile, and no loader would be faster."""
    return reads_only(plan) and is_in_memory(plan.decoded.value.source)


def _head_start(plan: IndexedPlan) -> int:
    """Batches that take about as long as the start of loaders, a few at most."""
    batch_s = plan.seconds_per_row * plan.parameters.batch_size
    return max(1, min(_HEAD_START_BATCHES, int(_HEAD_START_S / max(batch_s, 1e-6))))
