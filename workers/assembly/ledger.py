"""The ledger: a sequence of batches 0, 1, 2 …, and which loader makes which of their rows. Pure.

    opened ──► made, by anyone and in any order ──► complete ──► released, or on loan for a while

Three counters that only grow say where things stand: batches below `opened` have a slot and tasks, those below
`complete` are whole and the trainer may have them, and those below `released` it has given back, but for the few that
are on loan. Two rules:

1. Everything that decides who makes which rows stands here. No sample, no clock and no socket does.
2. Only the death of a process puts its tasks back, never a suspicion. So no loader can still write into rows that
   another one makes.

A task is rows that adjoin: a part of a batch, or several small batches. It goes to the loader with the fewest, up to a
number that each loader has, so a slower one receives fewer over time.

Where a hook runs over whole batches, the last task of a batch *finishes* it: it is assigned when all other rows are
there, and runs the hook behind its own. If its loader dies, the hook may have changed any row, and all are made again.
"""

from __future__ import annotations

import bisect
import enum
import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ..order import Schedule
from ..transport import Draw
from .slots import Slots

MAX_ASSIGNED = 2
"""The most tasks of a loader, as a rule: the current one, and one more so that it need not wait for the next."""

_DRAWS = -1
"""The affinity of draws: the loader that drew the last epoch has imported the sampler's modules."""

_MOST_OWNERS = 256
"""The number of chunks whose loader is remembered. A forgotten one only costs reading a chunk twice."""

ENOUGH_TO_CONVICT = 6
"""The sum of weights of its deaths at which a task counts as poisoned."""

_NOWHERE = (1 << 62, 0)


class Evidence(enum.IntEnum):
    """The evidence of a loader's death against its current task."""

    KILLED_FROM_OUTSIDE = 1
    """Killed by the user, or by a memory shortage of which the task need not be the cause."""
    CRASHED = 2
    HUNG = 3
    """Hung. Each hang costs task_timeout_s, and all together must stay below timeout_s."""


@dataclass(slots=True, eq=False)
class Task:
    """A task: `rows` rows from `first_row` of `batch` on, which may go on into the batches behind it.

    `finishes`: see above; such a task may have no rows of its own, and then stands behind all of its batch. `draw`: the
    epoch to draw, if that is the task. It is due before the rows of `batch`.
    """

    id: int
    batch: int
    first_row: int
    rows: int
    affinity: int | None = None
    deaths: int = 0
    suspicion: int = 0
    skip: int = 0
    """The number of candidates for the row that are known to kill loaders (only if `rows` is 1)."""
    finishes: bool = False
    draw: Draw | None = None

    @property
    def is_hook(self) -> bool:
        """True if nothing but the hook is left of its batch."""
        return self.rows == 0

    @property
    def end(self) -> int:
        return self.first_row + self.rows


_Entry = tuple[int, int, int, Task]
"""A task behind its batch, first row and id, so that a heap has the earliest rows first."""


@dataclass(slots=True)
class _Loader:
    """A loader. `tasks`: assigned to it, oldest first, its order of work. `waiting`: reserved for it by affinity."""

    most: int
    """The most tasks that it has at a time."""
    remote: bool
    """On another host: it draws no epoch and is not dismissed."""
    tasks: deque[Task] = field(default_factory=deque)
    waiting: list[_Entry] = field(default_factory=list)
    since: float = 0.0
    """The time at which it began its oldest task."""
    dismissed: bool = False
    being_killed: bool = False

    @property
    def may_get_more(self) -> bool:
        draws = bool(self.tasks) and self.tasks[-1].draw is not None  # rows behind a draw might wait for seconds
        return not (self.dismissed or self.being_killed or draws) and len(self.tasks) < self.most

    @property
    def can_be_late(self) -> bool:
        return bool(self.tasks) and not self.being_killed


