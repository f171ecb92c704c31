"""The ledger assigns the rows of batches to loaders. Pure: events in, decisions out, no clock and no socket.

A *group* is the content of one slot: a batch, or several tiny ones. Its rows are cut into tasks. Each task is assigned
to the loader with the fewest, at most MAX_ASSIGNED at a time. When its last task is done, the group is announced. The
trainer's release frees its slot for the next group. The tasks of a dead loader are reassigned. Only the death of a
process puts its tasks back, never a suspicion: so no loader can still write into rows that another loader makes.

A batch waits for its last task. So a slow remote loader, perhaps on a busy node, receives fewer tasks. It receives none
if the other loaders would finish all open tasks before it finished one.
"""

from __future__ import annotations

import bisect
import enum
import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..plan.plan import Schedule
from ..transport.messages import Draw

MAX_ASSIGNED = 2
"""The most tasks of a loader: the current one, and one more so that it need not wait for the next."""

MAX_ASSIGNED_WAITING = 3
"""The most tasks of a loader that waits for a network. With only one queued task there would be none to prefetch at the
moment when the current task ends."""

MAX_ASSIGNED_REMOTE = 4
"""The most tasks of a remote loader. A task and its rows travel for milliseconds, and meanwhile it works on others."""

_REST = 20
"""The pause of a remote loader that is too slow to be useful, as a multiple of the duration of its last task."""

_MEMORY = 0.7
"""The weight of the past in the moving mean of the time per row: a change of speed shows after a dozen tasks."""

_DRAWS = -1
"""The affinity of draws: the loader that drew the last epoch has imported the sampler's modules."""

_MOST_OWNERS = 256
"""The number of affinities remembered. A forgotten one only costs reading a chunk twice."""

ENOUGH_TO_CONVICT = 6
"""The sum of weights of its deaths at which a task counts as poisoned."""


class Weight(enum.IntEnum):
    """The evidence of a loader's death against its current task."""

    KILLED_FROM_OUTSIDE = 1
    """Killed by the user, or by a memory shortage of which the task need not be the cause."""
    CRASHED = 2
    HUNG = 3
    """Hung. Each hang costs task_timeout_s, and all together must stay below timeout_s."""


@dataclass(slots=True, eq=False)
class Task:
    """A task: `rows` rows of `group` from `first_row`; `rows` is 0 for the postprocessing of the whole group.

    `draw`: the epoch to draw, if that is the task. It is due before the rows of `group`.
    """

    id: int
    group: int
    slot: int
    first_row: int
    rows: int
    affinity: int | None = None
    deaths: int = 0
    suspicion: int = 0
    skip: int = 0
    """The number of candidates for the row that are known to kill loaders (only if `rows` is 1)."""
    draw: Draw | None = None

    @property
    def is_postprocess(self) -> bool:
        return self.rows == 0


_Entry = tuple[int, int, int, Task]
"""A task behind its group, first row and id, so that a heap has the earliest rows first."""


@dataclass(slots=True)
class _OpenGroup:
    slot: int
    rows: int
    open_rows: int
    postprocess: Task | None = None
    """The postprocessing in which loaders have died, with the evidence against it."""


def moving_mean(before: float, now: float) -> float:
    return _MEMORY * before + (1 - _MEMORY) * now


