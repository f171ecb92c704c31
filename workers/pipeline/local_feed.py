"""`num_loaders: 0`: a pipeline without processes. The trainer makes each group itself, when it asks for it.

    next_group ─► assembly: tasks ─► worker: rows ─► assembly: done, announced

The assembly decides here what it decides in the assembler's process, and the worker is that of the loaders. So batches,
states and errors are the same. But nobody watches the time that a task takes, and a sample that would kill its loader
kills the trainer.

If a delivery would only copy a batch, the batch is promised first, and made in the trainer's own memory (`make`): then
each byte is copied once, from the file's map to the blob.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from typing import cast

import numpy as np

from ..base.closing import close_all
from ..base.errors import PipelineStalled, RingAllocationError
from ..base.specs import Rows, Straight
from ..base.statistics import Statistics
from ..loading.worker import Workplace
from ..order.sample_rng import OwnGlobals
from ..order.weights_log import NewWeights
from ..plan.batch import Batch
from ..plan.plan import IndexedPlan, Plan
from ..plan.sampled_plan import SampledPlan
from ..processes.process import interrupts_deferred
from ..scheduling.assembly import Assembly
from ..transport.memory import available_memory
from ..transport.messages import Announce, Done, Fill, ToLoader
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

_no_globals = nullcontext()
_log = logging.getLogger("blobfeed")


class _Errors(dict[int, BaseException]):
    """Each under its number. The worker holds this and not the feed: else the feed's memory, and a folder that its
    source has made, would last until the garbage collector comes."""

    def keep(self, error: BaseException) -> int:
        self[len(self) + 1] = error
        return len(self)


class LocalFeed:
    """What Feed is for processes, in one process."""

    def __init__(self, plan: Plan, *, promises: bool) -> None:
        """`promises`: whether `next_group` may announce a group that `make` has still to make.

        Raises RingAllocationError.
        """
        if promises and isinstance(plan, IndexedPlan) and plan.batch_bytes >= _ALONE_BYTES:
            plan = replace(plan, batches_per_slot=1)
        if isinstance(plan, IndexedPlan):  # of a cold file 64 small batches take 0.1 s, and the first one 2 ms
            plan = replace(plan, starts_small=True)
        self.waited_ns = 0
        self.stalls = 0
        self.start_ns: int | None = None
        """How long the trainer had waited when it took the first group."""
        self.batches_per_group = plan.batches_per_slot
        self._promises = promises
        self._plan = plan
        self._begun = time.monotonic_ns()
        self._assembly = Assembly(plan, slots=0)
        self._assembly.ledger.add_loader(_ITSELF, self._plan.tasks_in_flight)
        self._tasks: deque[ToLoader] = deque()
        self._promised: Announce | None = None
        self._made_in: Straight | None = None
        """Where the rows of the promised group are made, from the first try on."""
        self._failure: Failed | None = None
        self._errors = _Errors()
        self.views = _slots(plan)
        self._own = list(range(plan.slots))
        """The slots that the assembly has not been given. It gets another one if all that it has are held: so mostly it
        has one, warm in the cache."""
        self._drawn: SharedFile | None = None
        self._weights: SharedFile | None = None
        files = -1, -1
        if isinstance(plan, SampledPlan):
            self._drawn = SharedFile.create("blobfeed-drawn")
            self._weights = SharedFile.create("blobfeed-weights")
            self._assembly.schedule.use_file(self._drawn)
            files = self._drawn.descriptor, self._weights.descriptor
        self._board: StatusBoard | None = StatusBoard.create(0)
        self._board.describe(plan.description._replace(slots=0))
        self._next_note = 0
        self._worker = plan.worker(Workplace(self.views, Unwatched(), self._errors.keep, *files))
        self._globals = None if reads_only(plan) else OwnGlobals()

    def first_of(self, group: int) -> int:
        """The number of the group's first batch, of a plan by index."""
        assert isinstance(self._plan, IndexedPlan)
        return self._plan.first_batch(group) - self._plan.first_number

    # ---- groups

    def next_group(self) -> Announce:
        """The next group, made now, and the same one until it is accepted.

        Raises SampleError, SourceError, TooManyBadSamples, EndOfData, and the same again after the first of them;
        PipelineStalled if all slots are held.
        """
        if self._failure is not None:
            raise self._failure.error()
        if self._promised is not None:
            return self._promised
        if not self._assembly.outbox:
            self._find_tasks()
            if self._promises and self._tasks and _is_one_batch(self._plan) and isinstance(self._tasks[0], Fill):
                task, schedule = self._tasks[0], self._assembly.schedule
                runs = schedule.runs(task.group, 0, schedule.rows_of(task.group))
                self._promised = Announce(task.group, task.slot, runs=runs)
                return self._promised
            self._make_next()
        return self._announced()

    def open(self, announce: Announce) -> list[Batch]:
        """The batches of an announced group."""
        return self._plan.unpack(announce, self.views[announce.slot])

    def is_promised(self, group: int) -> bool:
        """Whether `group` has been announced and is still to be made."""
        return self._promised is not None and self._promised.group == group

    def make(self, group: int, into: Straight) -> tuple[Announce, Straight]:
        """Make the promised `group`, the rows of the tops in `into` right there; returns what they were made in.

        May be repeated after an interrupt: that is what was given at the first try, for some rows may lie there.
        Raises what `next_group` raises.
        """
        if self._failure is not None:
            raise self._failure.error()
        if self._promised is None or self._promised.group != group:
            raise ValueError(f"group {group} was not promised")
        if self._made_in is None:
            self._made_in = into
        made_in, slot = self._made_in, self._promised.slot
        if not self._assembly.outbox:
            own, self.views[slot] = self.views[slot], cast("dict[str, Rows]", {**self.views[slot], **made_in})
            try:
                self._make_next()
            finally:
                self.views[slot] = own
        return self._announced(), made_in

    def accept(self, group: int) -> None:
        """`group` has been received: the next one is another. May be repeated, as after a KeyboardInterrupt."""
        if self.is_promised(group) and self.ready_group() is None:
            self.make(group, {})
        if (announce := self.ready_group()) is not None and announce.group == group:
            if self.start_ns is None and self._board is not None:
                self._board.note_start(self.waited_ns)
                self.start_ns = self.waited_ns
            # If an interrupt comes in between, this is called again: until the last line all may be done twice.
            self._promised = self._made_in = None
            del self._assembly.outbox[0]

    def release(self, group: int) -> None:
        """Give the group's slot back."""
        announce = self._assembly.release(group)
        if announce is not None and self._board is not None:
            rows = self._assembly.batch_rows(announce)
            self._board.add(Count.SAMPLES, sum(rows))
            self._board.add(Count.BATCHES, len(rows))

    def ready_group(self) -> Announce | None:
        """The next group, if it has been made."""
        outbox = self._assembly.outbox
        return outbox[0] if outbox and isinstance(outbox[0], Announce) else None

    @property
    def has_failed(self) -> bool:
        """Whether `next_group` would raise an error that is known."""
        return self._failure is not None

    def use_huge_pages(self) -> None:
        """NumPy's memory has them by itself, where the kernel gives them."""

    def set_weights(self, new: NewWeights) -> None:
        """Tell the sampler of new weights."""
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
        first = self._assembly.outbox[0]
        if isinstance(first, Announce):
            return first
        self._failure = Failed(explain(self._plan, first, lambda number, _: self._errors[number]))
        self._errors.clear()  # see Failed
        raise self._failure.error()

    def _make_next(self) -> None:
        begun = time.monotonic_ns()
        self.stalls += 1
        try:
            while not self._assembly.outbox:
                self._find_tasks()
                if self._tasks:
                    self._do(self._tasks[0])
        finally:
            now = time.monotonic_ns()
            self.waited_ns += now - begun
            if now > self._next_note:
                self._note(now)

    def _note(self, now: int) -> None:
        """Write the counts on the board, for whoever looks at this process from outside."""
        if (board := self._board) is None:
            return
        board.set_count(Count.STALLS, self.stalls)
        board.set_count(Count.REPLACED, self._assembly.replaced)
        board.set_count(Count.TASKS, self._assembly.tasks_done)
        board.set_count(Count.WAITED_NS, self.waited_ns)
        self._next_note = now + _NOTED_NS

    def _do(self, task: ToLoader) -> None:
        begun, ledger = time.monotonic_ns(), self._assembly.ledger
        try:
            with _no_globals if self._globals is None else self._globals.used():
                work = self._worker.work(task)
            now = time.monotonic_ns()
            done = Done(_ITSELF, task.task, now - begun, tuple(work.bad), work.stream_rows, work.drawn)
            with interrupts_deferred():
                self._assembly.done(done, now / 1e9)
                self._tasks.popleft()
                self._assembly.announce()
        except BaseException:  # a hook may have changed rows: as after a loader's death, they are made again first
            with interrupts_deferred():
                ledger.remove_loader(_ITSELF)
                ledger.add_loader(_ITSELF, self._plan.tasks_in_flight)
                self._tasks.clear()
            raise
        for bad in self._assembly.taken_bad_samples():
            _log.warning("%s", bad)

    def _find_tasks(self) -> None:
        """There is a task then, or something to tell. Raises PipelineStalled."""
        while not self._tasks and not self._assembly.outbox:
            with interrupts_deferred():
                if (order := next(self._assembly.assignments(0.0), None)) is not None:
                    self._tasks.append(order.task)
                else:
                    self._assembly.announce()
            if not self._tasks and not self._assembly.outbox:
                self._give_slot()

    def _give_slot(self) -> None:
        """Raises PipelineStalled."""
        if not self._own:
            raise PipelineStalled(too_many_held(len(self.views)))
        with interrupts_deferred():
            self._assembly.ledger.add_slot(self._own.pop(0))

    # ---- counts, the end

    def statistics(self, batches: int) -> Statistics:
        return Statistics(
            batches=batches,
            stalls=self.stalls,
            stall_s=self.waited_ns / 1e9,
            start_s=(self.start_ns or 0) / 1e9,
            loaders=0,
            loader_deaths=0,
            replaced=self._assembly.replaced,
            dropped_messages=0,
            tasks=self._assembly.tasks_done,
            diagnosis=in_process((time.monotonic_ns() - self._begun) / 1e9, self.waited_ns / 1e9),
        )

    def states(self) -> list[LoaderState]:
        """There are no loaders."""
        return []

    def end(self) -> None:
        """There are no processes."""

    def close(self) -> None:
        self._failure = None
        self._errors.clear()
        files, self._drawn, self._weights = (self._drawn, self._weights), None, None
        board, self._board = self._board, None
        close_all(*(file.close for file in (*files, board) if file is not None))


def _slots(plan: Plan) -> list[dict[str, Rows]]:
    """As many as a ring would have, of memory that is taken when it is first written to."""
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


def _is_one_batch(plan: Plan) -> bool:
    """Whether a group is a batch of whose rows is known beforehand how they lie, and that no hook sees as a whole."""
    return isinstance(plan, IndexedPlan) and plan.batches_per_slot == 1 and not plan.postprocesses


def reads_only(plan: Plan) -> bool:
    """Whether rows are only copied from where they are stored: nothing is decoded, and no user code runs."""
    if not isinstance(plan, IndexedPlan) or plan.postprocesses:
        return False
    decoded = plan.decoded.value
    return bool(decoded.rows.changes_nothing and decoded.source.stores_rows)
