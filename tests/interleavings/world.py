"""One state of a small run: the real assembly, ledger and feed; loaders, links and slots as small as they can be.

What a loader does in one step of the real program is two events here, `begin` and `finish`: between them it may die,
hang, or be overtaken by anybody. A link is a queue; results come over one for each loader, so those of two loaders
overtake each other. What a dead loader had sent may still arrive, or be lost with it.

A slot's row is None while somebody writes it, else (batch, row, times postprocessed).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from blobfeed.workers.assembly import MAX_ASSIGNED, Assembly, Death, Evidence, Task
from blobfeed.workers.order import by_batch
from blobfeed.workers.pipeline import Held
from blobfeed.workers.plan import Plan
from blobfeed.workers.transport import (
    Activity,
    Announce,
    BadRow,
    Done,
    Draw,
    Drawn,
    Fill,
    LoaderState,
    Ready,
    Release,
    Run,
    Stop,
    ToLoader,
    WorkDone,
)
from blobfeed.workers.transport.links import frame_of

from blobfeed import BlobfeedError, PipelineStalled

from .canonical import Canonical, LoaderNumber
from .small_feed import DrawsFile, Link, NothingYet, Releases, SmallFeed, Wrong, require
from .variants import SHARD_ROWS, Variant

LOADERS = 2
Event = tuple[Any, ...]
Cell = tuple[int, int, int] | None


@dataclass
class Came:
    """A batch that has come to the trainer, which may read it until it releases it."""

    sequence: int
    slot: int
    rows: int


@dataclass
class Dying:
    """The end of a loader that the assembler does not know yet. `was_at`: the task, 0 for none."""

    was_at: int
    evidence: Evidence


@dataclass
class Loader:
    """`current`: what it is working on. `was_at`: the task whose report it sent last, until it begins another."""

    inbox: list[ToLoader] = field(default_factory=list)
    ready: bool = False
    """Whether it has been welcomed by the assembler."""
    current: ToLoader | None = None
    was_at: int = 0
    hung: bool = False
    death: Dying | None = None


class World:
    """`copy`: a message that somebody has kept, to be sent once more."""

    def __init__(self, plan: Plan, variant: Variant) -> None:
        faults = variant.faults
        self.plan = plan
        self.assembly = Assembly(plan)
        self.file = DrawsFile()
        self.assembly.schedule.draws.use_file(self.file)
        self.batches, self.releases = Link(), Releases()
        self.feed = SmallFeed(plan, self.batches, self.releases)
        self.results: dict[int, list[Any]] = {}
        self.loaders: dict[int, Loader] = {}
        self.slots: list[list[Cell]] = [[None] * variant.rows for _ in range(variant.slots)]
        self.opened: Announce | None = None
        self.wanted_batch = 0
        self.held: Any = Held()
        self.delivered: list[tuple[int, ...]] = []
        self.left = dict(vars(faults))
        self.copy: tuple[str, int, Any] | None = None
        self.wanted = LOADERS
        self.next_loader = 1
        self.stopping = False
        self.over = ""
        self._start_missing()
        for number in list(self.results):
            self._result(number)

    @property
    def variant(self) -> Variant:
        plan: Any = self.plan
        variant: Variant = plan.variant
        return variant

    # ---- what can happen now

    def events(self) -> Iterator[Event]:
        """All that may come next. The first word of each that is a fault is in FAULTS."""
        if self.over:
            return
        yield ("turn",)
        for number, loader in self.loaders.items():
            yield from self._events_of(number, loader)
        for number in self.results:
            yield "result", number
        if self.releases.frames:
            yield ("message",)
        if self.copy is not None:
            yield ("replay",)
        elif self.left["repeats"]:
            yield from (("copy", link, number) for link, number in self._copyable())
        if not self.stopping:
            yield from self._events_of_trainer()
        if self.left["dismissals"] and len(self.assembly.ledger.loaders) > 1:
            yield ("dismiss",)

    def _events_of(self, number: int, loader: Loader) -> Iterator[Event]:
        if loader.death is not None:
            yield "bury", number
            return
        if loader.hung:
            if number in self.assembly.ledger.overdue(2.0, 1.0):
                yield "timeout", number
            return
        if loader.current is None and loader.inbox:
            yield "begin", number
        if loader.current is not None:
            yield "finish", number
        if self.left["deaths"]:
            for lost in (False, True) if self.results.get(number) else (False,):
                yield "die", number, lost, False
                if loader.current is None and loader.was_at:
                    yield "die", number, lost, True
        if self.left["hangs"] and loader.ready:
            yield "hang", number

    def _events_of_trainer(self) -> Iterator[Event]:
        yield from (("release", batch) for batch in self.held.batches)
        if self.opened is not None:
            yield ("accept",)
        elif len(self.held.batches) <= self.variant.keeps:
            yield ("receive",)
        if self.left["stops"]:
            yield ("stop",)

    def _copyable(self) -> Iterator[tuple[str, int]]:
        if self.batches.frames:
            yield "batches", 0
        if self.releases.frames:
            yield "releases", 0
        yield from (("results", number) for number in self.results)

    # ---- what happens then

    def apply(self, event: Event) -> None:
        what, *rest = event
        getattr(self, f"_{what}")(*rest)

    # ---- the assembler

    def _turn(self) -> None:
        self._start_missing()
        self._assign()
        while self.assembly.announce():
            self._assign()
        for message in self.assembly.outbox:
            self.batches.send(message)
        self.assembly.outbox.clear()

    def _assign(self) -> None:
        for number, task in self.assembly.assignments(0.0):
            require(len(self.assembly.ledger.assigned(number)) <= MAX_ASSIGNED, "a loader has too many tasks")
            self.loaders[number].inbox.append(task)

    def _start_missing(self) -> None:
        while self.assembly.last is None and len(self.loaders) < self.wanted:
            number = LoaderNumber(self.next_loader)
            self.loaders[number] = Loader()
            self._report(number, Ready(number))
            self.next_loader += 1

    def _report(self, number: int, message: Ready | Done) -> None:
        self.results.setdefault(number, []).append(message)
        self.results = dict(sorted(self.results.items()))

    def _result(self, number: int) -> None:
        message = self.results[number].pop(0)
        if not self.results[number]:
            del self.results[number]
        self._take_result(message)

    def _take_result(self, message: Ready | Done) -> None:
        if isinstance(message, Done):
            self.assembly.done(message, 0.0)
            self._let_go()
        elif (loader := self.loaders.get(message.loader)) and not loader.ready:
            loader.ready = True
            self.assembly.ledger.add_loader(message.loader)

    def _bury(self, number: int) -> None:
        loader = self.loaders.pop(number)
        assert loader.death is not None
        state = LoaderState(0, number, Activity.DECODING, loader.death.was_at, -1, 0.0)
        self.assembly.loader_died(Death(number, state, "", loader.ready, False, loader.death.evidence))
        self._let_go()

    def _let_go(self) -> None:
        for number in self.assembly.ledger.dismissed_and_free():
            self.assembly.ledger.remove_loader(number)
            loader = self.loaders[number]
            loader.death = loader.death or Dying(0, Evidence.HUNG)

    def _dismiss(self) -> None:
        self.left["dismissals"] -= 1
        self.assembly.ledger.dismiss_one()
        self.wanted -= 1
        self._let_go()

    def _message(self) -> None:
        self._take_message(self.releases.frames.pop(0))

    def _take_message(self, message: Release | Stop) -> None:
        match message:
            case Release(upto, loans):
                self.assembly.release(upto, loans)
            case Stop():
                self.over = "stopped"

    # ---- a loader

    def _begin(self, number: int) -> None:
        loader, ledger = self.loaders[number], self.assembly.ledger
        loader.current = task = loader.inbox.pop(0)
        require(
            any(task.task == assigned.id for assigned in ledger.assigned(number)),
            f"loader {number} works on task {task.task}, which is not assigned to it",
        )
        if isinstance(task, Draw):
            return
        places = self._places(task)
        taken = {came.slot for came in self.held.batches.values()}
        require(not taken & {slot for slot, _ in places}, "a slot that the trainer has is written to")
        if task.finishes:
            for row in range(task.first_row):
                (slot, within), batch = self._place(task, row), task.batch + row // self.variant.rows
                cell = self.slots[slot][within]
                require(cell == (batch, within, 0), f"batch {batch} is finished, and its row {within} is {cell}")
        for slot, row in places:
            self.slots[slot][row] = None
        writers = [self._places(other.current) for other in self.loaders.values()
                   if other.current and not other.death and not isinstance(other.current, Draw)]  # fmt: skip
        for ours, theirs in combinations(writers, 2):
            require(not set(ours) & set(theirs), f"two loaders write the same rows: {ours}, {theirs}")

    def _place(self, task: Fill, row: int) -> tuple[int, int]:
        """The slot, and the row there, of a row that is counted from the beginning of the task's batch."""
        behind, within = divmod(row, self.variant.rows)
        return task.slot + behind, within

    def _places(self, task: Fill) -> list[tuple[int, int]]:
        """All rows that the task may write to."""
        first = 0 if task.finishes else task.first_row
        return [self._place(task, row) for row in range(first, task.first_row + task.rows)]

    def _finish(self, number: int) -> None:
        loader = self.loaders[number]
        task, loader.current = loader.current, None
        assert task is not None
        loader.was_at = task.task
        if isinstance(task, Draw):
            samples = self.variant.drawn[task.epoch]
            self.file.write(task.offset, samples)
            self._report(number, Done(number, task.task, 0, WorkDone(drawn=Drawn(len(samples)))))
            return
        for slot, row in self._places(task):
            self.slots[slot][row] = task.batch + slot - task.slot, row, int(task.finishes)
        size, stream_rows = self.variant.rows, -1
        bad_row = (self.variant.bad_batch - task.batch) * size
        is_bad = self.variant.bad_batch >= 0 and task.first_row <= bad_row < task.first_row + task.rows
        bad = (BadRow(bad_row, 0, self.variant.bad_batch * size, -1, "", "bad"),) if is_bad else ()
        if self.variant.stream:
            (run,) = task.runs
            stream_rows = min(run.rows, max(0, SHARD_ROWS[run.shard] - run.position))
        if self.variant.drawn:
            for run in task.runs:
                read = tuple(self.file.read(run.offset + 8 * run.position, run.rows).tolist())
                require(read == self._samples_of(run), f"a loader is to make {run}, and reads {read}")
        elapsed = 10_000_000 // self.variant.rows_per_task * task.rows
        self._report(number, Done(number, task.task, elapsed, WorkDone(bad, stream_rows)))

    def _samples_of(self, run: Run) -> tuple[int, ...]:
        return self.variant.drawn[run.epoch][run.position :][: run.rows]

    def _die(self, number: int, lost: bool, late: bool) -> None:
        """`lost`: with its reports; `late`: when it had reported, and the status board still showed that task."""
        self.left["deaths"] -= 1
        loader = self.loaders[number]
        if lost:
            del self.results[number]
        task = loader.current.task if loader.current else loader.was_at if late else 0
        loader.death = Dying(task, Evidence.CRASHED)

    def _hang(self, number: int) -> None:
        self.left["hangs"] -= 1
        self.loaders[number].hung = True

    def _timeout(self, number: int) -> None:
        loader = self.loaders[number]
        loader.death = Dying(loader.current.task if loader.current else 0, Evidence.HUNG)

    # ---- the trainer

    def _receive(self) -> None:
        try:
            self.opened = self.feed.next_announce(self.wanted_batch, self.held)
        except NothingYet:
            return
        except PipelineStalled as problem:
            raise Wrong(f"the trainer holds {list(self.held.batches)} and is told: {problem}") from problem
        except BlobfeedError as problem:
            ended = type(problem).__name__ == "EndOfData"
            if ended:
                in_loop = _drawn_batches(self.variant) if self.variant.drawn else _stream_batches(self.variant)
                require(len(self.delivered) == len(in_loop), f"the end came behind {self.delivered}")
            self.over = "ended" if ended else "failed"
            self._check_failure(problem)
            return
        for came in self._batches_of(self.opened):
            self._look(came)

    def _check_failure(self, problem: BlobfeedError) -> None:
        require(self.over == "ended" or self.variant.may_fail, f"the run failed: {problem}")
        if self.variant.bad_batch >= 0:
            before = [(batch,) for batch in range(self.variant.bad_batch)]
            require(self.delivered == before, f"a bad batch ended the run after {self.delivered}")

    def _accept(self) -> None:
        announce, self.opened = self.opened, None
        assert announce is not None
        came = self._batches_of(announce)
        self.held.batches |= {each.sequence: each for each in came}
        self.wanted_batch = came[-1].sequence + 1
        samples = b""
        for each, runs in zip(came, by_batch(announce.runs, self.variant.rows).values(), strict=True):
            (run,) = runs
            known = not (self.variant.stream or self.variant.drawn)
            what = (each.sequence,) if known else (run.epoch, run.shard, run.position, run.rows)
            self._deliver(what)
            if self.variant.drawn:
                samples += np.array(self._samples_of(run), np.int64).tobytes()
        require(announce.indices == samples, f"other samples lie in {announce}")

    def _deliver(self, what: tuple[int, ...]) -> None:
        require(what not in self.delivered, f"{what} is delivered twice")
        self.delivered.append(what)
        if self.variant.drawn:
            expected = _drawn_batches(self.variant)
        elif self.variant.stream:
            expected = [(0, *batch) for batch in _stream_batches(self.variant)]
        else:
            expected = [(batch,) for batch in range(self.variant.batches)]
        require(self.delivered == expected[: len(self.delivered)], f"delivered are {self.delivered}")

    def _batches_of(self, announce: Announce) -> list[Came]:
        found = by_batch(announce.runs, self.variant.rows)
        return [
            Came(announce.batch + place, announce.slot + place, sum(run.rows for run in runs))
            for place, runs in found.items()
        ]

    def _release(self, batch: int) -> None:
        self._look(self.held.batches[batch])
        self.held.release(batch)
        self.feed.release(self.held)

    def _stop(self) -> None:
        self.left["stops"] -= 1
        self.stopping = True
        self.releases.send(frame_of(Stop()))

    def _look(self, came: Came) -> None:
        cells = self.slots[came.slot][: came.rows]
        wanted = [(came.sequence, row, int(self.variant.postprocess)) for row in range(came.rows)]
        require(cells == wanted, f"batch {came.sequence} lies in slot {came.slot} as {cells}")

    # ---- somebody sends a message again

    def _copy(self, link: str, number: int) -> None:
        self.left["repeats"] -= 1
        if link in ("batches", "releases"):
            queue: list[Any] = (self.batches if link == "batches" else self.releases).frames
        else:
            queue = self.results[number]
        self.copy = link, number, queue[0]

    def _replay(self) -> None:
        assert self.copy is not None
        (link, _, message), self.copy = self.copy, None
        if link == "batches":
            self.batches.send(message)
        elif link == "releases":
            self._take_message(message)
        else:
            self._take_result(message)

    # ---- what always holds

    @property
    def at_end(self) -> bool:
        if self.over:
            return True
        ledger = self.assembly.ledger
        idle = not ledger.slots_filling and not ledger.slots_full
        known = not (self.variant.stream or self.variant.drawn)
        return known and len(self.delivered) == self.variant.batches and idle

    def check(self) -> None:
        ledger = self.assembly.ledger
        slots = sorted([*ledger.slots._free, *ledger.slots._of.values()])
        require(slots == list(range(self.variant.slots)), f"slots: {slots}")
        tasks: dict[int, list[Task]] = {batch: [] for batch in ledger._left}
        draws = [task for task in _all_tasks(ledger) if task.draw is not None]
        require(len(draws) < 2, f"{len(draws)} epochs are being drawn")
        for task in _all_tasks(ledger):
            if task.draw is not None:
                continue
            for batch in _batches_in(task, self.variant.rows):
                require(batch in tasks, f"a task is open for batch {batch}, which is not being made")
                tasks[batch].append(task)
        for batch, left in ledger._left.items():
            _check_batch(batch, left, tasks[batch], self.variant)
        struck = sum(getattr(self.variant.faults, what) - self.left[what] for what in ("deaths", "hangs"))
        blamed = sum(task.deaths for task in _all_tasks(ledger))
        require(blamed <= struck, f"{struck} loaders have died, and tasks are blamed for {blamed} deaths")
        for number, loader in self.loaders.items():
            if loader.ready and number in ledger.loaders:
                self._check_loader(number, loader)

    def _check_loader(self, number: int, loader: Loader) -> None:
        """What the ledger believes the loader to have is with it, or its report is on its way."""
        have = [task.task for task in loader.inbox]
        have += [loader.current.task] if loader.current else []
        have += [message.task for message in self.results.get(number, []) if isinstance(message, Done)]
        assigned = [task.id for task in self.assembly.ledger.assigned(number)]
        if loader.death is None:
            require(set(assigned) <= set(have), f"loader {number} should do {assigned}, and knows of {have}")

    # ---- to recognise a state

    def key(self) -> object:
        """Equal for states that have the same future."""
        heard_of = [*self.assembly.ledger.loaders, *self.results]
        return Canonical([*heard_of, *self.loaders]).of(vars(self))