@dataclass(slots=True)
class LoaderSpeed:
    """The speed of one loader. Local loaders are not measured and count as fast as the fastest."""

    seconds_per_row: float = 0.0
    """A moving mean; 0 before the first task is done."""
    slowness: int = 1
    """The time for a row as a multiple of the fastest loader's."""
    rests: bool = False
    rests_until: float = 0.0
    """The time at which a loader that is far slower than the others is tried again."""

    @property
    def most_tasks(self) -> int:
        """The most tasks of a remote loader: one until its speed is known."""
        return max(1, MAX_ASSIGNED_REMOTE // self.slowness) if self.seconds_per_row else 1

    def observe(self, rows: int, seconds: float, now: float) -> None:
        """Record that a task of `rows` rows took `seconds` until `now`; 0 rows: the postprocessing of a batch."""
        self.rests_until = now + _REST * seconds
        if rows:
            self.seconds_per_row = moving_mean(self.seconds_per_row or seconds / rows, seconds / rows)


def compare_speeds(speeds: Sequence[LoaderSpeed], open_tasks: int, now: float) -> None:
    """Set the slowness of each loader, and whether it rests; `open_tasks`: assigned tasks and queued ones."""
    known = [speed for speed in speeds if speed.seconds_per_row]
    if not known:
        return
    fastest = min(speed.seconds_per_row for speed in known)
    for speed in known:
        speed.slowness = max(1, round(speed.seconds_per_row / max(1e-9, fastest)))
    rows_meanwhile = sum(1 / speed.slowness for speed in speeds)  # rows of all loaders while the fastest makes one
    for speed in known:
        others_are_done_before = speed.slowness * rows_meanwhile > open_tasks
        speed.rests = speed.slowness > 1 and now < speed.rests_until and others_are_done_before


@dataclass(slots=True)
class _Loader:
    """A loader. `tasks`: assigned to it, oldest first, its order of work. `waiting`: reserved for it by affinity."""

    waits: bool
    """True if it mostly waits for a network."""
    remote: bool
    tasks: deque[Task] = field(default_factory=deque)
    waiting: list[_Entry] = field(default_factory=list)
    since: float = 0.0
    """The time at which it began its oldest task."""
    dismissed: bool = False
    being_killed: bool = False
    speed: LoaderSpeed = field(default_factory=LoaderSpeed)

    @property
    def may_get_more(self) -> bool:
        here = MAX_ASSIGNED_WAITING if self.waits else MAX_ASSIGNED
        most = self.speed.most_tasks if self.remote else here
        rests = self.speed.rests and not self.waiting
        draws = bool(self.tasks) and self.tasks[-1].draw is not None  # rows behind a draw might wait for seconds
        return not (self.dismissed or self.being_killed or rests or draws) and len(self.tasks) < most

    @property
    def can_be_late(self) -> bool:
        return bool(self.tasks) and not self.being_killed

    @property
    def load(self) -> int:
        """The key for assigning: the loader that would finish one more task first has the smallest."""
        return (len(self.tasks) + 1) * self.speed.slowness


class Ledger:
    """Keeps all groups of `schedule` between the opening of a slot and its release.

    `slots`: the number of slots in the ring.  `waits`: true if loaders mostly wait for a network.
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
        self._working: dict[int, _OpenGroup] = {}
        self._complete: list[tuple[int, _OpenGroup]] = []
        self._announced: dict[int, int] = {}
        self._queue: list[_Entry] = []
        self._loaders: dict[int, _Loader] = {}

    # ---- slots and groups

    def add_slot(self, slot: int) -> None:
        self._free.append(slot)

    def open_groups(self) -> None:
        """Open the next group in every free slot and cut its rows into tasks."""
        while self._free and self._schedule.has(self._next_group):
            number, slot = self._next_group, self._free.popleft()
            self._next_group += 1
            rows = self._schedule.rows_of(number)
            self._working[number] = _OpenGroup(slot, rows, rows)
            self._cut(number, slot, rows)

    def _cut(self, group: int, slot: int, rows: int) -> None:
        rows_per_task = self.rows_per_task if self._schedule.can_be_cut else rows
        for first, end, affinity in self._runs(group, rows):
            self._cut_rows(group, slot, first, end, rows_per_task, affinity)

    def _runs(self, group: int, rows: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield (first, end, affinity) of runs of rows that one loader should make; each affinity has one run.

        With a task across the end of a run two loaders would decode its chunks: a third of all chunks, if a window is
        as long as two batches.
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

    def enqueue_draw(self, draw: Draw) -> None:
        """Put the drawing of an epoch behind the rows of all open groups."""
        self._enqueue(Task(self._new_id(), self._next_group, -1, -1, 1, _DRAWS, draw=draw))

    def _enqueue(self, task: Task) -> None:
        heapq.heappush(self._queue, (task.group, task.first_row, task.id, task))

    def announcements(self) -> Iterator[tuple[int, int]]:
        """Yield the (group, slot) of each complete group that is next in order, once."""
        while self._complete and self._is_next(self._complete[0][0]):
            number, group = heapq.heappop(self._complete)
            self._announced[number] = group.slot
            yield number, group.slot

    def _is_next(self, group: int) -> bool:
        earliest = next(iter(self._working), group)  # groups are opened in rising order
        return group <= earliest

    def release(self, group: int) -> bool:
        """Free the slot of `group`; returns False if it is not announced (a repeated or foreign message)."""
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
        """The number of slots that are announced and not released."""
        return len(self._announced)

    def add_loader(self, loader: int, *, remote: bool = False) -> None:
        self._loaders[loader] = _Loader(self._waits, remote)

    @property
    def loaders(self) -> list[int]:
        return list(self._loaders)

    def dismiss_one(self) -> None:
        """Dismiss the local loader with the fewest tasks: it receives no more."""
        working = [line for line in self._loaders.values() if not line.dismissed and not line.remote]
        if working:
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
            if len(self._owners) > _MOST_OWNERS:
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
        if line.remote:
            line.speed.observe(task.rows, now - line.since, now)
        line.since = now
        self._tick_off(task)
        return task

    def _tick_off(self, task: Task) -> None:
        if task.draw is not None:
            return
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

    def remove_loader(self, loader: int, working_on: int = 0, weight: Weight = Weight.CRASHED) -> Task | None:
        """Put back the tasks of the dead `loader`; returns the task it died on if loaders died too often on that.

        `working_on`: the id of the task that it had begun, 0 for none. Only this task is suspect. The oldest task may
        be another one: a loader may die while it works on the next task, before its report of the oldest is sent.
        At the first death a suspect of many rows is cut into single rows, so that only the guilty row remains suspect.
        A returned task has left the ledger until `retry` puts it back.
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
        """Make all rows of a group again: a hook that died in the middle may have changed some of them."""
        group = self._working[task.group]
        group.postprocess = task
        group.open_rows = group.rows
        self._cut(task.group, group.slot, group.rows)

    def write_off(self, task: Task) -> None:
        """Count a poisoned task as done: its group has failed and is announced in its turn."""
        self._tick_off(task)

    def retry(self, task: Task) -> None:
        """Put back a poisoned row with the next candidate, skipping the one on which loaders died."""
        row, skip = task.first_row, task.skip + 1
        self._cut_rows(task.group, task.slot, row, row + 1, 1, task.affinity, skip)
