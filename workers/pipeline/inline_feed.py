"""`num_loaders: 0`: a feed without processes. The trainer makes its batches itself, when it asks for them.

    schedule: the next batches ─► worker: their rows ─► the trainer

The worker is that of the loaders, and the schedule that of the assembler. So batches, states and errors are the same.
But no process watches the time that rows take, and a sample that would kill its loader kills the trainer.

If a delivery would only copy large batches, they are handed out before their rows are made. The `make` of each batch
reads its rows right into the trainer's memory, so that each byte is copied once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NoReturn, cast

import numpy as np

from ..api import DirectRows, NamedRows, Rows, Statistics
from ..assembly import BadSamples, Slots
from ..base import BlobfeedError, PipelineStalled, close_all
from ..loading import Workplace
from ..order import OwnGlobals
from ..plan import Batch, Plan, SlotTops
from ..processes import Watch
from ..transport import (
    BadRow,
    Count,
    Draw,
    End,
    Failure,
    Fill,
    LoaderState,
    SharedFile,
    StatusBoard,
    ToLoader,
    Unwatched,
    WorkDone,
    available_memory,
    shortage,
)
from .failures import Failed, explain, too_many_held
from .feed import Held, counts_on

_LARGE_BYTES = 1 << 19
"""From this size on, a second copy of a batch takes longer than the fixed cost of making it alone."""

_TASK_BYTES = 64 << 20
"""In a task of so much, what is done for each task takes a percent of the time or two. Its memory is only reserved:
pages are taken for the tops that `make` puts into the slots."""

_MOST_IN_TASK = 32

_log = logging.getLogger("blobfeed")


class InlineFeed:
    """A schedule and one worker in a loop."""

    def __init__(self, plan: Plan, *, calls_make: bool, watch: Watch) -> None:
        """Prepare the run. `calls_make`: the delivery calls `make` of batches that have it.

        Raises RingAllocationError.
        """
        known = plan.supply.is_computed and not plan.postprocesses
        self._makes_later = calls_make and known and plan.batch_bytes >= _LARGE_BYTES
        """All batches are handed out before their rows are made."""
        if self._makes_later:
            ahead = plan.parameters.prefetch_batches
            most = _MOST_IN_TASK if ahead == "auto" else ahead // 2
            in_task = max(1, min(most, _TASK_BYTES // plan.batch_bytes))
            plan = replace(plan, batches_per_task=in_task, most_slots=2 * in_task)
        self._plan = plan
        self._watch = watch
        self._rows = _rows(plan)
        self._made: dict[int, SlotTops] = {}
        """The views of each slot."""
        self._slots = Slots(plan.slots)
        self._schedule = plan.schedule()
        self._sizes: dict[int, int] = {}
        """The rows of each batch that is not released, by its place in the sequence."""
        self._bad_samples = BadSamples(plan.parameters)
        self._last: Failure | None = None
        """The end of the run, behind the batches that came."""
        self._failure: Failed | None = None
        self._errors: list[BaseException] = []
        """Each under its number, from 1 on."""
        drawn = SharedFile.create("blobfeed-drawn")
        self._drawn: SharedFile | None = drawn
        self._schedule.draws.use_file(drawn)
        self._board: StatusBoard | None = StatusBoard.create(0)
        self._board.describe(plan.description._replace(slots=0))
        self._counts = Statistics()
        """The counts at the end."""
        place = Workplace(self._rows, Unwatched(), partial(_keep, self._errors), drawn)
        self._worker = plan.worker(place)
        self._globals = nullcontext if plan.reads_only else OwnGlobals().used

    # ---- batches

    def next(self, wanted: int, _held: Held) -> Sequence[Batch]:
        batches = self.ready(wanted)
        while not batches:
            if self._last is not None:
                self._fail(self._last)
            batches = self._do_task()
        return batches

    def ready(self, _wanted: int) -> Sequence[Batch]:
        if self._failure is not None:
            raise self._failure.error()
        return ()

    def note_start(self) -> None:
        if self._board is not None:
            self._board.note_start()

    def release(self, held: Held) -> None:
        released = self._slots.release(held.upto, held.loans)
        if self._board is not None:
            self._board.counts[Count.BATCHES] += len(released)
            self._board.counts[Count.SAMPLES] += sum(map(self._sizes.pop, released))

    # ---- making them

    def _do_task(self) -> Sequence[Batch]:
        """Do the next task, and return the batches that it has made."""
        task, batches = self._next_task(), list[Batch]()
        work = WorkDone() if self._makes_later and isinstance(task, Fill) else self._work(task)
        if isinstance(task, Draw):
            assert work.drawn is not None
            self._schedule.draws.note_drawn(task, work.drawn)
        else:
            batches = self._note_made(task, work)
        self._log_bad_samples()
        return batches

    def _next_task(self) -> ToLoader:
        """Return the next batches to make, or the epoch to draw; raises the error of a run that has neither."""
        schedule, plan = self._schedule, self._plan
        # Of a cold file 64 small batches take 0.1 s, and the first one 2 ms.
        most = plan.batches_per_task if schedule.opened else 1
        if not (free := self._slots.free(most)):
            raise PipelineStalled(too_many_held(plan.slots))
        first = schedule.opened
        if count := schedule.open(len(free)):
            self._slots.take(first, free[:count])
            rows = (count - 1) * schedule.batch_size + schedule.rows_of(first + count - 1)
            runs = schedule.runs(first, 0, rows)
            return Fill(0, first, free.start, 0, rows, runs=runs, finishes=plan.postprocesses)
        if (draw := schedule.wanted()) is not None:
            return draw
        if (failure := schedule.failure) is not None:
            self._fail(failure)
        raise self._explain(End())

    def _note_made(self, task: Fill, work: WorkDone) -> list[Batch]:
        """Return the batches of a task, but none with a row that could not be made, or behind that."""
        schedule, size = self._schedule, self._plan.parameters.batch_size
        count = -(-task.rows // size)
        # A hook's batch is told behind all samples, and begins before some of them.
        for bad in sorted(work.bad, key=lambda bad: bad.row):
            self._note_bad(bad, task.batch)
            if bad.replacement < 0:
                count = bad.row // size
                break
        if self._last is not None and self._last.error == "TooManyBadSamples":
            count = 0
        schedule.note_done(task.batch, work.stream_rows)
        replaced = tuple((bad.row, bad.replacement) for bad in work.bad if bad.replacement >= 0)
        message = schedule.announcement(task.batch, count, task.slot, replaced) if count else None
        if message is None:
            if self._last is None:
                self._slots.drop(task.batch)
            return []
        batches = self._plan.unpack(message, self._rows, self._made)
        self._sizes |= {batch.sequence: batch.rows for batch in batches}
        if self._makes_later:
            for place, batch in enumerate(batches):
                part = Fill(0, task.batch, task.slot, place * size, batch.rows, runs=tuple(batch.runs))
                batch.make = partial(self._make, part, batch.tops)
        return batches

    def _note_bad(self, bad: BadRow, batch: int) -> None:
        """Record a bad row, counted from the beginning of `batch`."""
        if bad.replacement >= 0:
            self._last = self._bad_samples.note(bad) or self._last
            return
        skipped, row = divmod(bad.row, self._schedule.batch_size)
        in_row = self._schedule.sample_in(batch + skipped, row, -1) if bad.index < 0 else (-1, -1, "")
        self._last = self._bad_samples.failure_of(bad, in_row)

    def _make(self, task: Fill, slot: Mapping[str, Rows], into: DirectRows) -> Mapping[int, int]:
        """See Batch.make."""
        if self._failure is not None:
            raise self._failure.error()
        bad = self._work(task, cast("dict[str, Rows]", {**slot, **into})).bad
        if bad:
            for row in bad:
                self._note_bad(row, task.batch)
            self._log_bad_samples()
            if self._last is not None:
                self._fail(self._last)
        return {row.row - task.first_row: row.replacement for row in bad}

    def _work(self, task: ToLoader, rows: Mapping[str, Rows] | None = None) -> WorkDone:
        """Do `task`, in its slots or in `rows`; the trainer waits for it."""
        begun = time.monotonic_ns()
        with self._globals():
            work = self._worker.work(task, rows)
        if self._board is not None:  # as it is if a signal's handler has closed the feed
            self._board.counts[Count.WAITED_NS] += time.monotonic_ns() - begun
            self._board.counts[Count.STALLS] += isinstance(task, Fill)
            self._board.counts[Count.TASKS] += 1
        return work

    def _log_bad_samples(self) -> None:
        for sample in self._bad_samples.new_texts():
            _log.warning("%s", sample)

    def _fail(self, failure: Failure) -> NoReturn:
        """End the run by its error; raises that, now and at each later step."""
        self._failure = Failed(self._explain(failure))
        self._errors.clear()  # see Failed
        raise self._failure.error()

    def _explain(self, failure: Failure | End) -> BlobfeedError:
        return explain(self._plan, failure, lambda number, _: self._errors[number - 1])

    # ---- counts, the end

    def statistics(self) -> Statistics:
        if self._board is None:
            return self._counts
        self._board.counts[Count.REPLACED] = self._bad_samples.replaced
        counts = counts_on(self._board)
        return replace(counts, diagnosis=self._watch.sentence(self._board))

    def states(self) -> list[LoaderState]:
        """Return none: there are no loaders."""
        return []

    def close(self) -> None:
        self._counts = self.statistics()
        self._failure = self._last = None
        self._errors.clear()
        held = self._drawn, self._board
        self._drawn = self._board = None
        close_all(*(each.close for each in held if each is not None))


def _keep(errors: list[BaseException], error: BaseException) -> int:
    """Keep an exception of the worker's, which does not hold the feed: its memory would wait for the collector."""
    errors.append(error)
    return len(errors)


def _rows(plan: Plan) -> NamedRows:
    """Return the rows of as many slots as a ring would have, in memory that is taken when it is first written to."""
    slot, have = plan.layout, available_memory()
    try:
        if slot.nbytes > have:
            raise MemoryError
        layout = slot.times(plan.slots)
        return layout.view(np.zeros(layout.nbytes, np.uint8))
    except (MemoryError, ValueError):  # ValueError: more than there are addresses
        raise shortage(f"each of {plan.slots:,} batch slots", slot.nbytes, have) from None
