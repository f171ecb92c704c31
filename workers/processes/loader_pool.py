"""A pool of loaders: asks their home for them, and replaces the dead with a growing pause.

The home of this host's loaders is the nursery, that of remote ones the bridge to the cluster; each has a pool. A pool
decides nothing about tasks; the assembler tells it whom to kill and hears from it who has died.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..base.errors import LoaderDied
from ..scheduling.assembly import OUT_OF_MEMORY, Death
from ..scheduling.ledger import Weight
from ..transport.messages import LoaderEnded, LoaderStarted
from ..transport.status_board import Count, StatusBoard
from .process import WHERE_TO_LOOK

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_PROMPT = 2
"""Deaths in a row after which the next loader still starts at once: most deaths are single accidents."""

_STARTING_AT_ONCE = 16
"""Requests that the home has not answered yet. More would fill the socket between the two, and with thousands
of loaders each would wait for ever for the other to read."""

_DEATHS_BEYOND = 8
"""Deaths in a row, with no task done in between, that end the run: this many and two for each loader. A sample on which
loaders die is isolated after seven at most."""

_log = logging.getLogger("blobfeed")


class Home(Protocol):
    """Where loaders are started and ended; it answers with events."""

    def spawn(self, loader: int, line: int) -> None:
        """Ask for a loader; raises NurseryDied."""

    def kill(self, loader: int) -> None:
        """End one that has started at once, whatever it is doing."""


@dataclass(slots=True)
class _Member:
    line: int
    deadline: float = math.inf
    """When it must be ready; nobody knows how long a cluster needs to find a place for it."""
    started: bool = False
    ready: bool = False
    kill_reason: str = ""
    dismissed: bool = False


class LoaderPool:
    """At most as many loaders as there are `lines` of the status board, each on its own.

    `numbers`: those of the loaders; none is given twice, in no pool.
    """

    def __init__(
        self,
        home: Home,
        board: StatusBoard,
        *,
        wanted: int,
        lines: Iterable[int],
        numbers: Iterator[int],
        start_timeout_s: float,
    ) -> None:
        self.wanted = wanted
        self._start_timeout_s = start_timeout_s
        self._home = home
        self._board = board
        self._members: dict[int, _Member] = {}
        self._free_lines = deque(lines)
        self._numbers = numbers
        self._most_wanted = wanted
        self._failed_starts: list[str] = []
        self._failed_tasks: list[str] = []
        self._next_start = 0.0

    def __contains__(self, loader: int) -> bool:
        return loader in self._members

    @property
    def loaders(self) -> list[int]:
        """Those that were asked for and have not ended."""
        return list(self._members)

    def start_missing(self, now: float) -> None:
        """Ask for loaders that are wanted and not there, some at a time."""
        while self._may_ask_for_one and now >= self._next_start:
            loader, line = next(self._numbers), self._free_lines.popleft()
            self._members[loader] = _Member(line)
            self._board.add(Count.LOADERS)
            self._board.line(line).begin(loader, 0)
            self._home.spawn(loader, line)
        self._most_wanted = max(self._most_wanted, self.wanted)

    def next_deadline(self) -> float | None:
        """When a pause before starting another loader ends, or one is too late in starting; None for never."""
        times = [member.deadline for member in self._members.values() if not member.ready and not member.kill_reason]
        if self._may_ask_for_one:
            times.append(self._next_start)
        return min(times, default=None)

    @property
    def _may_ask_for_one(self) -> bool:
        if len(self._members) >= self.wanted:
            return False
        return sum(not member.started for member in self._members.values()) < _STARTING_AT_ONCE

    def note_ready(self, loader: int) -> bool:
        """False for a loader that is not, or no longer, one of ours, or that has said so before."""
        member = self._members.get(loader)
        if member is None or member.ready:
            return False
        member.ready = True
        self._failed_starts.clear()
        return True

    def note_task_done(self) -> None:
        self._failed_tasks.clear()

    def moved_at(self, loader: int) -> float:
        """When the loader last told the status board what it does, by the monotonic clock; -inf if it is not here."""
        member = self._members.get(loader)
        return -math.inf if member is None else self._board.line(member.line).read().since

    def kill(self, loader: int, reason: str) -> bool:
        """Works on hung, endlessly looping and stopped processes alike. Its death is reported later.

        Returns false for a loader that is not, or not yet, known to run.
        """
        member = self._members.get(loader)
        if member is None or not member.started:
            return False
        if not member.kill_reason:
            member.kill_reason = reason
            self._home.kill(loader)
        return True

    def dismiss(self, loader: int) -> None:
        """End a loader that is not needed any more and has no task; this is no death to be counted."""
        self._members[loader].dismissed = True
        self.kill(loader, "not needed any more")

    def kill_slow_starters(self, now: float) -> None:
        for loader, member in self._members.items():
            if not member.ready and now > member.deadline:
                self.kill(loader, f"not ready after {self._start_timeout_s:g} s")

    def handle_event(self, event: LoaderStarted | LoaderEnded, now: float) -> Death | None:
        """What the home has told of a loader."""
        if isinstance(event, LoaderStarted):
            member = self._members[event.loader]
            member.started, member.deadline = True, now + self._start_timeout_s
            return None
        member = self._members.pop(event.loader)
        status = self._board.line(member.line)
        last = status.read()
        status.end()
        self._free_lines.append(member.line)
        self._board.add(Count.LOADERS, -1)
        how, weight = event.how, weight_of(event)
        if member.kill_reason:
            how, weight = f"{how} by us: {member.kill_reason}", Weight.HUNG
        return Death(event.loader, last, how, member.ready, member.dismissed, weight)

    def count(self, death: Death, was_idle: bool, now: float) -> None:
        """A loader has died that was wanted; raises LoaderDied when starting more of them is no use.

        One that had nothing to do (`was_idle`) proves nothing of those that follow it: it is replaced, and not held
        against them.
        """
        self._board.add(Count.LOADER_DEATHS)
        self._board.note_death(str(death))
        _log.warning("a loader died: %s", death)
        if not was_idle:
            (self._failed_tasks if death.was_ready else self._failed_starts).append(str(death))
        deaths = len(self._failed_starts) + len(self._failed_tasks)
        if deaths > _DEATHS_BEYOND + 2 * self._most_wanted:
            exits = [*self._failed_tasks, *self._failed_starts]
            look = f"run the decode hook in a LayerHarness with the sample named here; {WHERE_TO_LOOK}"
            if all(end.endswith("killed by SIGKILL") for end in exits):
                look = OUT_OF_MEMORY
            raise LoaderDied(
                f"{deaths} loaders died in a row without finishing a task: {'; '.join(exits[-5:])}; {look}", exits
            )
        # The pause grows, for memory may be short for a while; not its exponent: hundreds of loaders may die at once.
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(deaths - 3, 5))
        self._next_start = now + (pause_s if deaths > _PROMPT else 0)


def weight_of(event: LoaderEnded) -> Weight:
    """How much its end says against what the loader was doing."""
    return Weight.CRASHED if event.crashed else Weight.KILLED_FROM_OUTSIDE
