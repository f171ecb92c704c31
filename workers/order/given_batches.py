"""The schedule of a run whose batches the trainer gives one by one: what a user's own sampler yields. Pure.

A batch is one task of one loader, which finds in the ring what to make of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..transport import Announce, Draw, Drawn, Give, Replaced, Run


@dataclass(slots=True)
class GivenBatches:
    """The same face as Schedule. It has no end of its own: the trainer knows when it has given the last batch."""

    _given: dict[int, Give] = field(default_factory=dict)

    can_be_cut: ClassVar[bool] = False
    drawn: ClassVar[None] = None
    finished: ClassVar[bool] = False
    complaint: ClassVar[str] = ""
    cause: ClassVar[tuple[int, str]] = 0, ""

    def give(self, given: Give) -> None:
        """Record that a batch may be made; a repeated message changes nothing."""
        self._given.setdefault(given.group, given)

    def has(self, group: int) -> bool:
        return group in self._given

    def rows_of(self, _group: int) -> int:
        """Return 1: the batch as a whole is the row, since only its loader knows what it consists of."""
        return 1

    def runs(self, group: int, _first_row: int, _rows: int) -> tuple[Run, ...]:
        given = self._given[group]
        return (Run(0, given.rows, given.epoch, 0, shard=given.shard),)

    def affinity(self, group: int, _row: int) -> int | None:
        """Return the shard of an iterable dataset, which one loader iterates over; None if any loader will do."""
        shard = self._given[group].shard
        return None if shard < 0 else shard

    def note_done(self, group: int, stream_rows: int) -> None:
        """Do nothing: what the batch holds is the trainer's business."""

    def batch_rows(self, group: int, _good_rows: int) -> tuple[int, ...]:
        return (self._given[group].rows,)

    def sample_in(self, group: int, _row: int, seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample that a loader was at."""
        return self._given[group].epoch, seen, ""

    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        given = self._given.pop(group)
        return None if good_rows >= 0 else Announce(group, slot, replaced, (Run(0, given.rows, 0, 0),))

    def use_file(self, file: object) -> None:
        """Do nothing: no epoch is drawn."""

    def wanted(self) -> Draw | None:
        return None

    def called(self, draw: Draw) -> str:
        raise TypeError(f"given batches need no draw, and were asked for {draw!r}")

    def note_drawn(self, draw: Draw, answer: Drawn) -> None:
        raise TypeError(f"given batches need no draw, and got {draw!r}: {answer!r}")

    def go_on(self) -> None:
        """Do nothing: there is no end behind which a run goes on."""
