"""The pipeline as the trainer holds it: starts the processes at the first need, waits for batches, gives slots back.

It runs no thread: Caffe holds the GIL while it computes, so a Python thread would make one step an iteration. What must
go on meanwhile does so in the other processes and in ZeroMQ's own I/O thread.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ..api import ArraySpec, Parameters, Statistics
from ..base import (
    BlobfeedError,
    Closing,
    EndOfData,
    OwnProcess,
    ParameterError,
    PipelineClosed,
    RingAllocationError,
    close_all,
    interrupts_deferred,
)
from ..order import Supply
from ..plan import Batch, Plan, Position, State
from ..processes import ForkServer, RemoteHome, Watch
from ..transport import LoaderState, available_memory
from .feed import Feed, Held
from .inline_feed import InlineFeed
from .process_feed import ProcessFeed


class Pipeline(Closing):
    """Batches of one source, ready ahead of time, as `plan` says; its source is closed with the pipeline.

    A run, from the start of the processes to their end, begins at `progress`. To go on anywhere else the run is ended
    and another position assigned: for a state, new weights, the loop behind one that was left, and after Ctrl-C.

    `watch`: tells of the run. `remote_home`: makes the home of loaders on other machines, in a run that has some.
    """

    def __init__(self, plan: Plan, *, watch: Watch, remote_home: RemoteHome | None = None) -> None:
        self.parameters: Parameters = plan.parameters
        self.progress = plan.begin()
        """The position behind the batches that were taken; it has the plan."""
        self._watch, self._remote_home = watch, remote_home
        self._cache_in_setup = plan.source.cache_counts
        self._home = OwnProcess("the pipeline", "make a reader, or a layer, in the process that reads from it")
        self._feed: Feed | None = None
        self._server: ForkServer | None = None
        """That of the newest run, for the next one."""
        self._held = Held()
        self._ready = deque[Batch]()
        """The batches that came and were not taken."""
        self._wanted = 0
        """The first batch that has not come, in the sequence of batches."""
        self._finished: Statistics | None = None
        self._closed = False
        self._into_host = False
        self._calls_make = False
        self._trace = watch.steps()
        self._supplies: dict[int, Supply] = {}
        """Those with weights that were set, by the epoch from which on each counts; the last of them that does, too."""

    # ---- what it will give

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """The shape and type of each top's rows, by name, in the tops' order."""
        return self.plan.specs

    @property
    def samples(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self.plan.supply.samples

    @property
    def total_batches(self) -> int | None:
        """The batches from the start, or a loaded state, to the end; None if there is no end or it is not known."""
        return self.plan.total_batches

    @property
    def plan(self) -> Plan:
        return self.progress.plan

    # ---- batches

    def start(self) -> None:
        """Start the processes, unless they run already. Raises RingAllocationError and the like."""
        self.check_usable()
        if self._feed is None:
            self.progress, self._wanted = self.progress.rest.begin(), 0
            with interrupts_deferred():
                self._feed = self._started()
            if isinstance(self._feed, ProcessFeed):
                self._server = self._feed.server
                self._feed.map_slots()
                if self._trace is not None:
                    self._trace.file = self._feed.shared.trace
            if self._closed:  # meanwhile, by another thread or a signal's handler, which have found nothing to end
                self.close()

    def _started(self) -> Feed:
        given = self.parameters
        watched = given.trace or given.metrics  # by the assembler and the loaders
        by_trainer = given.num_loaders == "auto" and self._into_host and not watched and self.plan.copies_memory
        if by_trainer or not given.has_loaders:
            return InlineFeed(self.plan, calls_make=self._calls_make, watch=self._watch)
        try:
            return ProcessFeed(self.plan, self._watch, self._remote_home)
        except (MemoryError, OSError) as error:
            if isinstance(error, BlobfeedError) or getattr(error, "errno", errno.ENOMEM) != errno.ENOMEM:
                raise
            raise RingAllocationError(
                f"the trainer lacks the memory to start its processes: "
                f"{available_memory():,} bytes are available; give the process more memory (ulimit -v, ulimit -d)"
            ) from error

    def peek(self) -> Batch:
        """The next batch, without taking it; waits for it at most `timeout_s`.

        Raises EndOfData after the last one, and what errors.py says of a pipeline that cannot go on.
        """
        self.check_usable()
        if self._trace is not None:
            self._trace.asks()
        if self._supplies:
            self._reweigh_if_due()
        if not self._ready:
            total = self.plan.total_batches
            if total is not None and self.progress.taken >= total:
                raise EndOfData(f"all {total} batches of epochs={self.parameters.epochs} have been delivered")
            self._next_batches()
        if self._trace is not None:
            self._trace.has()
        return self._ready[0]

    def take(self) -> Batch:
        """The next batch, the caller's until it is released."""
        batch = self.peek()
        batch.make = None  # it refers to the feed
        if not self.progress.taken and self._feed is not None:
            self._feed.note_start()
        if self._trace is not None:
            self._trace.takes(batch.number, batch.together)
        self.progress = self.progress.after(batch)
        self._ready.popleft()
        return batch

    def release(self, batch: Batch) -> None:
        """The caller is done with `batch`: its memory will be filled anew. Batches may be released in any order."""
        self.check_usable()
        if self._feed is None or not self.holds(batch):
            raise ValueError(f"batch {batch.number} is not held: it was released before, or is another pipeline's")
        self._held.release(batch.sequence)
        self._feed.release(self._held)

    def is_next(self, batch: Batch) -> bool:
        """Return true if `batch` was peeked at and has not been taken."""
        return bool(self._ready) and self._ready[0] is batch

    def holds(self, batch: Batch) -> bool:
        """Return true if `batch` is of this run, and not released."""
        return self._held.batches.get(batch.sequence) is batch

    def is_ready(self) -> bool:
        """Return true if a batch has come, or an error that ends the run; false behind a last batch."""
        try:
            self._look()
        except BlobfeedError:
            return True
        return bool(self._ready)

    def look_ahead(self) -> None:
        """Open the announcements that have come, unless a batch is there; raises nothing.

        For the end of a delivery: what ran a moment ago is still in the processor's caches, and after a training step
        nothing is, so that the same work takes the trainer 0.1 ms longer.
        """
        if not self._ready:  # mostly there are some, and `suppress` takes 0.3 µs
            with suppress(BlobfeedError):
                self._look()

    def _look(self) -> None:
        if not self._ready and self._feed is not None and (batches := self._feed.ready(self._wanted)):
            self._hold(batches)

    def deliver_into_host(self, *, calls_make: bool) -> None:
        """Batches are copied to memory of this process, so `num_loaders: auto` may make them here; before the start.

        `calls_make`: what `peek` gives may be a batch whose rows are made by `Batch.make`.
        """
        self._into_host = True
        self._calls_make = calls_make

    def _next_batches(self) -> None:
        self.start()
        if self._feed is None:
            raise PipelineClosed("the pipeline was closed while it started")
        self._hold(self._feed.next(self._wanted, self._held))

    def _hold(self, batches: Sequence[Batch]) -> None:
        # A stream may have no batch at a place of the sequence, and how many depends on the time.
        for number, batch in enumerate(batches, self.progress.number):
            batch.number = number
        self._held.batches |= {batch.sequence: batch for batch in batches}
        self._ready.extend(batches)
        self._wanted = batches[-1].sequence + 1

    # ---- counts and states

    def statistics(self) -> Statistics:
        """Return the counts so far; they are still there after close()."""
        if self._feed is None:
            return self._finished or Statistics()
        return self._statistics_of(self._feed)

    def _statistics_of(self, feed: Feed) -> Statistics:
        # Setup reads samples again and again, to learn how long they take.
        cache, setup = self.plan.source.cache_counts, self._cache_in_setup
        own = cache._replace(hits=cache.hits - setup.hits, misses=cache.misses - setup.misses)
        return replace(feed.statistics(), batches=self.progress.taken).with_cache(own)

    def activities(self) -> list[LoaderState]:
        """Return the activity of each loader; empty before the start."""
        return [] if self._feed is None else self._feed.states()

    def state_dict(self) -> State:
        """Return the position of the next batch."""
        return self.progress.state()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state` was saved, with exactly the batch that would have come next; before the first batch.

        The number of loaders and the rank may differ. Except for a stream, batch_size and world_size may differ, too:
        the ranks share out the rest of the epoch anew. Raises ParameterError.
        """
        self._check_before_first("load_state_dict")
        self._begin_with(self.plan.resumed(state))

    def begin_at(self, batch: int) -> None:
        """Go on with the batch of this number from the run's start; before the first batch. Raises ParameterError."""
        self._check_before_first("restore")
        self._begin_with(self.plan.at_batch(batch))

    def _check_before_first(self, call: str) -> None:
        self.check_usable()
        if self.progress.taken:
            raise ParameterError(f"{call}: the pipeline has started; call it before the first batch")

    def _begin_with(self, plan: Plan) -> None:
        was_started = self._feed is not None
        self.forget_weights()
        self.go_to(plan.begin())
        if was_started:  # ahead, for batches from another position on
            self.start()

    def go_to(self, position: Position) -> None:
        """Go on at `position`, of this pipeline's plan or one made of it; discard what was prefetched.

        The processes end; others start with the next batch. The counts begin anew.
        """
        self.check_usable()
        self._end_run()
        self._trace, self._finished = self._watch.steps(), None
        self._cache_in_setup = position.plan.source.cache_counts
        self.progress = position

    def set_weights(self, weights: object, *, received: Position | None = None) -> None:
        """Give the sampler other weights, one for each sample, from the next epoch on: other processes start there.

        `received`: how far the user has come, if batches have been taken ahead of that. Raises ParameterError.
        """
        self.check_usable()
        plan, progress = self.plan.reweighed(weights), received or self.progress
        ahead = 0 if self._into_host or self._feed is None else self.parameters.device_prefetch
        self._supplies[progress.epoch_behind(ahead)] = plan.supply
        counting = max((epoch for epoch in self._supplies if epoch <= progress.epoch), default=0)
        self._supplies = {epoch: each for epoch, each in self._supplies.items() if epoch >= counting}
        was_started = self._feed is not None
        if self._reweigh_if_due() and was_started:
            self.start()

    def forget_weights(self) -> None:
        """Drop the weights that were set and do not count yet: another state is gone on from."""
        self._supplies = {}

    def _reweigh_if_due(self) -> bool:
        """Go on by the weights that count in the epoch in which the next round begins; False if they count already."""
        plan = self._plan_in(self.progress.epoch)
        if is_due := plan is not self.plan:
            self.go_to(plan.begin())
        return is_due

    def _plan_in(self, epoch: int) -> Plan:
        """Return the plan by the weights that count in `epoch`, from where they begin to; ours if they count now."""
        since = max((each for each in self._supplies if each <= epoch), default=-1)
        supply = self._supplies.get(since, self.plan.supply)
        if supply is self.plan.supply:
            return self.plan
        return replace(self.progress.plan_from(max(since, self.progress.epoch)), supply=supply)

    @property
    def plans(self) -> list[Plan]:
        """The plan, and behind it those by weights to come, each from where it begins."""
        now = self.progress.epoch
        plans = map(self._plan_in, [now, *sorted(epoch for epoch in self._supplies if epoch > now)])
        return [self.plan, *(plan for plan in plans if plan is not self.plan)]

    # ---- the end

    @property
    def is_ours(self) -> bool:
        """False in a fork of the trainer: what it has inherited is the trainer's to close."""
        return self._home.is_this

    def close(self) -> None:
        """End the processes, keep the statistics, give everything back. May be repeated.

        The processes come first: an error in the steps behind leaves none of them. Other calls raise PipelineClosed
        from then on.
        """
        if self.is_ours:
            self._closed = True
            self._server = None
            self._end_run()

    def _end_run(self) -> None:
        if self._trace is not None:
            self._trace.end()
        ends = () if self._feed is None else (self._feed.close,)
        close_all(*ends, self._keep_statistics, self.plan.source.close)

    def _keep_statistics(self) -> None:
        self._finished, self._feed = self.statistics(), None
        self._held, self._ready = Held(), deque()

    def check_usable(self) -> None:
        """Raises PipelineClosed, also in a fork of the process that made the pipeline."""
        if self._closed:
            raise PipelineClosed("the pipeline has been closed; make a new one")
        self._home.require()
