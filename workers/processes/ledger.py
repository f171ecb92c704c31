"""The ledger: who owes which rows of which batch. Pure: events in, decisions out, no clock and no socket of its own.

A *unit* is what one slot holds: a batch, or several batches where they are tiny. Its rows are cut into tasks; tasks are
given to the loader that owes least, at most MAX_OWED at a time; a unit whose last task is done is announced; the
trainer's release frees its slot for the next unit. What a dead loader owed is given to others. Only the death of the
process puts its tasks back, never a mere suspicion: so nobody can still be writing into rows that another loader gets.
"""

from __future__ import annotations

import bisect
import enum
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

MAX_OWED = 2
"""Tasks a loader holds at most: one to work on and one so that it need not wait for the next."""

_MOST_KEEPERS = 256
"""Kinships remembered; one that was forgotten costs reading a chunk twice, and nothing else."""

_ENOUGH_TO_CONVICT = 6
"""Sum of the weights of its deaths from which a task is called poisoned."""


class Weight(enum.IntEnum):
    """How much the death of a loader says against the task that it was at."""

    KILLED_FROM_OUTSIDE = 1
    """By memory shortage, for which the task need not be to blame, or by somebody."""
    CRASHED = 2
    HUNG = 3
    """Each time costs task_timeout_s, and all of them together must stay below timeout_s."""


@dataclass(slots=True, eq=False)
class Task:
    """`rows` rows of `unit` from `first_row`; `rows` is 0 for the postprocessing of the whole unit."""

    id: int
    unit: int
    slot: int
    first_row: int
    rows: int
    deaths: int = 0
    suspicion: int = 0
    skip: int = 0
    """How many candidates for the row are already known to kill loaders (only where `rows` is 1)."""

    @property
    def is_postprocess(self) -> bool:
        return self.rows == 0


def _no_kin(_unit: int, _row: int) -> None:
    """Any task may go to any loader."""


@dataclass(slots=True)
class _Unit:
    slot: int
    rows: int
    open_rows: int
    postprocess: Task | None = None
    """Where loaders have died in it: what is held against it."""


@dataclass(slots=True)
class _Debt:
    """What one loader owes, oldest first; it works in this order."""

    tasks: deque[Task] = field(default_factory=deque)
    since: float = 0.0
    """When it began its oldest task."""
    dismissed: bool = False


