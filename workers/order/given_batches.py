"""The schedule of a run whose batches the trainer gives one by one: what a user's own sampler yields. Pure.

A batch is one task of one loader, which finds in the ring what to make of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn

from ..api import Parameters
from ..transport import Announce, Draw, Give, Replaced, Run
from .supply import At, Draws, Supply


@dataclass(slots=True)
class GivenBatches:
    """The same face as Schedule. It has no end of its own: the trainer knows when it has given the last batch."""

    opened: int = 0
    _given: dict[int, Give] = field(default_factory=dict)

    batch_size: ClassVar[int] = 1
    """The batch as a whole is the row, since only its loader knows what it consists of."""

    can_be_cut: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    draws: ClassVar[Draws] = Draws()
    finished: ClassVar[bool] = False
    complaint: ClassVar[str] = ""
    cause: ClassVar[tuple[int, str]] = 0, ""

    def give(self, given: Give) -> None:
        """Record that a batch may be made; a repeated message changes nothing."""
        self._given.setdefault(given.batch, given)

    def open(self, most: int) -> int:
        """Open the next batch, if it was given; returns 0 if not."""
        found = most > 0 and self.opened in self._given
        self.opened += found
        return int(found)

    def rows_of(self, _batch: int) -> int:
        return 1

    def runs(self, batch: int, _first_row: int, _rows: int) -> tuple[Run, ...]:
        given = self._given[batch]
        return (Run(0, given.rows, given.epoch, 0, shard=given.shard),)

    def affinity(self, batch: int, _row: int) -> int | None:
        """Return the shard of an iterable dataset, which one loader iterates over; None if any loader will do."""
        shard = self._given[batch].shard
        return None if shard < 0 else shard

    def note_done(self, batch: int, stream_rows: int) -> None:
        """Do nothing: what the batch holds is the trainer's business."""

    def sample_in(self, batch: int, _row: int, seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample that a loader was at."""
        return self._given[batch].epoch, seen, ""

    def told(self, _batch: int, _end: int) -> int:
        return 1

    def announcement(self, batch: int, _count: int, slot: int, replaced: Replaced) -> Announce:
        return Announce(batch, slot, replaced, (Run(0, self._given.pop(batch).rows, 0, 0),))

    def wanted(self) -> Draw | None:
        return None


class GivenSupply(Supply):
    """Stands for the supply in a plan whose batches the trainer gives: nothing is asked of it."""

    name = "given batches"

    def land(self, given: Parameters, state: Mapping[str, int | str] | None = None) -> tuple[Supply, At]:
        return self, At(0, 0)

    def rounds(self, given: Parameters, at: At) -> NoReturn:
        raise TypeError("given batches have no rounds")

    def samples_of(self, run: Run) -> NoReturn:
        raise TypeError(f"only their loader knows the samples of given batches, as of {run!r}")

    def identify(self, given: Parameters, at: At) -> dict[str, int | str]:
        return {}

    def batch_key(self, run: Run, batch_size: int) -> tuple[int, ...]:
        return ()
