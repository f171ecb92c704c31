"""A pool of loaders: requests loaders from their home and replaces dead ones, with growing pauses.

The home of local loaders is the nursery, that of remote loaders the bridge to the cluster; each has a pool. A pool
decides nothing about tasks. The assembler requests kills, and the pool reports deaths.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..assembly import KILLED, MAX_ASSIGNED, OUT_OF_MEMORY, Death, Evidence
from ..base import LoaderDied
from ..transport import ClusterCapacity, Count, LoaderEnded, LoaderStarted, StatusBoard
from .process import WHERE_TO_LOOK

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_PROMPT = 2
"""The number of deaths in a row after which the next loader still starts at once: most deaths are single accidents."""

_STARTING_AT_ONCE = 16
"""The most requests that the home has not answered. More would fill the socket between the two, and with thousands of
loaders each side would wait for the other to read: a deadlock."""

_DEATHS_BEYOND = 8
"""The run ends after more deaths in a row than this plus two for each loader, with no task done in between. A sample on
which loaders die is isolated after at most seven."""

_LOGGED_ALIKE = 3
"""The deaths of the same kind on the same sample that are logged. Batches prefetched beyond it hold it again."""

_log = logging.getLogger("blobfeed")


Event = LoaderStarted | LoaderEnded | ClusterCapacity
"""An event of a home: of one of its loaders, or the number of loaders that it can run from now on."""


class Home(ABC):
    """Starts and ends loaders; it answers with events."""

    @abstractmethod
    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has an event; -1: there can be none."""

    @abstractmethod
    def receive(self, now: float) -> Iterator[Event]:
        """Yield events that have come; raises LoaderDied if no loader will ever start there again."""

    @abstractmethod
    def spawn(self, loader: int, line: int) -> None:
        """Request a loader; raises LoaderDied."""

    @abstractmethod
    def kill(self, loader: int) -> None:
        """Kill a loader that has started, at once."""

    def start_if_due(self, now: float) -> float:
        """Start the home itself, and return the time at which that may be due again; most are there from the beginning.

        Raises LoaderDied if it fails again and again.
        """
        return math.inf

    @abstractmethod
    def close(self) -> None:
        """End the home, and its loaders with it."""


@dataclass(slots=True)
class _Member:
    line: int
    deadline: float = math.inf
    """The time at which it must be ready; infinite before it starts, since a cluster may need long to place it."""
    started: bool = False
    ready: bool = False
    kill_reason: str = ""
    dismissed: bool = False