class Ledger:
    """The batches of `schedule`, between the opening of a slot and its release.

    `slots`: their number in the ring. `batches_per_task`: the most that share one. `hook`: one runs over whole batches.
    """

    def __init__(self, schedule: Schedule, *, slots: int, batches_per_task: int = 1, hook: bool = False) -> None:
        self.rows_per_task = 1 << 40
        self.slots = Slots(slots)
        self.complete = 0
        self._schedule = schedule
        self._batches_per_task = batches_per_task
        self._hook = hook
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._next_task = 1
        self._left: dict[int, int] = {}
        """By batch that is opened and not complete, the number of rows that are not made, and one more for the hook."""
        self._finishers: dict[int, Task] = {}
        """By batch, the task that finishes it, while it waits for the other rows."""
        self._queue: list[_Entry] = []
        self._failed_at = _NOWHERE
        """The batch and the row at which the run fails: those behind it are not made."""
        self._loaders: dict[int, _Loader] = {}

    # ---- the sequence

    @property
    def opened(self) -> int:
        return self._schedule.opened

    def open(self) -> None:
        """Open the next batches in all free slots, and cut their rows into tasks.

        A trainer gives small batches back one by one. A task for each would cost as much as one for many, so the slots
        of a whole task are waited for while twice as many are on their way: more than a trainer keeps at a time.
        """
        while self.opened <= self._failed_at[0] and (free := self.slots.free(most := self._most_together)):
            if len(free) < most and self.slots.under_way >= 2 * most:
                break
            first = self.opened
            if not (count := self._schedule.open(len(free))):
                break
            self.slots.take(first, free[:count])
            self._cut(first, count)

    @property
    def _most_together(self) -> int:
        """The number of batches that make up a task of the present size, at least one."""
        return max(1, min(self._batches_per_task, self.rows_per_task // self._schedule.batch_size))

    def _cut(self, first: int, count: int) -> None:
        """Cut `count` batches from `first` on, of which only the last may be short, into tasks."""
        batch_size, last = self._schedule.batch_size, first + count - 1
        whole = range(first, first + count)
        last_rows = self._schedule.rows_of(last)
        self._left.update(dict.fromkeys(whole, batch_size + self._hook))
        self._left[last] = last_rows + self._hook
        rows = (count - 1) * batch_size + last_rows
        per_task = self.rows_per_task if self._schedule.can_be_cut else rows
        runs = list(self._runs(first, rows))
        if (
            self._hook and count > 1 and (len(runs) > 1 or rows > per_task)
        ):  # each has a task of its own that finishes it
            for batch in whole:
                self._cut(batch, 1)
            return
        tasks = [task for run in runs for task in self._tasks(first, *run, per_task)]
        if self._hook:
            self._wait_to_finish(tasks.pop())
        for task in tasks:
            self._enqueue(task)

    def _runs(self, batch: int, rows: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield (first, end, affinity) of runs of rows that one loader should make; each affinity has one run.

        With a task across the end of a run two loaders would decode its chunks: a third of all chunks, if a window is
        as long as two batches.
        """
        end = 0
        while end < rows:
            first, affinity = end, self._schedule.affinity(batch, end)
            end = rows if affinity is None else self._end_of_run(batch, first, rows, affinity)
            yield first, end, affinity

    def _end_of_run(self, batch: int, first: int, rows: int, affinity: int) -> int:
        return bisect.bisect_left(
            range(rows), True, lo=first, key=lambda row: self._schedule.affinity(batch, row) != affinity
        )

    def _tasks(self, batch: int, first: int, end: int, affinity: int | None, rows: int) -> Iterator[Task]:
        """Yield tasks of at most `rows` rows each, for rows first … end-1 of `batch` and those behind it."""
        for start in range(first, end, rows):
            skipped, row = divmod(start, self._schedule.batch_size)
            yield Task(self._new_id(), batch + skipped, row, min(rows, end - start), affinity)

    def _new_id(self) -> int:
        self._next_task += 1
        return self._next_task - 1

    def _wait_to_finish(self, task: Task) -> None:
        """Let the task finish its batches as soon as all other rows are there."""
        task.finishes = True
        self._finishers[self._last_of(task)] = task
        self._look_at_finisher(self._last_of(task))

    def _look_at_finisher(self, batch: int) -> None:
        task = self._finishers.get(batch)
        if task is None:
            return
        others = self._left[batch] - self._rows_in(task, batch) - 1
        if not others:
            del self._finishers[batch]
            self._enqueue(task)

    def _last_of(self, task: Task) -> int:
        """Return the last batch of which the task has a row, or which it finishes."""
        return task.batch + max(0, task.end - 1) // self._schedule.batch_size

    def _rows_in(self, task: Task, batch: int) -> int:
        """Return how many of the task's rows are in `batch`."""
        size = self._schedule.batch_size
        begin = (batch - task.batch) * size
        return max(0, min(task.end, begin + size) - max(task.first_row, begin))

    def enqueue_draw(self, draw: Draw) -> None:
        """Put the drawing of an epoch behind the rows of all opened batches."""
        self._enqueue(Task(self._new_id(), self.opened, -1, 1, _DRAWS, draw=draw))

    def _is_behind_failure(self, task: Task) -> bool:
        return (task.batch, task.first_row) > self._failed_at

    def _enqueue(self, task: Task) -> None:
        if self._is_behind_failure(task):  # nobody will see its rows
            self._tick_off(task)
            return
        heapq.heappush(self._queue, (task.batch, task.first_row, task.id, task))

    def completed(self) -> range:
        """Return the batches that are complete now with all before them, and were not at the last call."""
        before = self.complete
        while self._left.get(self.complete) == 0:
            del self._left[self.complete]
            self.complete += 1
        return range(before, self.complete)

    def release(self, upto: int, loans: Collection[int] = ()) -> list[int]:
        """Free the slots of the batches below `upto` but for those on loan, and return those batches.

        A message that is late or repeated changes nothing, nor does one about batches that are not complete.
        """
        return self.slots.release(upto, loans) if upto <= self.complete else []

    # ---- loaders and tasks

    @property
    def slots_filling(self) -> int:
        return len(self._left)

    @property
    def slots_full(self) -> int:
        """The number of slots whose batches are complete and not released, those on loan left out."""
        return self.slots.under_way - len(self._left)

    def add_loader(self, loader: int, most: int = MAX_ASSIGNED, *, remote: bool = False) -> None:
        """Add a loader that has at most `most` tasks at a time; `remote`: it runs on another host."""
        self._loaders[loader] = _Loader(most, remote)
        if not self._schedule.can_be_cut:
            self._share_shards(loader)

    def _share_shards(self, loader: int) -> None:
        """Make a new loader the owner of its share of a stream's shards. It runs them again from their start.

        Otherwise the first loader that is ready keeps all shards, and later ones stay idle.
        """
        shards: dict[int, list[int]] = {each: [] for each in self._loaders}
        for shard, owner in self._owners.items():
            if owner in shards:  # those of a dead loader go to the loader that receives their next task
                shards[owner].append(shard)
        while len(most := max(shards.values(), key=len)) > len(shards[loader]) + 1:
            shards[loader].append(most.pop())
        self._owners.update(dict.fromkeys(shards[loader], loader))
        for line in self._loaders.values():
            self._put_back_waiting(line)

    @property
    def loaders(self) -> list[int]:
        return list(self._loaders)

    @property
    def working(self) -> int:
        """The number of local loaders that receive tasks."""
        return len(self._local())

    def _local(self) -> list[_Loader]:
        return [line for line in self._loaders.values() if not (line.dismissed or line.remote)]

    def dismiss_one(self) -> None:
        """Dismiss the local loader with the fewest tasks: it receives no more."""
        if working := self._local():
            least = min(working, key=lambda line: len(line.tasks))
            least.dismissed = True
            self._put_back_waiting(least)

    def dismissed_and_free(self) -> list[int]:
        return [loader for loader, line in self._loaders.items() if line.dismissed and not line.tasks]

    def assigned(self, loader: int) -> list[Task]:
        """Return the tasks of `loader`, oldest first."""
        return list(self._loaders[loader].tasks)

    def assign(self, now: float) -> Iterator[tuple[int, Task]]:
        """Assign all tasks possible now and yield (loader, task): the earliest rows to the least loaded loader."""
        while (found := self._next_assignment()) is not None:
            loader, task = found
            line = self._loaders[loader]
            if not line.tasks:
                line.since = now
            line.tasks.append(task)
            yield found

    def _next_assignment(self) -> tuple[int, Task] | None:
        free = [(len(line.tasks), loader) for loader, line in self._loaders.items() if line.may_get_more]
        if not free:
            return None
        # A task with an owner moves to the owner's own queue: otherwise each call would examine it again while the
        # owner is busy.
        while self._queue and (owner := self._owner(self._queue[0][-1])) is not None:
            heapq.heappush(self._loaders[owner].waiting, heapq.heappop(self._queue))
        candidates = [(line.waiting, loader) for _, loader in free if (line := self._loaders[loader]).waiting]
        if self._queue and self._queue[0][-1].draw is not None:  # the file for draws is on this host
            free = [(load, loader) for load, loader in free if not self._loaders[loader].remote]
        candidates += [(self._queue, min(free)[1])] if self._queue and free else []
        if not candidates:
            return None
        queue, loader = min(candidates, key=lambda candidate: candidate[0][0])
        task = heapq.heappop(queue)[-1]
        if task.affinity is not None and queue is self._queue:
            self._owners[task.affinity] = loader
            if len(self._owners) > _MOST_OWNERS and self._schedule.can_be_cut:  # a shard would be run again
                self._owners.popitem(last=False)
        return loader, task

    def _owner(self, task: Task) -> int | None:
        """Return the loader that makes other rows of the same affinity; None if any loader may have the task."""
        owner = None if task.affinity is None else self._owners.get(task.affinity)
        line = None if owner is None else self._loaders.get(owner)
        return None if line is None or line.dismissed or line.being_killed else owner

    def done(self, loader: int, task_id: int, now: float) -> Task | None:
        """Record the end of a task and return it; None if `loader` has no such task (a repeated or late message)."""
        line = self._loaders.get(loader)
        task = next((task for task in line.tasks if task.id == task_id), None) if line else None
        if line is None or task is None:
            return None
        line.tasks.remove(task)
        line.since = now
        self._tick_off(task)
        return task

    def _tick_off(self, task: Task) -> None:
        if task.draw is not None:
            return
        for batch in range(task.batch, self._last_of(task) + 1):
            self._left[batch] -= self._rows_in(task, batch) + task.finishes
            self._look_at_finisher(batch)

    def overdue(self, now: float, limit: float) -> list[int]:
        """Return the loaders that have worked on one task for longer than `limit` seconds and are not being killed."""
        return [loader for loader, line in self._loaders.items() if line.can_be_late and now - line.since > limit]

    def note_moved(self, loader: int, at: float) -> None:
        """Record that the overdue `loader` has made progress at the time `at`."""
        self._loaders[loader].since = at

    def next_deadline(self, limit: float) -> float | None:
        """Return the time at which the first loader becomes overdue; None if none works."""
        return min((line.since + limit for line in self._loaders.values() if line.can_be_late), default=None)

    def note_killed(self, loader: int) -> None:
        """Stop assigning tasks to `loader`, which is being killed, and drop the deadline of those that it has.

        Its death may take long: a process that waits for a hung disk or server dies only when that answers.
        """
        line = self._loaders[loader]
        line.being_killed = True
        self._put_back_waiting(line)

    # ---- death

    def remove_loader(self, loader: int, working_on: int = 0, evidence: Evidence = Evidence.CRASHED) -> Task | None:
        """Put back the tasks of the dead `loader`; returns the task it died on if loaders died too often on that.

        `working_on`: the id of the task that it had begun, 0 for none. Only this task is suspect. The oldest task may
        be another one: a loader may die while it works on the next task, before its report of the oldest is sent.
        At the first death a suspect of many rows is cut into single rows, and the hook behind them: so only the guilty
        row, or the hook, remains suspect. A returned task has left the ledger until `retry` puts it back.
        """
        poison = None
        line = self._loaders.pop(loader)
        self._put_back_waiting(line)
        for task in line.tasks:
            if task.id == working_on:
                poison = self._put_back_suspect(task, evidence)
            else:
                self._put_back(task)
        return poison

    def _put_back_waiting(self, line: _Loader) -> None:
        for entry in line.waiting:
            heapq.heappush(self._queue, entry)
        line.waiting.clear()

    def _put_back(self, task: Task) -> None:
        """Put back a task that is not suspect; it may have been done all the same, and its report be lost."""
        if task.is_hook:
            self._make_again(task, per_task=self.rows_per_task)
        elif task.finishes and task.first_row:
            self._cut(task.batch, 1)
        else:
            self._enqueue(task)

    def _put_back_suspect(self, task: Task, evidence: Evidence) -> Task | None:
        can_be_cut = self._schedule.can_be_cut and task.draw is None
        if can_be_cut and task.finishes and task.rows:
            self._make_again(task, per_task=1)
            return None
        if can_be_cut and task.rows > 1:
            for each in self._tasks(task.batch, task.first_row, task.end, task.affinity, 1):
                self._enqueue(each)
            return None
        task.deaths += 1
        task.suspicion += evidence
        if task.suspicion >= ENOUGH_TO_CONVICT:
            return task
        self._put_back(task)
        return None

    def _make_again(self, task: Task, per_task: int) -> None:
        """Make all rows of the batches that `task` was to finish again: the hook may have changed some of them."""
        for batch in range(task.batch, self._last_of(task) + 1):
            rows = self._schedule.rows_of(batch)
            self._left[batch] = rows + 1
            self._wait_to_finish(task if task.is_hook else Task(self._new_id(), batch, rows, 0, task.affinity))
            for first, end, affinity in self._runs(batch, rows):
                for each in self._tasks(batch, first, end, affinity, per_task):
                    self._enqueue(each)

    def write_off(self, task: Task) -> None:
        """Count a poisoned task as done: its batch has failed and is told in its turn."""
        self._tick_off(task)
        self.give_up_behind(task.batch, 0 if task.is_hook else task.first_row)

    def give_up_behind(self, batch: int, row: int) -> None:
        """Make no row behind `row` of `batch`, at which the run fails: no batch with such a row is delivered.

        Waiting tasks for them count as done. Otherwise, where every sample hangs, the rest of the batch would take two
        hangs for each row before the first one is named.
        """
        if (batch, row) < self._failed_at:
            self._failed_at = batch, row
            for line in self._loaders.values():
                self._put_back_waiting(line)
            waiting, self._queue = self._queue, []
            for *_, task in waiting:
                self._enqueue(task)

    def retry(self, task: Task) -> None:
        """Put back a poisoned row with the next candidate, skipping the one on which loaders died."""
        row = task.first_row
        self._enqueue(Task(self._new_id(), task.batch, row, 1, task.affinity, skip=task.skip + 1))