FAULTS = {"die", "hang", "copy", "dismiss", "stop"}


def is_fault(event: Event) -> bool:
    """Whether an event need not ever happen: no way to the end may count on it."""
    return event[0] in FAULTS


def _all_tasks(ledger: Any) -> Iterator[Task]:
    yield from (entry[-1] for entry in ledger._queue)
    yield from ledger._finishers.values()
    for line in ledger._loaders.values():
        yield from line.tasks
        yield from (entry[-1] for entry in line.waiting)


def _batches_in(task: Task, size: int) -> range:
    """The batches that the task has rows of, or finishes."""
    return range(task.batch, task.batch + 1 + max(0, task.end - 1) // size)


def _check_batch(batch: int, left: int, tasks: list[Task], variant: Variant) -> None:
    size = variant.rows
    every = [task.batch * size + row for task in tasks for row in range(task.first_row, task.end)]
    rows = [row for row in every if row // size == batch]
    require(len(set(rows)) == len(rows), f"rows of batch {batch} are in two tasks: {sorted(rows)}")
    finish = sum(task.finishes for task in tasks)
    require(finish == (variant.postprocess and left > 0), f"{finish} tasks finish batch {batch}, which lacks {left}")
    require(len(rows) + finish == left, f"batch {batch} lacks {left}, and the tasks have rows {sorted(rows)}")


def _stream_batches(variant: Variant) -> list[tuple[int, ...]]:
    """Shard, position and rows of each batch of an epoch: the shards take turns."""
    return [batch for batch in ((0, 0, 2), (1, 0, 1), (0, 2, 1)) if batch[0] < variant.shards]


def _drawn_batches(variant: Variant) -> list[tuple[int, ...]]:
    """The epoch, 0, position and rows of each batch."""
    lengths = [(epoch, len(samples)) for epoch, samples in enumerate(variant.drawn)]
    size = variant.rows
    return [(epoch, 0, first, min(size, rows - first)) for epoch, rows in lengths for first in range(0, rows, size)]
