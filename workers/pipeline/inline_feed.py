"""`num_loaders: 0`: a feed without processes. The trainer makes each group itself, when it asks for it.

    next ─► assembly: a task ─► worker: rows ─► assembly: done, announced

The assembly decides here what it decides in the assembler's process, and the worker is that of the loaders. So batches,
states and errors are the same. But no process watches the time that a task takes, and a sample that would kill its
loader kills the trainer.

If a delivery would only copy large batches, the assembly announces a group before its rows are made. The `make` of each
batch reads its rows right into the trainer's memory, so that each byte is copied once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from ..api import DirectRows, Rows, Statistics
from ..assembly import Assembly
from ..base import PipelineStalled, RingAllocationError, close_all
from ..loading import WorkDone, Workplace
from ..order import OwnGlobals
from ..plan import Batch, Plan
from ..processes import Watch, interrupts_deferred
from ..transport import (
    Announce,
    Count,
    Done,
    End,
    Failure,
    Fill,
    LoaderState,
    SharedFile,
    StatusBoard,
    ToLoader,
    Unwatched,
    available_memory,
    read_board,
)
from .failures import Failed, explain, too_many_held
from .feed import counts_on

_ITSELF = 1
"""The number of the only loader."""

_LARGE_BYTES = 1 << 19
"""From this size on, a second copy of a batch takes longer than the fixed cost of making it alone."""

_GROUP_BYTES = 64 << 20
"""In a group of so much, what is done for each group takes a percent of the time or two. Its memory is only reserved:
pages are taken for the tops that `make` puts into the slot."""

_MOST_IN_GROUP = 32

_log = logging.getLogger("blobfeed")


class InlineFeed:
    """An assembly and one worker in a loop."""

    def __init__(self, plan: Plan, *, calls_make: bool, watch: Watch = Watch()) -> None:  # noqa: B008 - it has no state
        """Prepare the run. `calls_make`: the delivery calls `make` of batches that have it.

        Raises RingAllocationError.
        """
        known = plan.order is not None and not plan.postprocesses
        self._makes_later = calls_make and known and plan.batch_bytes >= _LARGE_BYTES
        """All groups are announced before their rows are made."""
        if self._makes_later:
            ahead = plan.parameters.prefetch_batches
            most = _MOST_IN_GROUP if ahead == "auto" else ahead // 2
            in_group = max(1, min(most, _GROUP_BYTES // plan.batch_bytes))
            plan = replace(plan, batches_per_slot=in_group, auto_slots=2)
        # Of a cold file 64 small batches take 0.1 s, and the first one 2 ms.
        plan = self._plan = replace(plan, starts_small=plan.order is not None)
        self._watch = watch
        self._slots = _slots(plan)
        self._assembly = Assembly(plan, alone=True)
        self._assembly.ledger.add_loader(_ITSELF)
        self._batches: Sequence[Batch] = ()
        """The next group, until it is accepted."""
        self._failure: Failed | None = None
        self._errors: list[BaseException] = []
        """Each under its number, from 1 on."""
        self._drawn = None if plan.sampling is None else SharedFile.create("blobfeed-drawn")
        if self._drawn is not None:
            self._assembly.schedule.use_file(self._drawn)
        self._board: StatusBoard | None = StatusBoard.create(0)
        self._board.describe(plan.description._replace(slots=0))
        self._last = Statistics()
        """The counts at the end."""
        drawn = -1 if self._drawn is None else self._drawn.descriptor
        self._worker = plan.worker(Workplace(self._slots, Unwatched(), partial(_keep, self._errors), drawn))
        self._globals = nullcontext if plan.reads_only else OwnGlobals().used

    # ---- groups

    def next(self) -> Sequence[Batch]:
        if self._failure is not None:
            raise self._failure.error()
        while not self._batches:
            if self._assembly.outbox:
                self._receive(self._assembly.outbox[0])
            else:
                self._do_task()
        return self._batches

    def ready(self) -> Sequence[Batch]:
        return self.next() if self._batches or self._assembly.outbox else ()

    def accept(self, group: int) -> None:
        self._batches = ()
        if self._board is not None and not self._board.counts[Count.FIRST_BATCH_NS]:
            self._board.note_start()

    def release(self, group: int) -> None:
        self._assembly.release(group)
        if self._board is not None:
            self._board.set_counts(self._assembly.counts)

    def go_on(self) -> bool:
        outbox = self._assembly.outbox
        if self._batches or not outbox or not isinstance(end := outbox[0], End):
            return False
        self._failure = None
        outbox.clear()
        self._assembly.go_on(end.number)
        return True

    # ---- making them

    def _receive(self, message: Announce | Failure | End) -> None:
        """Take the assembly's next message; raises the error that ended the run, if it is that."""
        if not isinstance(message, Announce):
            self._failure = Failed(explain(self._plan, message, lambda number, _: self._errors[number - 1]))
            self._errors.clear()  # see Failed
            raise self._failure.error()
        batches = self._plan.unpack(message, self._slots[message.slot])
        if self._makes_later:
            for batch in batches:
                first, *_ = runs = tuple(batch.runs)
                task = Fill(0, message.group, message.slot, first.row, batch.rows, runs=runs)
                batch.make = partial(self._make, task, batch.tops)
        with interrupts_deferred():
            self._batches = batches
            del self._assembly.outbox[0]

    def _do_task(self) -> None:
        """Do the assembly's next task; raises PipelineStalled if there can be none."""
        assembly = self._assembly
        try:
            with interrupts_deferred():
                _, task = next(assembly.assignments(0.0), (_ITSELF, None))
            if task is not None:
                self._note_done(task, WorkDone() if self._makes_later else self._work(task))
                return
        except BaseException:  # the task is made again, and a group whose postprocessing may have changed it
            with interrupts_deferred():
                assembly.ledger.remove_loader(_ITSELF)
                assembly.ledger.add_loader(_ITSELF)
            raise
        if not assembly.announce() and not assembly.outbox:
            raise PipelineStalled(too_many_held(len(self._slots)))

    def _note_done(self, task: ToLoader, work: WorkDone) -> None:
        done = Done(_ITSELF, task.task, 0, tuple(work.bad), work.stream_rows, work.drawn)
        with interrupts_deferred():
            self._assembly.done(done, 0.0)
            self._assembly.announce()
        if work.bad:
            self._log_bad_samples()

    def _make(self, task: Fill, slot: Mapping[str, Rows], into: DirectRows) -> Mapping[int, int]:
        """See Batch.make."""
        if self._failure is not None:
            raise self._failure.error()
        bad = self._work(task, cast("dict[str, Rows]", {**slot, **into})).bad
        if bad:
            with interrupts_deferred():
                self._assembly.note_bad_later(task.group, bad)
            self._log_bad_samples()
            if self._assembly.outbox:
                self._receive(self._assembly.outbox[0])
        return {row.row - task.first_row: row.replacement for row in bad}

    def _work(self, task: ToLoader, rows: Mapping[str, Rows] | None = None) -> WorkDone:
        """Do `task`, in its slot or in `rows`; the trainer waits for it."""
        begun = time.monotonic_ns()
        with self._globals():
            work = self._worker.work(task, rows)
        if self._board is not None:  # as it is if a signal's handler has closed the feed
            self._board.counts[Count.WAITED_NS] += time.monotonic_ns() - begun
            self._board.counts[Count.STALLS] += isinstance(task, Fill)
        return work

    def _log_bad_samples(self) -> None:
        for sample in self._assembly.taken_bad_samples():
            _log.warning("%s", sample)

    # ---- counts, the end

    def statistics(self) -> Statistics:
        if self._board is None:
            return self._last
        self._board.set_counts(self._assembly.counts)
        counts = counts_on(self._board)
        return replace(counts, diagnosis=self._watch.sentence(read_board(self._board)))

    def states(self) -> list[LoaderState]:
        """Return none: there are no loaders."""
        return []

    def close(self) -> None:
        self._last = self.statistics()
        self._batches, self._failure = (), None
        self._errors.clear()
        held = self._drawn, self._board
        self._drawn = self._board = None
        close_all(*(each.close for each in held if each is not None))


def _keep(errors: list[BaseException], error: BaseException) -> int:
    """Keep an exception of the worker's, which does not hold the feed: its memory would wait for the collector."""
    errors.append(error)
    return len(errors)


def _slots(plan: Plan) -> list[dict[str, Rows]]:
    """Return as many slots as a ring would have, of memory that is taken when it is first written to."""
    layout, have = plan.layout, available_memory()
    try:
        if layout.slot_bytes > have:
            raise MemoryError
        memory = np.zeros(plan.slots * layout.slot_bytes, np.uint8)
    except (MemoryError, ValueError):  # ValueError: more than there are addresses
        raise RingAllocationError(
            f"each of {plan.slots:,} batch slots needs {layout.slot_bytes:,} bytes, and {have:,} bytes are available: "
            "lower batch_size or prefetch_batches, or give the process more memory"
        ) from None
    return [layout.view(memory, slot) for slot in range(plan.slots)]
