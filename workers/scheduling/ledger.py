"""The ledger: which loader makes which rows of which batch. Pure: events in, decisions out, no clock and no socket.

A *group* is what one slot holds: a batch, or several if they are tiny. Its rows are cut into tasks; each task is given
to the loader that has the fewest, at most MAX_ASSIGNED at a time; a group whose last task is done is announced; the
trainer's release frees its slot for the next group. The tasks of a dead loader are given to others. Only the death of
the process puts its tasks back, never a mere suspicion: so nobody can still be writing into rows that another gets.

A batch waits for its last task. So a slow remote loader, on a node that is busy with other people's work perhaps, gets
fewer tasks; it gets none if the others would have done all that there is to do before it had done one.
"""

from __future__ import annotations

import bisect
import enum
import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..plan.plan import Schedule

MAX_ASSIGNED = 2
"""Tasks a loader has at most: one to work on and one so that it need not wait for the next."""

MAX_ASSIGNED_WAITING = 3
"""If loaders wait for a network: with one behind the one that is worked on there would be none at the moment when that
one is done, and nothing to fetch beside it."""

MAX_ASSIGNED_REMOTE = 4
"""A task's way to another host and its rows' way back take milliseconds: meanwhile a remote loader works on others."""

_REST = 20
"""A remote loader that is too slow to be of use gets a task again after so many times what its last one took."""

_MEMORY = 0.7
"""Weight of the past in the moving mean of the time per row: a dozen tasks make a change of speed known."""

_MOST_OWNERS = 256
"""Affinities remembered; one that was forgotten costs reading a chunk twice, and nothing else."""

ENOUGH_TO_CONVICT = 6
"""Sum of the weights of its deaths from which a task is called poisoned."""


class Weight(enum.IntEnum):
    """How much the death of a loader says against the task that it was working on."""

    KILLED_FROM_OUTSIDE = 1
    """By memory shortage, for which the task need not be to blame, or by somebody."""
    CRASHED = 2
    HUNG = 3
    """Each time costs task_timeout_s, and all of them together must stay below timeout_s."""


@dataclass(slots=True, eq=False)
class Task:
    """`rows` rows of `group` from `first_row`; `rows` is 0 for the postprocessing of the whole group."""

    id: int
    group: int
    slot: int
    first_row: int
    rows: int
    affinity: int | None = None
    deaths: int = 0
    suspicion: int = 0
    skip: int = 0
    """How many candidates for the row are already known to kill loaders (only if `rows` is 1)."""

    @property
    def is_postprocess(self) -> bool:
        return self.rows == 0


_Entry = tuple[int, int, int, Task]
"""Group, first row and id, so that a heap has the earliest rows first; and the task."""


@dataclass(slots=True)
class _Group:
    slot: int
    rows: int
    open_rows: int
    postprocess: Task | None = None
    """If loaders have died in it: what is held against it."""


def moving_mean(before: float, now: float) -> float:
    return _MEMORY * before + (1 - _MEMORY) * now