class LoaderPool:
    """Keeps `wanted` loaders alive, at most one for each of the `lines` of the status board.

    `numbers`: the numbers of new loaders, unique over all pools. `in_flight`: the most tasks of one loader at a time.
    """

    def __init__(
        self,
        home: Home,
        board: StatusBoard,
        *,
        wanted: int,
        lines: Sequence[int],
        numbers: Iterator[int],
        start_timeout_s: float,
        in_flight: int = MAX_ASSIGNED,
    ) -> None:
        self.wanted = wanted
        self.in_flight = in_flight
        self._start_timeout_s = start_timeout_s
        self.home = home
        self._board = board
        self._members: dict[int, _Member] = {}
        self._most = len(lines)
        self._free_lines = deque(lines)
        self._numbers = numbers
        self._most_wanted = wanted
        self._failed_starts: list[str] = []
        self._failed_tasks: list[str] = []
        self._tasks_done = 0
        """The tasks that had been done at the last death."""
        self._next_start = 0.0
        self._alike: Counter[tuple[int, str]] = Counter()

    def __contains__(self, loader: int) -> bool:
        return loader in self._members

    def tend(self, now: float, *, replace: bool = True) -> float:
        """Do what is due by now: kill loaders that are slow to start, and request missing ones, some at a time.

        `replace`: false if no loader is to be started in the place of one that ends. Returns the time of the next call;
        it is due before that only after an event. Raises LoaderDied.
        """
        for loader, member in self._members.items():
            if not member.ready and now > member.deadline:
                self.kill(loader, f"not ready after {self._start_timeout_s:g} s")
        times = [member.deadline for member in self._members.values() if not member.ready and not member.kill_reason]
        if replace:
            times += [self.home.start_if_due(now), self._start_missing(now)]
        return min(times, default=math.inf)

    def _start_missing(self, now: float) -> float:
        """Request missing loaders; returns the end of the pause before the next one, infinity if none is missing."""
        while self._may_ask_for_one and now >= self._next_start:
            loader, line = next(self._numbers), self._free_lines.popleft()
            self._members[loader] = _Member(line)
            self._board.counts[Count.LOADERS] += 1
            self._board.line(line).begin(loader, 0)
            self.home.spawn(loader, line)
        self._most_wanted = max(self._most_wanted, self.wanted)
        return self._next_start if self._may_ask_for_one else math.inf

    @property
    def _may_ask_for_one(self) -> bool:
        starting = sum(not member.started for member in self._members.values())
        return len(self._members) < self.wanted and starting < _STARTING_AT_ONCE

    def note_ready(self, loader: int) -> bool:
        """Record that a loader is ready; returns False if it does not belong here (any more) or was ready before."""
        member = self._members.get(loader)
        if member is None or member.ready:
            return False
        member.ready = True
        self._failed_starts.clear()
        return True

    def moved_at(self, loader: int) -> float:
        """Return the monotonic time of the loader's last entry on the status board; -inf for an unknown loader."""
        member = self._members.get(loader)
        return -math.inf if member is None else self._board.lines[member.line].state.since

    def kill(self, loader: int, reason: str) -> bool:
        """Kill a loader, also one that hangs, loops or is stopped. Its death is reported later.

        Returns false for a loader that is not, or not yet, known to run.
        """
        member = self._members.get(loader)
        if member is None or not member.started:
            return False
        if not member.kill_reason:
            member.kill_reason = reason
            self.home.kill(loader)
        return True

    def dismiss(self, loader: int) -> None:
        """End a loader that is no longer needed and has no task. This does not count as a death."""
        self._members[loader].dismissed = True
        self.kill(loader, "not needed any more")

    def handle_event(self, event: Event, now: float) -> Death | None:
        """Record an event of the home; returns the loader's death, if it is one."""
        if isinstance(event, ClusterCapacity):
            self.wanted = min(self._most, event.loaders)
            return None
        if isinstance(event, LoaderStarted):
            member = self._members[event.loader]
            member.started, member.deadline = True, now + self._start_timeout_s
            return None
        member = self._members.pop(event.loader)
        line = self._board.lines[member.line]
        last, place = line.state, line.place.of(line.sample)
        self._board.line(member.line).end()
        self._free_lines.append(member.line)
        self._board.counts[Count.LOADERS] -= 1
        how, evidence = event.how, Evidence.CRASHED if event.crashed else Evidence.KILLED_FROM_OUTSIDE
        if member.kill_reason:
            how, evidence = f"{how} by us: {member.kill_reason}", Evidence.HUNG
        return Death(event.loader, last, how, member.ready, member.dismissed, evidence, place)

    def count(self, death: Death, was_idle: bool, tasks_done: int, now: float) -> None:
        """Count the death of a loader that was not dismissed; raises LoaderDied after too many in a row.

        `tasks_done`: the number of tasks done so far; a row of deaths ends with each. The death of an idle loader
        (`was_idle`) is no evidence against its successors, so it is replaced and does not count towards that limit.
        """
        self._board.counts[Count.LOADER_DEATHS] += 1
        self._board.note_death(str(death))
        alike = death.last.sample, death.how
        self._alike[alike] += 1
        if death.last.sample < 0 or self._alike[alike] <= _LOGGED_ALIKE:
            _log.warning("a loader died: %s", death)
        if tasks_done > self._tasks_done:
            self._failed_tasks.clear()
            self._failed_starts.clear()
        self._tasks_done = tasks_done
        if not was_idle:
            (self._failed_tasks if death.was_ready else self._failed_starts).append(str(death))
        deaths = len(self._failed_starts) + len(self._failed_tasks)
        if deaths > _DEATHS_BEYOND + 2 * self._most_wanted:
            exits = [*self._failed_tasks, *self._failed_starts]
            look = f"run the decode hook in a LayerHarness with the sample named here; {WHERE_TO_LOOK}"
            if all(end.endswith(KILLED) for end in exits):
                look = OUT_OF_MEMORY
            raise LoaderDied(
                f"{deaths} loaders died in a row without finishing a task: {'; '.join(exits[-5:])}; {look}", exits
            )
        # The pause grows, since memory may be short for a while. Its exponent is bounded: hundreds may die at once.
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(deaths - 3, 5))
        self._next_start = now + (pause_s if deaths > _PROMPT else 0)
