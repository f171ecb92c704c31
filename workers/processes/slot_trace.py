"""The assembler's part of a trace: the times at which each slot was filled and full, and the deaths of loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..scheduling.assembly import Death
from ..transport.messages import Announce
from ..transport.trace_ring import Kind, TraceRing


class SlotTrace:
    """Records the events of groups. It writes each group once, when it is released: writing twice would make a trace
    a third more expensive."""

    def __init__(self, trace: int) -> None:
        """Open the trace's ring file by its descriptor `trace`."""
        self._begun: dict[int, int] = {}
        """The time at which the filling of each group began."""
        self._full: dict[int, tuple[int, int, Announce]] = {}
        """The times at which each group's filling began and ended, and its announcement."""
        self._trace = TraceRing(trace).assembler()

    def assigned(self, group: int) -> None:
        """Record that a loader was assigned rows of the group."""
        if group not in self._begun:
            self._begun[group] = time.monotonic_ns()

    def announced(self, announce: Announce) -> None:
        """Record an announcement. It may come again, even after the release, if the trainer has requested a resend."""
        if (begun := self._begun.pop(announce.group, None)) is not None:
            self._full[announce.group] = begun, time.monotonic_ns(), announce

    def released(self, announce: Announce, batch_rows: Sequence[int]) -> None:
        group, now = announce.group, time.monotonic_ns()
        begun, full, _ = self._full.pop(group)
        self._trace.write(Kind.SLOT, begun, now, sum(batch_rows), announce.slot, group, len(batch_rows), full)

    def end(self, batch_rows: Callable[[Announce], Sequence[int]]) -> None:
        """Write the groups that the trainer has not released."""
        for *_, announce in list(self._full.values()):
            self.released(announce, batch_rows(announce))

    def died(self, death: Death) -> None:
        now, last = time.monotonic_ns(), death.last
        self._trace.write(Kind.DEATH, now, now, 0, death.loader, -1, last.task, last.sample)
