"""`num_loaders: 0`: a feed without processes. The trainer makes each group itself, when it asks for it.

    next ─► assembly: a task ─► worker: rows ─► assembly: done, announced

The assembly decides here what it decides in the assembler's process, and the worker is that of the loaders. So batches,
states and errors are the same. But no process watches the time that a task takes, and a sample that would kill its
loader kills the trainer.

If a delivery would only copy large batches, a group of them is given before its rows are made. The `make` of each
reads its rows right into the trainer's memory, so that each byte is copied once. The assembly has one task for the
group, which is done when the last batch is.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NoReturn, cast

import numpy as np

from ..base.closing import close_all
from ..base.errors import PipelineStalled, RingAllocationError
from ..base.hooks import Hooks
from ..base.specs import DirectRows, Rows
from ..base.statistics import Statistics
from ..loading.worker import WorkDone, Workplace
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
"""A second copy of so much takes longer than what is done for each batch that is made by itself."""

_STRAIGHT_BYTES = 64 << 20
"""In a group of so much, what is done for each group takes half a percent of the time."""

_MOST_STRAIGHT = 32

_HEAD_START_S = 0.2
_HEAD_START_BATCHES = 4

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
        known = plan.order is not None and not plan.postprocesses
        self._straight = straight and known and plan.batch_bytes >= _ALONE_BYTES
        """All batches have `make`."""
        in_group = _straight_batches(plan) if self._straight else plan.batches_per_slot
        # Of a cold file 64 small batches take 0.1 s, and the first one 2 ms.
        plan = replace(plan, starts_small=plan.order is not None, batches_per_slot=in_group)
        self._plan = plan
        self._begun = time.monotonic_ns()
        self._slots = _slots(plan)
        self._assembly = Assembly(plan, alone=True)
        self._assembly.ledger.add_loader(_ITSELF, plan.tasks_in_flight)
        self._todo: deque[ToLoader] = deque()
        """The assembly's task; if its batches have `make`, the parts of it that are still to be made, one for each."""
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
        self._last = Statistics(0, 0, 0.0, 0.0, 0, 0, 0, 0, 0)
        """The counts at the end."""
        self._worker = plan.worker(Workplace(self._slots, Unwatched(), self._errors.keep, *files))
        self._globals = nullcontext if reads_only(plan) else OwnGlobals().used

    # ---- groups

    def next(self) -> Sequence[Batch]:
        if self._failure is not None:
            raise self._failure.error()
        outbox = self._assembly.outbox
        while not self._batches:
            if outbox and isinstance(announce := outbox[0], Announce):
                batches = self._plan.unpack(announce, self._slots[announce.slot])
                with interrupts_deferred():
                    self._batches = batches
                    del outbox[0]
            elif outbox:
                self._fail()
            elif not self._todo:
                self._find_task()
            else:
                self._work(self._todo[0])
        return self._batches

    def ready(self) -> Sequence[Batch]:
        return self.next() if self._batches or self._assembly.outbox else ()

    def accept(self, group: int) -> None:
        self._batches = ()

    def release(self, group: int) -> None:
        self._assembly.release(group)
        if self._board is not None:
            self._board.set_counts(self._assembly.counts)

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

    def _fail(self) -> NoReturn:
        """Raise the error that ended the run, which is the next message."""
        last = self._assembly.outbox[0]
        assert not isinstance(last, Announce)
        self._failure = Failed(explain(self._plan, last, lambda number, _: self._errors[number]))
        self._errors.clear()  # see Failed
        raise self._failure.error()

    def _find_task(self) -> None:
        """Take the next task, or bring the assembly further without one; raises PipelineStalled if it is stuck."""
        with interrupts_deferred():
            assigned = next(self._assembly.assignments(0.0), None)
            if assigned is not None:
                task = assigned.task
                self._todo.extend(self._parts(task) if self._straight and isinstance(task, Fill) else (task,))
                return
            freed = self._assembly.announce()
        if not (freed or self._assembly.outbox):
            raise PipelineStalled(too_many_held(len(self._slots)))

    def _parts(self, task: Fill) -> Iterator[Fill]:
        """Give the batches of `task` to the trainer before their rows are made; yields the part of each."""
        whole = Announce(task.group, task.slot, runs=task.runs)
        self._batches = batches = self._plan.unpack(whole, self._slots[task.slot])
        for batch in batches:
            runs = tuple(batch.runs)
            part = Fill(task.task, task.group, task.slot, runs[0].row, batch.rows, runs=runs)
            batch.make = partial(self._make, part, batch.tops)
            yield part

    def _make(self, part: Fill, slot: Mapping[str, Rows], into: DirectRows | None) -> Mapping[int, int]:
        """See Batch.make."""
        if into is None:
            self._note_done(part, WorkDone(), 0)
            return {}
        if self._failure is not None:
            raise self._failure.error()
        bad = self._work(part, cast("dict[str, Rows]", {**slot, **into})).bad
        if bad and self._assembly.outbox:
            self._fail()
        return {row.row - part.first_row: row.replacement for row in bad}

    def _work(self, task: ToLoader, rows: Mapping[str, Rows] | None = None) -> WorkDone:
        """Do `task`; if it has been done before, into other memory, it is not reported again."""
        begun = time.monotonic_ns()
        try:
            with self._globals():
                work = self._worker.work(task, rows)
            self._note_done(task, work, time.monotonic_ns() - begun)
        except BaseException:
            if isinstance(task, Postprocess) and self._todo:  # it may have changed rows: these are made again
                with interrupts_deferred():
                    self._assembly.ledger.remove_loader(_ITSELF)
                    self._assembly.ledger.add_loader(_ITSELF, self._plan.tasks_in_flight)
                    self._todo.clear()
            raise
        for sample in self._assembly.taken_bad_samples() if work.bad else ():
            _log.warning("%s", sample)
        return work

    def _note_done(self, task: ToLoader, work: WorkDone, elapsed_ns: int) -> None:
        """Record that `task` is done, unless it was before. The assembly hears of its task when all parts are done."""
        board = self._board
        if board is None or not self._todo or self._todo[0] is not task:
            return
        board.add(Count.WAITED_NS, elapsed_ns)
        board.add(Count.STALLS, isinstance(task, Fill))
        if len(self._todo) > 1 and not work.bad:  # with a bad one the batch is the only one of its group, or the last
            self._todo.popleft()
            return
        done = Done(_ITSELF, task.task, elapsed_ns, tuple(work.bad), work.stream_rows, work.drawn)
        outbox = self._assembly.outbox
        with interrupts_deferred():
            self._todo.clear()
            self._assembly.done(done, 0.0)
            self._assembly.announce()
            if self._straight and isinstance(outbox[0], Announce):  # the trainer has these batches
                del outbox[0]
        if isinstance(task, Fill) and not board.count(Count.FIRST_BATCH_NS):
            board.note_start()

    # ---- counts, the end

    def statistics(self, batches: int) -> Statistics:
        return replace(self._last if self._board is None else self._counts(self._board), batches=batches)

    def _counts(self, board: StatusBoard) -> Statistics:
        waited_s = board.count(Count.WAITED_NS) / 1e9
        return Statistics(
            batches=0,
            stalls=board.count(Count.STALLS),
            stall_s=waited_s,
            start_s=board.count(Count.START_NS) / 1e9,
            loaders=0,
            loader_deaths=0,
            replaced=self._assembly.replaced,
            dropped_messages=0,
            tasks=self._assembly.tasks_done,
            diagnosis=in_process((time.monotonic_ns() - self._begun) / 1e9, waited_s),
        )

    def states(self) -> list[LoaderState]:
        """Return none: there are no loaders."""
        return []

    def close(self) -> None:
        self._batches, self._failure = (), None
        self._todo.clear()
        self._errors.clear()
        files, self._drawn, self._weights = (self._drawn, self._weights), None, None
        if (board := self._board) is not None:
            self._last, self._board = self._counts(board), None
        close_all(*(file.close for file in (*files, board) if file is not None))


def _straight_batches(plan: Plan) -> int:
    """Return the number of batches in a group if each is made right in the trainer's memory.

    With `on_error: replace` one, so that a bad sample is counted when it is found.
    """
    given = plan.parameters
    if given.on_error == "replace":
        return 1
    ahead = _MOST_STRAIGHT if given.prefetch_batches == "auto" else given.prefetch_batches // 2
    return max(1, min(ahead, _STRAIGHT_BYTES // max(1, plan.batch_bytes)))


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
