"""`num_loaders: 0`: a feed without processes. The trainer makes each group itself, when it asks for it.

    next ─► assembly: a task ─► worker: rows ─► assembly: done, announced

The assembly decides here what it decides in the assembler's process, and the worker is that of the loaders. So batches,
states and errors are the same. But no process watches the time that a task takes, and a sample that would kill its
loader kills the trainer.

If a batch has a slot to itself and a delivery would only copy it, the batch is given before its rows are made. Its
`make` reads them right into the trainer's memory, so that each byte is copied once.
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

from ..base.closing import close_all
from ..base.errors import PipelineStalled, RingAllocationError
from ..base.hooks import Hooks
from ..base.specs import DirectRows, Rows
from ..base.statistics import Statistics
from ..loading.worker import Workplace
from ..order.sample_rng import OwnGlobals
from ..order.weights_log import NewWeights
from ..plan.batch import Batch
from ..plan.plan import Plan
from ..processes.process import interrupts_deferred
from ..scheduling.assembly import Assembly
from ..sources import is_in_memory, is_our_own
from ..transport.memory import available_memory
from ..transport.messages import Announce, Done, Fill, Postprocess, ToLoader
from ..transport.shared_file import SharedFile
from ..transport.status_board import Count, LoaderState, StatusBoard, Unwatched
from ..watching.diagnosis import in_process
from .failures import Failed, explain, too_many_held

_ITSELF = 1
"""The number of the only loader."""

_ALONE_BYTES = 1 << 19
"""A second copy of so much takes longer than what is done for each group."""

_NOTED_NS = 100_000_000
"""So much apart are notes on the status board, which `blobfeed monitor` reads."""

_HEAD_START_S = 0.2
_HEAD_START_BATCHES = 4

_no_globals = nullcontext()
_log = logging.getLogger("blobfeed")


class _Errors(dict[int, BaseException]):
    """Each under its number. The worker holds this and not the feed: else the feed's memory, and a folder that its
    source has made, would last until the garbage collector comes."""

    def keep(self, error: BaseException) -> int:
        self[len(self) + 1] = error
        return len(self)


class InlineFeed:
    """An assembly and one worker in a loop."""

    def __init__(self, plan: Plan, *, straight: bool) -> None:
        """Prepare the run. `straight`: the delivery calls `make` of batches that have it.

        Raises RingAllocationError.
        """
        if plan.order is not None:  # of a cold file 64 small batches take 0.1 s, and the first one 2 ms
            alone = straight and plan.batch_bytes >= _ALONE_BYTES
            plan = replace(plan, starts_small=True, batches_per_slot=1 if alone else plan.batches_per_slot)
        self._straight = straight and plan.order is not None and plan.batches_per_slot == 1 and not plan.postprocesses
        self._plan = plan
        self._begun = time.monotonic_ns()
        self._waited_ns = self._stalls = 0
        self._start_ns: int | None = None
        """The time that the trainer had waited when it took the first group."""
        self._slots = _slots(plan)
        self._assembly = Assembly(plan, alone=True)
        self._assembly.ledger.add_loader(_ITSELF, plan.tasks_in_flight)
        self._task: ToLoader | None = None
        self._batches: Sequence[Batch] = ()
        """The next group, until it is accepted."""
        self._failure: Failed | None = None
        self._errors = _Errors()
        self._drawn: SharedFile | None = None
        self._weights: SharedFile | None = None
        files = -1, -1
        if plan.sampling is not None:
            self._drawn = SharedFile.create("blobfeed-drawn")
            self._weights = SharedFile.create("blobfeed-weights")
            self._assembly.schedule.use_file(self._drawn)
            files = self._drawn.descriptor, self._weights.descriptor
        self._board: StatusBoard | None = StatusBoard.create(0)
        self._board.describe(plan.description._replace(slots=0))
        self._next_note = 0
        self._worker = plan.worker(Workplace(self._slots, Unwatched(), self._errors.keep, *files))
        self._globals = None if reads_only(plan) else OwnGlobals()

    # ---- groups

    def next(self) -> Sequence[Batch]:
        if self._failure is not None:
            raise self._failure.error()
        while not self._batches:
            if self._assembly.outbox:
                announce = self._announced()
                self._batches = self._plan.unpack(announce, self._slots[announce.slot])
            elif self._task is None:
                self._find_task()
            elif self._straight and isinstance(task := self._task, Fill):
                [batch] = self._plan.unpack(Announce(task.group, task.slot, runs=task.runs), self._slots[task.slot])
                batch.make = partial(self._make, task)
                self._batches = (batch,)
            else:
                self._work(self._task)
        return self._batches

    def ready(self) -> Sequence[Batch]:
        return self.next() if self._assembly.outbox else ()

    def accept(self, group: int) -> None:
        if isinstance(self._task, Fill) and self._task.group == group:  # its rows were not needed
            self._make(self._task, {})
        outbox = self._assembly.outbox
        if outbox and isinstance(outbox[0], Announce) and outbox[0].group == group:
            if self._start_ns is None and self._board is not None:
                self._board.note_start(self._waited_ns)
                self._start_ns = self._waited_ns
            # If an interrupt comes in between, this is called again: until the last line all may be done twice.
            self._batches = ()
            del outbox[0]

    def release(self, group: int) -> None:
        announce = self._assembly.release(group)
        if announce is not None and self._board is not None:
            rows = self._assembly.batch_rows(announce)
            self._board.add(Count.SAMPLES, sum(rows))
            self._board.add(Count.BATCHES, len(rows))

    def set_weights(self, new: NewWeights) -> None:
        change, weights, gone = new
        if self._weights is None:
            return
        with interrupts_deferred():
            self._weights.write(change.version * weights.nbytes, weights)
            self._assembly.schedule.note_weights(change)
            for version in gone:
                self._weights.free(version * weights.nbytes, weights.nbytes)

    # ---- making them

    def _announced(self) -> Announce:
        """Return the first announcement of the outbox; raises the error that ended the run if that comes first."""
        first = self._assembly.outbox[0]
        if isinstance(first, Announce):
            return first
        self._failure = Failed(explain(self._plan, first, lambda number, _: self._errors[number]))
        self._errors.clear()  # see Failed
        raise self._failure.error()

    def _find_task(self) -> None:
        """Take the next task, or bring the assembly further without one; raises PipelineStalled if it is stuck."""
        with interrupts_deferred():
            order = next(self._assembly.assignments(0.0), None)
            if order is not None:
                self._task = order.task
                return
            freed = self._assembly.announce()
        if not (freed or self._assembly.outbox):
            raise PipelineStalled(too_many_held(len(self._slots)))

    def _make(self, task: Fill, into: DirectRows) -> Mapping[int, int]:
        """See Batch.make."""
        if self._failure is not None:
            raise self._failure.error()
        own = self._slots[task.slot]
        self._slots[task.slot] = cast("dict[str, Rows]", {**own, **into})
        try:
            self._work(task)
        finally:
            self._slots[task.slot] = own
        return dict(self._announced().replaced)

    def _work(self, task: ToLoader) -> None:
        """Do `task`. If it has been done before, into other memory, it is not reported again."""
        begun = time.monotonic_ns()
        try:
            with _no_globals if self._globals is None else self._globals.used():
                work = self._worker.work(task)
            now = time.monotonic_ns()
            if task is self._task:
                done = Done(_ITSELF, task.task, now - begun, tuple(work.bad), work.stream_rows, work.drawn)
                with interrupts_deferred():
                    self._stalls += isinstance(task, Fill)
                    self._task = None
                    self._assembly.done(done, now / 1e9)
                    self._assembly.announce()
        except BaseException:
            if task is self._task and isinstance(task, Postprocess):  # it may have changed rows: these are made again
                with interrupts_deferred():
                    self._assembly.ledger.remove_loader(_ITSELF)
                    self._assembly.ledger.add_loader(_ITSELF, self._plan.tasks_in_flight)
                    self._task = None
            raise
        self._waited_ns += now - begun
        if now > self._next_note:
            self._note(now)
        for bad in self._assembly.taken_bad_samples():
            _log.warning("%s", bad)

    def _note(self, now: int) -> None:
        """Write the counts on the board, for monitors outside of this process."""
        if (board := self._board) is None:
            return
        board.set_count(Count.STALLS, self._stalls)
        board.set_count(Count.REPLACED, self._assembly.replaced)
        board.set_count(Count.TASKS, self._assembly.tasks_done)
        board.set_count(Count.WAITED_NS, self._waited_ns)
        self._next_note = now + _NOTED_NS

    # ---- counts, the end

    def statistics(self, batches: int) -> Statistics:
        return Statistics(
            batches=batches,
            stalls=self._stalls,
            stall_s=self._waited_ns / 1e9,
            start_s=(self._start_ns or 0) / 1e9,
            loaders=0,
            loader_deaths=0,
            replaced=self._assembly.replaced,
            dropped_messages=0,
            tasks=self._assembly.tasks_done,
            diagnosis=in_process((time.monotonic_ns() - self._begun) / 1e9, self._waited_ns / 1e9),
        )

    def states(self) -> list[LoaderState]:
        """Return none: there are no loaders."""
        return []

    def close(self) -> None:
        self._batches, self._task, self._failure = (), None, None
        self._errors.clear()
        files, self._drawn, self._weights = (self._drawn, self._weights), None, None
        board, self._board = self._board, None
        close_all(*(file.close for file in (*files, board) if file is not None))


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


def reads_only(plan: Plan) -> bool:
    """Return true if rows are only copied as they are stored: nothing is decoded, and no user code runs."""
    if plan.order is None or plan.postprocesses:
        return False
    decoded = plan.decoded.value
    return bool(decoded.rows.changes_nothing and decoded.source.stores_rows)


def copies_memory(plan: Plan) -> bool:
    """Return true if rows are only copied from memory: no file can be cut or hang, and no loader would be faster."""
    return reads_only(plan) and is_in_memory(plan.decoded.value.source)


def head_start(plan: Plan) -> int:
    """Return the number of batches that the trainer makes while loaders start; 0 if it makes none.

    It makes none if user code would run. As many as take about as long as the start, a few at most.
    """
    if plan.order is None or plan.postprocesses:
        return 0
    decoded = plan.decoded.value
    if decoded.rows.hooks != Hooks() or not is_our_own(decoded.source):
        return 0
    if plan.parameters.on_error != "raise":
        return 0  # each feed counts bad samples for itself
    if plan.rows_at_once > 1:
        return 0  # many requests at a time take threads, which no trainer's process starts
    batch_s = plan.seconds_per_row * plan.parameters.batch_size
    return max(2, min(_HEAD_START_BATCHES, int(_HEAD_START_S / max(batch_s, 1e-6))))
