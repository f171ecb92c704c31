"""What the assembler writes into a trace: when each slot was filled and full, and who died."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..scheduling.assembly import Death
from ..transport.messages import Announce
from ..transport.trace_ring import Kind, TraceRing


class SlotTrace:
    """Is told what happens to groups, as often as messages are sent; writes each group once, when it is released: to
    write twice would cost a third of a trace more."""

    def __init__(self, trace: int) -> None:
        """`trace`: the descriptor of the trace's ring file."""
        self._begun: dict[int, int] = {}
        """By group, since when it is filled."""
        self._full: dict[int, tuple[int, int, Announce]] = {}
        """By group, since when it was filled, and since when it is full."""
        self._trace = TraceRing(trace).assembler()

    def assigned(self, group: int) -> None:
        """A loader has got some rows of the group."""
        if group not in self._begun:
            self._begun[group] = time.monotonic_ns()

    def announced(self, announce: Announce) -> None:
        """Perhaps again, and even after the release, if the trainer has asked what it may have missed."""
        if (begun := self._begun.pop(announce.group, None)) is not None:
            self._full[announce.group] = begun, time.monotonic_ns(), announce

    def released(self, announce: Announce, batch_rows: Sequence[int]) -> None:
        group, now = announce.group, time.monotonic_ns()
        begun, full, _ = self._full.pop(group)
        self._trace.write(Kind.SLOT, begun, now, sum(batch_rows), announce.slot, group, len(batch_rows), full)

    def end(self, batch_rows: Callable[[Announce], Sequence[int]]) -> None:
        """Of what the trainer has not released."""
        for *_, announce in list(self._full.values()):
            self.released(announce, batch_rows(announce))

    def died(self, death: Death) -> None:
        now, last = time.monotonic_ns(), death.last
        self._trace.write(Kind.DEATH, now, now, 0, death.loader, -1, last.task, last.sample)
