"""The ledger assigns the rows of batches to loaders. Pure: events in, decisions out, no clock and no socket.

A *group* is the content of one slot: a batch, or several tiny ones. Its rows are cut into tasks. Each task is assigned
to the loader with the fewest, up to a number that each loader has. When its last task is done, the group is announced.
The trainer's release frees its slot for the next group. The tasks of a dead loader are reassigned. Only the death of a
process puts its tasks back, never a suspicion: so no loader can still write into rows that another loader makes.

Each loader has a fixed number of tasks in flight, so a slower one receives fewer over time.
"""

from __future__ import annotations

import bisect
import enum
import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..order import GivenBatches, Schedule
from ..transport import Draw

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
    """Keeps all groups of `schedule` between the opening of a slot and its release.

    `slots`: the number of slots in the ring.  `alone`: true for a single loader in the trainer's process: one group is
    open at a time, and it is one task.
    """

    def __init__(
        self, schedule: Schedule | GivenBatches, *, slots: int, postprocess: bool = False, alone: bool = False
    ) -> None:
        self.rows_per_task = 1 << 40
        self._alone = alone
        self._schedule = schedule
        self._postprocess = postprocess
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._free = deque(range(slots))
        self._next_group = 0
        self._next_task = 1
        self._working: dict[int, _OpenGroup] = {}
        self._complete: list[tuple[int, _OpenGroup]] = []
        self._announced: dict[int, int] = {}
        self._queue: list[_Entry] = []
        self._failed_at = _NOWHERE
        """The group and the row at which the run fails: those behind it are not made."""
        self._loaders: dict[int, _Loader] = {}

    # ---- slots and groups

    def open_groups(self) -> None:
        """Open the next group in every free slot and cut its rows into tasks."""
        while (
            self._free
            and self._next_group <= self._failed_at[0]
            and not (self._alone and self._working)
            and self._schedule.has(self._next_group)
        ):
            number, slot = self._next_group, self._free.popleft()
            self._next_group += 1
            rows = self._schedule.rows_of(number)
            self._working[number] = _OpenGroup(slot, rows, rows)
            self._cut(number, slot, rows)

    def _cut(self, group: int, slot: int, rows: int) -> None:
        if self._alone:
            self._cut_rows(group, slot, 0, rows, rows, None)
            return
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
        if (task.group, task.first_row) > self._failed_at:  # nobody will see its rows
            self._tick_off(task)
            return
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
        self._free.appendleft(slot)  # the slot that was read last is still in the processor's caches
        return True

    # ---- loaders and tasks

    @property
    def slots_filling(self) -> int:
        return len(self._working)

    @property
    def slots_full(self) -> int:
        """The number of slots that are announced and not released."""
        return len(self._announced)

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

    def remove_loader(self, loader: int, working_on: int = 0, evidence: Evidence = Evidence.CRASHED) -> Task | None:
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
                poison = self._put_back_suspect(task, evidence)
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

    def _put_back_suspect(self, task: Task, evidence: Evidence) -> Task | None:
        if task.rows > 1 and self._schedule.can_be_cut:
            self._cut_rows(task.group, task.slot, task.first_row, task.first_row + task.rows, 1, task.affinity)
            return None
        task.deaths += 1
        task.suspicion += evidence
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
        self.give_up_behind(task.group, task.first_row)

    def give_up_behind(self, group: int, row: int) -> None:
        """Make no row behind `row` of `group`, at which the run fails: no batch with such a row is delivered.

        Waiting tasks for them count as done. Otherwise, where every sample hangs, the rest of the group would take two
        hangs for each row before the first one is named.
        """
        if (group, row) < self._failed_at:
            self._failed_at = group, row
            for line in self._loaders.values():
                self._put_back_waiting(line)
            waiting, self._queue = self._queue, []
            for *_, task in waiting:
                self._enqueue(task)

    def retry(self, task: Task) -> None:
        """Put back a poisoned row with the next candidate, skipping the one on which loaders died."""
        row, skip = task.first_row, task.skip + 1
        self._cut_rows(task.group, task.slot, row, row + 1, 1, task.affinity, skip)
