"""What the assembler writes into a trace of the ring's slots: when each was filled, when it was full; and who died."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..scheduling.assembly import Death
from ..transport.messages import Announce, Fill, Postprocess
from ..transport.trace_ring import Kind, TraceRing


@dataclass(slots=True)
class _Slot:
    slot: int
    begun_ns: int = 0
    rows: int = 0
    """0 until it is announced."""
    batches: int = 0


class SlotTrace:
    """Is told what happens to groups; each group once in each way, however often messages are sent."""

    def __init__(self, trace: int) -> None:
        """`trace`: the descriptor of the trace's ring file."""
        self._groups: dict[int, _Slot] = {}
        self._trace = TraceRing(trace).assembler()

    def assigned(self, task: Fill | Postprocess) -> None:
        """A loader has got some rows of the group."""
        if task.group not in self._groups:
            self._groups[task.group] = _Slot(task.slot, time.monotonic_ns())

    def announced(self, announce: Announce, batch_rows: Sequence[int]) -> None:
        group = self._groups.setdefault(announce.group, _Slot(announce.slot))
        if group.rows:
            return
        group.rows, group.batches = sum(batch_rows), len(batch_rows)
        self._span(Kind.FILL, announce.group, group)

    def released(self, number: int) -> None:
        if (group := self._groups.pop(number, None)) is not None:
            self._span(Kind.FULL, number, group)

    def died(self, death: Death) -> None:
        now, last = time.monotonic_ns(), death.last
        self._trace.write(Kind.DEATH, now, now, 0, death.loader, -1, last.task, last.sample)

    def _span(self, kind: Kind, number: int, group: _Slot) -> None:
        now = time.monotonic_ns()
        self._trace.write(kind, group.begun_ns, now, group.rows, group.slot, number, group.batches)
        group.begun_ns = now
