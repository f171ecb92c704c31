"""What the assembler's units hold: rows of an indexed source, or batches of a stream's shards. No I/O.

The ledger counts rows and slots and does not care where samples come from; a supply says whether there is another unit,
how many rows it has, which loader had better make it, what to tell that loader, and what to tell the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ..order.epoch_order import EpochOrder
from ..order.shard_turns import Draw, StreamPosition, StreamSchedule
from ..order.units import UnitPlan
from ..sources.stream import EMPTY_EPOCH
from ..transport.messages import Announce, Done, Fill, FillFromStream, Postprocess, StreamBatch
from .ledger import Task


class Supply(Protocol):
    """Asked by the assembler, unit by unit in rising order."""

    can_be_cut: bool
    """Whether the rows of a unit may be made by several loaders."""

    def has(self, unit: int) -> bool:
        """Whether there is such a unit, now; asked until it is there."""

    def rows_of(self, unit: int) -> int:
        """Rows to be made."""

    def kin_of(self, unit: int, row: int) -> int | None:
        """What the tasks of one loader had better have in common."""

    def order_for(self, task: Task, good_rows: int) -> Fill | FillFromStream | Postprocess:
        """What to tell the loader; `good_rows`: before the first bad row of the unit, where the run ends with it."""

    def note_done(self, task: Task, done: Done) -> None:
        """A loader has reported on `task`."""

    def sample_in(self, unit: int, row: int, seen: int) -> tuple[int, int, str]:
        """(epoch, index, where) of the sample in `row`, as far as it can be told here; `seen`: what a loader was at."""

    def announcement(self, unit: int, slot: int, replaced: tuple[tuple[int, int], ...]) -> Announce | None:
        """What to tell the trainer; None where there is nothing in the unit."""

    def beginning(self, unit: int, slot: int, replaced: tuple[tuple[int, int], ...], rows: int) -> Announce | None:
        """The same for a unit of which only `rows` rows are good; None where that is no whole batch."""

    @property
    def complaint(self) -> str:
        """Why there is no way on, or nothing."""

    @property
    def finished(self) -> bool:
        """Whether the trainer must be told that no more units will come; where it knows by itself, never."""


@dataclass(slots=True)
class IndexedSupply:
    """Units as the batch plan has them."""

    units: UnitPlan
    order: EpochOrder
    can_be_cut: bool = True
    complaint: str = ""
    finished: bool = False

    def has(self, unit: int) -> bool:
        total = self.units.total
        return total is None or unit < total

    def rows_of(self, unit: int) -> int:
        return self.units.rows_of(unit)

    def kin_of(self, unit: int, row: int) -> int | None:
        """Tasks of one window of a chunked order have chunks in common: one loader shall decompress them, once."""
        return self.order.window_at(self.units.position_of(unit, row))

    def order_for(self, task: Task, good_rows: int) -> Fill | Postprocess:
        if task.is_postprocess:
            return Postprocess(task.id, task.unit, task.slot, min(good_rows, self.rows_of(task.unit)))
        return Fill(task.id, task.unit, task.slot, task.first_row, task.rows, task.skip)

    def note_done(self, task: Task, done: Done) -> None:
        """All that was asked for is there."""

    def sample_in(self, unit: int, row: int, seen: int) -> tuple[int, int, str]:
        position = self.units.position_of(unit, row)
        return position // self.order.samples, int(self.order.indices(position, 1)[0]), ""

    def announcement(self, unit: int, slot: int, replaced: tuple[tuple[int, int], ...]) -> Announce:
        return Announce(unit, slot, replaced)

    def beginning(self, unit: int, slot: int, replaced: tuple[tuple[int, int], ...], rows: int) -> Announce | None:
        return Announce(unit, slot, replaced, rows=rows) if rows >= self.units.plan.batch_size else None


@dataclass(slots=True)
class StreamSupply:
    """Units are batches of shards that take turns; a shard's batches belong to the loader that runs it."""

    schedule: StreamSchedule
    batch_size: int
    drop_short: bool
    rank_offset: int
    """This rank's first shard among those of all ranks."""
    can_be_cut: bool = False
    complaint: str = ""
    _draws: dict[int, Draw] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)
    _samples_in_epoch: int = 0
    _ends: dict[int, int] = field(default_factory=dict)
    """By shard, which of its batches in this epoch is known not to be full."""

    @classmethod
    def begin(
        cls, position: StreamPosition, batch_size: int, last_batch: str, epochs: int | None, rank_offset: int
    ) -> StreamSupply:
        schedule = StreamSchedule(position, epochs, chained=last_batch == "wrap")
        taken = sum(position.sequences) * batch_size
        return cls(schedule, batch_size, last_batch == "drop", rank_offset, _samples_in_epoch=taken)

    @property
    def finished(self) -> bool:
        return self.schedule.finished and not self._draws

    def has(self, unit: int) -> bool:
        if unit not in self._draws and not self.complaint and (draw := self.schedule.next()) is not None:
            self._draws[unit] = draw
        return unit in self._draws

    def rows_of(self, _unit: int) -> int:
        return self.batch_size

    def kin_of(self, unit: int, _row: int) -> int:
        return self._draws[unit].shard

    def order_for(self, task: Task, good_rows: int) -> FillFromStream | Postprocess:
        if task.is_postprocess:
            rows = self._rows.get(task.unit, 0)
            return Postprocess(task.id, task.unit, task.slot, rows if rows <= good_rows else 0)
        draw = self._draws[task.unit]
        shard = self.rank_offset + draw.shard
        return FillFromStream(task.id, task.unit, task.slot, draw.epoch, shard, draw.sequence)

    def note_done(self, task: Task, done: Done) -> None:
        if task.is_postprocess:
            return
        draw = self._draws[task.unit]
        self._rows[task.unit] = done.stream_rows
        self._samples_in_epoch += done.stream_rows
        if done.stream_rows < self.batch_size:
            self._note_end(draw)

    def _note_end(self, draw: Draw) -> None:
        epoch = self.schedule.position.epoch
        if self.schedule.finished or draw.epoch != epoch:
            return  # it was asked of a shard whose end was not known yet
        self._ends[draw.shard] = min(draw.sequence, self._ends.get(draw.shard, draw.sequence))
        self.schedule.note_end(draw.epoch, draw.shard)
        if not self.schedule.finished and self.schedule.position.epoch == epoch:
            return
        if not self._samples_in_epoch and not self._may_get_more(epoch):
            self.complaint = EMPTY_EPOCH.format(epoch)
        self._samples_in_epoch = 0
        self._ends.clear()

    def _may_get_more(self, epoch: int) -> bool:
        """Whether a batch of `epoch` that lies before its shard's end is still being made.

        A loader that was dismissed may owe it, while the shard's next loader has already met the end.
        """
        asked = ((unit, draw) for unit, draw in self._draws.items() if draw.epoch == epoch)
        return any(unit not in self._rows and draw.sequence < self._ends[draw.shard] for unit, draw in asked)

    def sample_in(self, unit: int, row: int, seen: int) -> tuple[int, int, str]:
        draw = self._draws[unit]
        first = draw.sequence * self.batch_size
        return draw.epoch, seen if seen >= 0 else first + row, f"the stream's shard {self.rank_offset + draw.shard}"

    def announcement(self, unit: int, slot: int, replaced: tuple[tuple[int, int], ...]) -> Announce | None:
        draw, rows = self._draws.pop(unit), self._rows.pop(unit)
        if rows == 0 or (self.drop_short and rows < self.batch_size):
            return None
        return Announce(unit, slot, replaced, StreamBatch(draw.epoch, draw.shard, draw.sequence, rows))

    def beginning(self, unit: int, slot: int, replaced: tuple[tuple[int, int], ...], rows: int) -> None:
        """A unit is one batch."""