@dataclass(slots=True)
class LoaderSpeed:
    """Of one loader; one of this host is never observed, and counts as no slower than the fastest."""

    seconds_per_row: float = 0.0
    """A moving mean; 0 until it has done a task."""
    slowness: int = 1
    """How many times longer than the fastest one it takes for a row."""
    rests: bool = False
    rests_until: float = 0.0
    """If it is far slower than the others: when it is tried again."""

    @property
    def most_tasks(self) -> int:
        """Tasks that a remote loader has at most: one until its speed is known."""
        return max(1, MAX_ASSIGNED_REMOTE // self.slowness) if self.seconds_per_row else 1

    def observe(self, rows: int, seconds: float, now: float) -> None:
        """A task of `rows` rows took `seconds` until `now`; one of no rows postprocesses a whole batch."""
        self.rests_until = now + _REST * seconds
        if rows:
            self.seconds_per_row = moving_mean(self.seconds_per_row or seconds / rows, seconds / rows)


def compare_speeds(speeds: Sequence[LoaderSpeed], open_tasks: int, now: float) -> None:
    """Set how slow each one is and whether it rests; `open_tasks`: those given out, and those still to be given."""
    known = [speed for speed in speeds if speed.seconds_per_row]
    if not known:
        return
    fastest = min(speed.seconds_per_row for speed in known)
    for speed in known:
        speed.slowness = max(1, round(speed.seconds_per_row / max(1e-9, fastest)))
    rows_meanwhile = sum(1 / speed.slowness for speed in speeds)  # made by all while the fastest makes one
    for speed in known:
        others_are_done_before = speed.slowness * rows_meanwhile > open_tasks
        speed.rests = speed.slowness > 1 and now < speed.rests_until and others_are_done_before


@dataclass(slots=True)
class _Loader:
    """`tasks`: what it has been given, oldest first; it works in this order. `waiting`: what it alone shall get."""

    waits: bool
    """For a network, more than it computes."""
    remote: bool
    tasks: deque[Task] = field(default_factory=deque)
    waiting: list[_Entry] = field(default_factory=list)
    since: float = 0.0
    """When it began its oldest task."""
    dismissed: bool = False
    being_killed: bool = False
    speed: LoaderSpeed = field(default_factory=LoaderSpeed)

    @property
    def may_get_more(self) -> bool:
        here = MAX_ASSIGNED_WAITING if self.waits else MAX_ASSIGNED
        most = self.speed.most_tasks if self.remote else here
        rests = self.speed.rests and not self.waiting
        return not (self.dismissed or self.being_killed or rests) and len(self.tasks) < most

    @property
    def can_be_late(self) -> bool:
        return bool(self.tasks) and not self.being_killed

    @property
    def load(self) -> int:
        """What has the fewest tasks, or would have done one more the soonest, comes first."""
        return (len(self.tasks) + 1) * self.speed.slowness


class Ledger:
    """All groups of `schedule` between the opening of a slot and its release.

    `slots`: slots in the ring.  `waits`: whether loaders wait for a network more than they compute.
    """

    def __init__(self, schedule: Schedule, *, slots: int, postprocess: bool = False, waits: bool = False) -> None:
        self.rows_per_task = 1 << 40
        self._schedule = schedule
        self._waits = waits
        self._postprocess = postprocess
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._free = deque(range(slots))
        self._next_group = 0
        self._next_task = 1
        self._working: dict[int, _Group] = {}
        self._complete: list[tuple[int, _Group]] = []
        self._announced: dict[int, int] = {}
        self._queue: list[_Entry] = []
        self._loaders: dict[int, _Loader] = {}

    # ---- slots and groups

    def add_slot(self, slot: int) -> None:
        self._free.append(slot)

    def open_groups(self) -> None:
        """Give every free slot to the next group and cut its rows into tasks."""
        while self._free and self._schedule.has(self._next_group):
            number, slot = self._next_group, self._free.popleft()
            self._next_group += 1
            rows = self._schedule.rows_of(number)
            self._working[number] = _Group(slot, rows, rows)
            self._cut(number, slot, rows)

    def _cut(self, group: int, slot: int, rows: int) -> None:
        rows_per_task = self.rows_per_task if self._schedule.can_be_cut else rows
        for first, end, affinity in self._runs(group, rows):
            self._cut_rows(group, slot, first, end, rows_per_task, affinity)

    def _runs(self, group: int, rows: int) -> Iterator[tuple[int, int, int | None]]:
        """(first, end, affinity) of the rows that one loader had better make: an affinity never comes back once left.

        A task across such a border had its chunks decoded by two loaders: a third of all chunks, if a window is as long
        as two batches.
        """
        end = 0
        while end < rows:
            first, affinity = end, self._schedule.affinity(group, end)
            end = rows if affinity is None else self._end_of_run(group, first, rows, affinity)
            yield first, end, affinity

    def _end_of_run(self, group: int, first: int, rows: int, affinity: int) -> int:
        return bisect.bisect_left(
            range(rows), True, lo=first, key=lambda row: self._schedule.affinity(group, row) != affinity
        )

    def _cut_rows(
        self, group: int, slot: int, first: int, end: int, rows: int, affinity: int | None, skip: int = 0
    ) -> None:
        for start in range(first, end, rows):
            self._enqueue(Task(self._new_id(), group, slot, start, min(rows, end - start), affinity, skip=skip))

    def _new_id(self) -> int:
        self._next_task += 1
        return self._next_task - 1

    def _enqueue(self, task: Task) -> None:
        heapq.heappush(self._queue, (task.group, task.first_row, task.id, task))

    def announcements(self) -> Iterator[tuple[int, int]]:
        """(group, slot) of what the trainer can be told of now, in its order; each is given once."""
        while self._complete and self._is_next(self._complete[0][0]):
            number, group = heapq.heappop(self._complete)
            self._announced[number] = group.slot
            yield number, group.slot

    def _is_next(self, group: int) -> bool:
        earliest = next(iter(self._working), group)  # they are opened in rising order
        return group <= earliest

    def release(self, group: int) -> bool:
        """The trainer is done with `group`; False if it does not hold it (a repeated or foreign message)."""
        slot = self._announced.pop(group, None)
        if slot is None:
            return False
        self._free.append(slot)
        return True

    # ---- loaders and tasks

    @property
    def slots_filling(self) -> int:
        return len(self._working)

    @property
    def slots_full(self) -> int:
        """Announced, and not released."""
        return len(self._announced)

    def add_loader(self, loader: int, *, remote: bool = False) -> None:
        self._loaders[loader] = _Loader(self._waits, remote)

    @property
    def loaders(self) -> list[int]:
        return list(self._loaders)

    def dismiss_one(self) -> None:
        """Give no more tasks to the loader of this host that has the fewest."""
        working = [line for line in self._loaders.values() if not line.dismissed and not line.remote]
        if working:
            least = min(working, key=lambda line: len(line.tasks))
            least.dismissed = True
            self._put_back_waiting(least)

    def dismissed_and_free(self) -> list[int]:
        return [loader for loader, line in self._loaders.items() if line.dismissed and not line.tasks]

    def assigned(self, loader: int) -> list[Task]:
        """The tasks of `loader`, oldest first."""
        return list(self._loaders[loader].tasks)

    def assign(self, now: float) -> Iterator[tuple[int, Task]]:
        """(loader, task) for each task that can be given out now; the earliest rows first, to whom has the fewest."""
        if any(line.remote for line in self._loaders.values()):
            open_tasks = len(self._queue) + sum(len(line.tasks) for line in self._loaders.values())
            compare_speeds([line.speed for line in self._loaders.values()], open_tasks, now)
        while (found := self._next_assignment()) is not None:
            loader, task = found
            line = self._loaders[loader]
            if not line.tasks:
                line.since = now
            line.tasks.append(task)
            yield found

    def _next_assignment(self) -> tuple[int, Task] | None:
        free = [(line.load, loader) for loader, line in self._loaders.items() if line.may_get_more]
        if not free:
            return None
        # What one loader shall get waits for it alone: else it would be looked at again and again while that is busy.
        while self._queue and (owner := self._owner(self._queue[0][-1])) is not None:
            heapq.heappush(self._loaders[owner].waiting, heapq.heappop(self._queue))
        _, idlest = min(free)
        candidates = [(line.waiting, loader) for _, loader in free if (line := self._loaders[loader]).waiting]
        candidates += [(self._queue, idlest)] if self._queue else []
        if not candidates:
            return None
        queue, loader = min(candidates, key=lambda candidate: candidate[0][0])
        task = heapq.heappop(queue)[-1]
        if task.affinity is not None and queue is self._queue:
            self._owners[task.affinity] = loader
            if len(self._owners) > _MOST_OWNERS:
                self._owners.popitem(last=False)
        return loader, task

    def _owner(self, task: Task) -> int | None:
        """The loader that has been given rows of the same affinity; None if any may have the task."""
        owner = None if task.affinity is None else self._owners.get(task.affinity)
        line = None if owner is None else self._loaders.get(owner)
        return None if line is None or line.dismissed or line.being_killed else owner

    def done(self, loader: int, task_id: int, now: float) -> Task | None:
        """The task that `loader` has done; None if it has no such task (a repeated or late message)."""
        line = self._loaders.get(loader)
        task = next((task for task in line.tasks if task.id == task_id), None) if line else None
        if line is None or task is None:
            return None
        line.tasks.remove(task)
        if line.remote:
            line.speed.observe(task.rows, now - line.since, now)
        line.since = now
        self._tick_off(task)
        return task

    def _tick_off(self, task: Task) -> None:
        group = self._working[task.group]
        group.open_rows -= task.rows
        if group.open_rows > 0:
            return
        if self._postprocess and not task.is_postprocess:
            affinity = self._schedule.affinity(task.group, 0)
            self._enqueue(group.postprocess or Task(self._new_id(), task.group, task.slot, 0, 0, affinity))
            return
        heapq.heappush(self._complete, (task.group, self._working.pop(task.group)))

    def overdue(self, now: float, limit: float) -> list[int]:
        """Loaders that have been working on one task for longer than `limit` seconds, and are not being killed."""
        return [loader for loader, line in self._loaders.items() if line.can_be_late and now - line.since > limit]

    def note_moved(self, loader: int, at: float) -> None:
        """`loader`, which is overdue, got on with its task at the time `at`."""
        self._loaders[loader].since = at

    def next_deadline(self, limit: float) -> float | None:
        """When the first loader becomes overdue, if it does not report before."""
        return min((line.since + limit for line in self._loaders.values() if line.can_be_late), default=None)

    def note_killed(self, loader: int) -> None:
        """`loader` is being killed, which may take long: it gets no more tasks, and those that it has no deadline.

        A process that waits for a disk or a server that hangs dies only when that answers.
        """
        line = self._loaders[loader]
        line.being_killed = True
        self._put_back_waiting(line)

    # ---- death

    def remove_loader(self, loader: int, working_on: int = 0, weight: Weight = Weight.CRASHED) -> Task | None:
        """`loader` is dead: its tasks go back. Returns the task on which loaders die too often, if this is one.

        `working_on`: the id of the task it had begun, 0 if none: that one alone is suspect. The oldest task is no
        substitute: a loader may die before its report of that task has left it, and working on the next one.
        At the first death a suspect of many rows is cut into single ones, and only one of them can be guilty.
        A returned task is out of the ledger's hands until `retry` puts it back.
        """
        poison = None
        line = self._loaders.pop(loader)
        self._put_back_waiting(line)
        for task in line.tasks:
            if task.id == working_on:
                poison = self._put_back_suspect(task, weight)
            else:
                self._put_back(task)
        return poison

    def _put_back_waiting(self, line: _Loader) -> None:
        for entry in line.waiting:
            heapq.heappush(self._queue, entry)
        line.waiting.clear()

    def _put_back(self, task: Task) -> None:
        if task.is_postprocess:
            self._refill(task)
        else:
            self._enqueue(task)

    def _put_back_suspect(self, task: Task, weight: Weight) -> Task | None:
        if task.rows > 1 and self._schedule.can_be_cut:
            self._cut_rows(task.group, task.slot, task.first_row, task.first_row + task.rows, 1, task.affinity)
            return None
        task.deaths += 1
        task.suspicion += weight
        if task.suspicion >= ENOUGH_TO_CONVICT:
            return task
        self._put_back(task)
        return None

    def _refill(self, task: Task) -> None:
        """A hook that died in the middle of a group may have left it half changed: all its rows are made again."""
        group = self._working[task.group]
        group.postprocess = task
        group.open_rows = group.rows
        self._cut(task.group, group.slot, group.rows)

    def write_off(self, task: Task) -> None:
        """Count a poisoned task as done: its group fails, and is still to be announced in its turn."""
        self._tick_off(task)

    def retry(self, task: Task) -> None:
        """Put back a poisoned row: the candidate on which loaders died is to be skipped, the next one tried."""
        row, skip = task.first_row, task.skip + 1
        self._cut_rows(task.group, task.slot, row, row + 1, 1, task.affinity, skip)
