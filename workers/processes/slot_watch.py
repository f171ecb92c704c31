"""What the assembler tells of the ring's slots: how many batches the trainer has released, and, if a trace is written,
when each slot was filled and when it was full."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..plan.plan import Schedule
from ..scheduling.assembly import Death
from ..transport.messages import Announce, Fill, Postprocess
from ..transport.status_board import Count, StatusBoard
from ..transport.trace_ring import Kind, TraceRing, TraceWriter
from .config import Config


@dataclass(slots=True)
class _Slot:
    slot: int
    begun_ns: int = 0
    rows: int = 0
    """0 until it is announced."""


class SlotWatch:
    """Is told what happens to groups; each group once in each way, however often messages are sent."""

    def __init__(self, config: Config, board: StatusBoard) -> None:
        self._board = board
        self._parameters = config.plan.parameters
        self._groups: dict[int, _Slot] = {}
        traced = config.descriptors.trace
        self._trace: TraceWriter | None = None if traced < 0 else TraceRing(traced).assembler()

    def assigned(self, task: Fill | Postprocess) -> None:
        """A loader has got some rows of the group."""
        if self._trace is not None and task.group not in self._groups:
            self._groups[task.group] = _Slot(task.slot, time.monotonic_ns())

    def announced(self, announce: Announce, schedule: Schedule) -> None:
        group = self._groups.setdefault(announce.group, _Slot(announce.slot))
        if group.rows:
            return
        group.rows = _rows_of(announce, schedule)
        self._span(Kind.FILL, announce.group, group)

    def released(self, number: int) -> None:
        if (group := self._groups.pop(number, None)) is None:
            return
        self._span(Kind.FULL, number, group)
        self._board.add(Count.SAMPLES, group.rows)
        self._board.add(Count.BATCHES, -(-group.rows // self._parameters.batch_size))

    def died(self, death: Death) -> None:
        if self._trace is not None:
            now, last = time.monotonic_ns(), death.last
            self._trace.write(Kind.DEATH, now, now, 0, death.loader, -1, last.task, last.sample)

    def _span(self, kind: Kind, number: int, group: _Slot) -> None:
        if self._trace is not None:
            now = time.monotonic_ns()
            self._trace.write(kind, group.begun_ns, now, group.rows, group.slot, number)
            group.begun_ns = now


def _rows_of(announce: Announce, schedule: Schedule) -> int:
    if announce.drawn:
        return sum(batch.rows for batch in announce.drawn)
    if announce.streams:
        return sum(stream.rows for stream in announce.streams)
    return announce.rows if announce.rows >= 0 else schedule.rows_of(announce.group)