class Ledger:
    """All units between the opening of a slot and its release.

    `slots`: slots in the ring.  `rows_of`: how many rows a unit has (the last one may have fewer).
    `has`: whether there is a unit of that number; asked in rising order.  `kin_of`: (unit, row) → a number that rows
    have in common which one loader had better make, because they lie in the same storage chunks or the same stream;
    None where it does not matter.  `can_be_cut`: whether the rows of a unit may be made by several loaders.
    """

    def __init__(
        self,
        *,
        slots: int,
        rows_of: Callable[[int], int],
        has: Callable[[int], bool],
        in_order: bool = True,
        postprocess: bool = False,
        kin_of: Callable[[int, int], int | None] = _no_kin,
        can_be_cut: bool = True,
    ) -> None:
        self.rows_per_task = 1 << 40
        self._rows_of = rows_of
        self._has = has
        self._can_be_cut = can_be_cut
        self._in_order = in_order
        self._postprocess = postprocess
        self._kin_of = kin_of
        self._keepers: OrderedDict[int, int] = OrderedDict()
        self._free = deque(range(slots))
        self._next_unit = 0
        self._next_announced = 0
        self._next_task = 1
        self._working: dict[int, _Unit] = {}
        self._complete: list[tuple[int, _Unit]] = []
        self._announced: dict[int, int] = {}
        self._queue: list[tuple[int, int, int, Task]] = []
        self._debts: dict[int, _Debt] = {}

    # ---- slots and units

    def open_units(self) -> None:
        """Give every free slot to the next unit and cut its rows into tasks."""
        while self._free and self._has(self._next_unit):
            number, slot = self._next_unit, self._free.popleft()
            self._next_unit += 1
            rows = self._rows_of(number)
            self._working[number] = _Unit(slot, rows, rows)
            self._cut(number, slot, rows)

    def _cut(self, unit: int, slot: int, rows: int) -> None:
        if not self._can_be_cut:
            self._cut_rows(unit, slot, [0], rows, rows)
            return
        for first, end in self._runs_of_kin(unit, rows):
            self._cut_rows(unit, slot, range(first, end, self.rows_per_task), end, self.rows_per_task)

    def _runs_of_kin(self, unit: int, rows: int) -> Iterator[tuple[int, int]]:
        """(first, end) of the rows that one loader had better make: kin never come back once others have followed.

        A task across such a border had its chunks decoded by two loaders: a third of all chunks, where a window is as
        long as two batches.
        """
        end = 0
        while end < rows:
            first, kin = end, self._kin_of(unit, end)
            end = rows if kin is None else self._end_of_kin(unit, first, rows, kin)
            yield first, end

    def _end_of_kin(self, unit: int, first: int, rows: int, kin: int) -> int:
        return bisect.bisect_left(range(rows), True, lo=first, key=lambda row: self._kin_of(unit, row) != kin)

    def _cut_rows(self, unit: int, slot: int, starts: Iterable[int], end: int, rows: int, skip: int = 0) -> None:
        for start in starts:
            self._enqueue(Task(self._new_id(), unit, slot, start, min(rows, end - start), skip=skip))

    def _new_id(self) -> int:
        self._next_task += 1
        return self._next_task - 1

    def _enqueue(self, task: Task) -> None:
        heapq.heappush(self._queue, (task.unit, task.first_row, task.id, task))

    def announcements(self) -> Iterator[tuple[int, int]]:
        """(unit, slot) of what the trainer can be told of now, in its order; each is given once."""
        while self._complete and (not self._in_order or self._complete[0][0] == self._next_announced):
            number, unit = heapq.heappop(self._complete)
            self._next_announced += 1
            self._announced[number] = unit.slot
            yield number, unit.slot

    def release(self, unit: int) -> bool:
        """The trainer is done with `unit`; False where it does not hold it (a repeated or foreign message)."""
        slot = self._announced.pop(unit, None)
        if slot is None:
            return False
        self._free.append(slot)
        return True

    # ---- loaders and tasks

    def add_loader(self, loader: int) -> None:
        self._debts[loader] = _Debt()

    @property
    def loaders(self) -> list[int]:
        return list(self._debts)

    def dismiss_one(self) -> None:
        """Give no more tasks to the loader that owes least."""
        working = [debt for debt in self._debts.values() if not debt.dismissed]
        if working:
            min(working, key=lambda debt: len(debt.tasks)).dismissed = True

    def dismissed_and_free(self) -> list[int]:
        """Dismissed loaders that owe nothing any more."""
        return [loader for loader, debt in self._debts.items() if debt.dismissed and not debt.tasks]

    def owed(self, loader: int) -> list[Task]:
        """What `loader` owes, oldest first."""
        return list(self._debts[loader].tasks)

    def assign(self, now: float) -> Iterator[tuple[int, Task]]:
        """(loader, task) for each task that can be given out now; the earliest rows first, to who owes least."""
        kept_waiting = []
        while self._queue and (idlest := self._idlest()) is not None:
            entry = heapq.heappop(self._queue)
            task = entry[-1]
            loader = self._keeper(task, idlest)
            debt = self._debts[loader]
            if len(debt.tasks) >= MAX_OWED:
                kept_waiting.append(entry)
                continue
            if not debt.tasks:
                debt.since = now
            debt.tasks.append(task)
            yield loader, task
        for entry in kept_waiting:
            heapq.heappush(self._queue, entry)

    def _idlest(self) -> int | None:
        """Who owes least and may be given more."""
        debts = [(len(debt.tasks), loader) for loader, debt in self._debts.items() if not debt.dismissed]
        owed, loader = min(debts, default=(MAX_OWED, 0))
        return loader if owed < MAX_OWED else None

    def _keeper(self, task: Task, idlest: int) -> int:
        """Who gets `task`: the loader that has its kin, or else the idlest, which keeps them from now on."""
        kin = self._kin_of(task.unit, task.first_row)
        if kin is None:
            return idlest
        keeper = self._keepers.get(kin)
        if keeper is None or keeper not in self._debts or self._debts[keeper].dismissed:
            self._keepers[kin] = keeper = idlest
            if len(self._keepers) > _MOST_KEEPERS:
                self._keepers.popitem(last=False)
        return keeper

    def done(self, loader: int, task_id: int, now: float) -> Task | None:
        """The task that `loader` has done; None where it owes no such task (a repeated or late message)."""
        debt = self._debts.get(loader)
        task = next((task for task in debt.tasks if task.id == task_id), None) if debt else None
        if debt is None or task is None:
            return None
        debt.tasks.remove(task)
        debt.since = now
        self._tick_off(task)
        return task

    def _tick_off(self, task: Task) -> None:
        unit = self._working[task.unit]
        unit.open_rows -= task.rows
        if unit.open_rows > 0:
            return
        if self._postprocess and not task.is_postprocess:
            self._enqueue(unit.postprocess or Task(self._new_id(), task.unit, task.slot, 0, 0))
            return
        heapq.heappush(self._complete, (task.unit, self._working.pop(task.unit)))

    def overdue(self, now: float, limit: float) -> list[int]:
        """Loaders that have been at one task for longer than `limit` seconds."""
        return [loader for loader, debt in self._debts.items() if debt.tasks and now - debt.since > limit]

    def next_deadline(self, limit: float) -> float | None:
        """When the first loader becomes overdue, if it does not report before."""
        return min((debt.since + limit for debt in self._debts.values() if debt.tasks), default=None)

    # ---- death

    def remove_loader(self, loader: int, working_on: int = 0, weight: Weight = Weight.CRASHED) -> Task | None:
        """`loader` is dead: its tasks go back. Returns the task on which loaders die too often, if this is one.

        `working_on`: the id of the task it had begun, 0 if none: that one alone is suspect. The oldest owed task is no
        substitute: a loader may die before its report of that task has left it, and working on the next one.
        At the first death a suspect of many rows is cut into single ones, and only one of them can be guilty.
        A returned task is out of the ledger's hands until `retry` puts it back.
        """
        poison = None
        for task in self._debts.pop(loader).tasks:
            if task.id == working_on:
                poison = self._put_back_suspect(task, weight)
            else:
                self._put_back(task)
        return poison

    def _put_back(self, task: Task) -> None:
        if task.is_postprocess:
            self._refill(task)
        else:
            self._enqueue(task)

    def _put_back_suspect(self, task: Task, weight: Weight) -> Task | None:
        if task.rows > 1 and self._can_be_cut:
            end = task.first_row + task.rows
            self._cut_rows(task.unit, task.slot, range(task.first_row, end), end, 1)
            return None
        task.deaths += 1
        task.suspicion += weight
        if task.suspicion >= _ENOUGH_TO_CONVICT:
            return task
        self._put_back(task)
        return None

    def _refill(self, task: Task) -> None:
        """A hook that died in the middle of a unit may have left it half changed: all its rows are made again."""
        unit = self._working[task.unit]
        unit.postprocess = task
        unit.open_rows = unit.rows
        self._cut(task.unit, unit.slot, unit.rows)

    def write_off(self, task: Task) -> None:
        """Count a poisoned task as done: its unit fails, and is still to be announced in its turn."""
        self._tick_off(task)

    def retry(self, task: Task) -> None:
        """Put back a poisoned row: the candidate on which loaders died is to be skipped, the next one tried."""
        self._cut_rows(task.unit, task.slot, [task.first_row], task.first_row + 1, 1, skip=task.skip + 1)
