"""The plan of a run over a stream: its batches are known when they come, not before."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..base.errors import ParameterError, SourceError
from ..base.specs import Rows
from ..loading.stream_worker import StreamWorker, counts_of
from ..loading.worker import Workplace
from ..order.shard_turns import JOINED, Draw, Part, ShardTurns, StreamPosition, join_ends
from ..sources.stream import EMPTY_EPOCH
from ..transport.messages import Announce, Replaced, StreamBatch
from .batch import Batch
from .plan import Plan, Schedule, State, check_state

_STATE_VERSION = 2

_NO_FULL_BATCH = (
    "last_batch is 'drop', and epoch {} of the stream has no full batch: no shard gave batch_size={} samples; "
    "use a smaller batch_size, fewer shards, or last_batch 'wrap' or 'partial'"
)


@dataclass(frozen=True, kw_only=True)
class StreamPlan(Plan):
    """`shards`: of this rank; each belongs to one loader at a time. `capacity`: of each shard's shuffle buffer.

    `end`: the `epochs` of which the end has been taken, in batches that are joined or short; 0 if it has not.
    `takes_any_shards`: nobody asked for a number: there are as many as loaders, which may be others after a restart.
    """

    shards: int
    position: StreamPosition
    capacity: int = 0
    end: int = 0
    takes_any_shards: bool = False

    @property
    def samples(self) -> int:
        raise SourceError("a stream does not know how many samples it has: read it until its end")

    @property
    def joins_ends(self) -> bool:
        """Whether the ends of several shards are joined, so that no batch but the very last is short."""
        return self.parameters.last_batch == "wrap" and self.shards > 1

    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        if not announce.streams:
            raise TypeError(f"group {announce.group} of a stream was announced without saying which batch it is")
        first, size = announce.streams[0], self.parameters.batch_size
        joined = first.first >= 0
        count = sum(stream.rows for stream in announce.streams)
        tops = {name: rows[name][:count] for name in self.delivered}
        return [
            Batch(
                number=self.first_number + announce.group,
                epoch=first.epoch,
                position=0 if joined else first.sequence * size,
                rows=count,
                tops=tops,
                group=announce.group,
                order=None,
                replaced=dict(announce.replaced),
                shard=JOINED if joined else first.shard,
                counts=counts_of(announce.streams, size) if joined else None,
            )
        ]

    def begin(self) -> StreamProgress:
        return StreamProgress(self, self.position, self.end)

    def resumed(self, state: Mapping[str, object]) -> StreamPlan:
        ours = self.begin().state()
        fixed: tuple[str, ...] = ("seed", "batch_size", "last_batch", "world_size", "capacity")
        if not self.takes_any_shards:
            fixed += ("shards",)
        checked = check_state(state, ours, fixed)
        shards = int(checked["shards"])
        end, epochs = int(checked["end"]), self.parameters.epochs
        if end and end != epochs:
            raise ParameterError(
                f"the state was saved at the end of epochs={end}, whose last batches are joined or short, and this "
                f"pipeline has epochs={epochs}: the same batches cannot follow; give the same epochs, or start without "
                "the state"
            )
        try:
            sequences = [int(number) for number in json.loads(str(checked["sequences"]))]
        except (ValueError, TypeError):
            sequences = []
        if len(sequences) != shards or not shards:
            raise ParameterError(f"the state's sequences are {checked['sequences']!r}: expected {shards} numbers")
        turn, joined = int(checked["turn"]) % shards, int(checked["joined"])
        position = StreamPosition(int(checked["epoch"]), sequences, turn, joined)
        if shards != self.shards:
            self.decoded.value.num_shards = shards * (self.parameters.world_size or 1)
        return replace(self, shards=shards, position=position, end=end, first_number=int(checked["batches"]))

    def schedule(self) -> StreamSchedule:
        return StreamSchedule(self)

    def worker(self, place: Workplace) -> StreamWorker:
        return StreamWorker(self.decoded.value, self.parameters, place, keep_ends=self.joins_ends)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Counts what has been taken from each shard."""

    plan: StreamPlan
    position: StreamPosition
    end: int
    taken: int = 0

    def after(self, batch: Batch) -> StreamProgress:
        position, given = copy.deepcopy(self.position), self.plan.parameters
        joined = batch.shard == JOINED
        if joined:
            position.joined += 1
        else:
            position.take(Draw(batch.epoch, batch.shard, batch.position // given.batch_size))
        ends = given.last_batch == "wrap" and (joined or batch.rows < given.batch_size)
        return StreamProgress(self.plan, position, given.epochs or 0 if ends else self.end, self.taken + 1)

    def state(self) -> State:
        return {
            "version": _STATE_VERSION,
            "batches": self.plan.first_number + self.taken,
            "epoch": self.position.epoch,
            "sequences": json.dumps(self.position.sequences),
            "turn": self.position.turn,
            "joined": self.position.joined,
            "seed": self.plan.parameters.seed,
            "batch_size": self.plan.parameters.batch_size,
            "shards": self.plan.shards,
            "world_size": self.plan.parameters.world_size or 1,
            "capacity": self.plan.capacity,
            "end": self.end,
            "last_batch": self.plan.parameters.last_batch,
        }


@dataclass(slots=True)
class StreamSchedule(Schedule):
    """What the assembler asks: shards take turns, and a shard's batches belong to the loader that runs it."""

    plan: StreamPlan
    can_be_cut: bool = False
    complaint: str = ""
    cause: tuple[int, str] = (0, "")
    _turns: ShardTurns = field(init=False)
    _parts: dict[int, list[Part]] = field(default_factory=dict)
    """Of each group: a whole batch of one shard, which has the `first` -1, or the ends of several."""
    _rows: dict[int, int] = field(default_factory=dict)
    _longest_in_epoch: int = field(init=False)
    """Rows of the batch that has most of them."""
    _ends: dict[int, int] = field(default_factory=dict)
    """By shard, which of its batches in this epoch is known not to be full."""
    _short: dict[int, tuple[Draw, int]] = field(default_factory=dict)
    """By shard, its last batch and the rows of it, to be joined with those of the others."""
    _joined: list[list[Part]] = field(default_factory=list)
    """Of all ends, as soon as they are known."""

    def __post_init__(self) -> None:
        given, position = self.plan.parameters, copy.deepcopy(self.plan.position)
        self._turns = ShardTurns(position, given.epochs, chained=given.last_batch == "wrap")
        self._longest_in_epoch = given.batch_size if any(position.sequences) else 0

    @property
    def finished(self) -> bool:
        return self._turns.finished and not self._parts and not self._left_to_join()

    def has(self, group: int) -> bool:
        if group not in self._parts and not self.complaint and (parts := self._next_parts()):
            self._parts[group] = parts
        return group in self._parts

    def _next_parts(self) -> list[Part]:
        if (draw := self._turns.next()) is not None:
            return [Part(draw, -1, self.plan.parameters.batch_size, 0)]
        if not (left := self._left_to_join()):
            return []
        self._turns.position.joined += 1
        return left[0]

    def _left_to_join(self) -> list[list[Part]]:
        return self._joined[self._turns.position.joined :]

    def rows_of(self, group: int) -> int:
        return sum(part.rows for part in self._parts[group])

    def _part_at(self, group: int, row: int) -> Part:
        return [part for part in self._parts[group] if part.row <= row][-1]

    def affinity(self, group: int, row: int) -> int:
        return self._part_at(group, row).draw.shard

    def stream_batches(self, group: int, first_row: int, rows: int) -> tuple[StreamBatch, ...]:
        return tuple(
            StreamBatch(part.draw.epoch, self._shard_of_all(part.draw), part.draw.sequence, part.rows, part.first)
            for part in self._parts[group]
            if first_row <= part.row < first_row + rows
        )

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        rows = 0 if self._is_to_be_joined(group) else self._rows.get(group, 0)
        return (rows,) if 0 < rows <= good_rows else ()

    def _is_to_be_joined(self, group: int) -> bool:
        part = self._parts[group][0]
        return part.first < 0 and self._short.get(part.draw.shard, (None, 0))[0] == part.draw

    def note_done(self, group: int, stream_rows: int) -> None:
        part = self._parts[group][0]
        if part.first >= 0:
            self._rows[group] = self.rows_of(group)
            return
        self._rows[group] = stream_rows
        self._longest_in_epoch = max(self._longest_in_epoch, stream_rows)
        if stream_rows < self.plan.parameters.batch_size:
            if self.plan.joins_ends and stream_rows > 0:
                self._short[part.draw.shard] = part.draw, stream_rows
            self._note_end(part.draw)
        if self.plan.joins_ends and self._turns.finished and all(asked in self._rows for asked in self._parts):
            self._joined = join_ends(map(self._short.__getitem__, sorted(self._short)), self.plan.parameters.batch_size)

    def _note_end(self, draw: Draw) -> None:
        epoch = self._turns.position.epoch
        if self._turns.finished or draw.epoch != epoch:
            return  # it was asked of a shard whose end was not known yet
        self._ends[draw.shard] = min(draw.sequence, self._ends.get(draw.shard, draw.sequence))
        self._turns.note_end(draw.epoch, draw.shard)
        if not self._turns.finished and self._turns.position.epoch == epoch:
            return
        given = self.plan.parameters
        least = given.batch_size if given.last_batch == "drop" else 1
        if self._longest_in_epoch < least and not self._may_get_more(epoch):
            complaint = _NO_FULL_BATCH if self._longest_in_epoch else EMPTY_EPOCH
            self.complaint = complaint.format(epoch, given.batch_size)
        self._longest_in_epoch = 0
        self._ends.clear()

    def _may_get_more(self, epoch: int) -> bool:
        """Whether a batch of `epoch` that lies before its shard's end is still being made.

        A loader that was dismissed may have it, while the shard's next loader has already met the end.
        """
        asked = [parts[0].draw for group, parts in self._parts.items() if group not in self._rows]
        return any(draw.epoch == epoch and draw.sequence < self._ends[draw.shard] for draw in asked)

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        part = self._part_at(group, row)
        counted = part.draw.sequence * self.plan.parameters.batch_size + max(0, part.first) + row - part.row
        where = f"the stream's shard {self._shard_of_all(part.draw)}"
        return part.draw.epoch, seen if seen >= 0 else counted, where

    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        streams = self._announced(group)
        del self._parts[group]
        self._rows.pop(group, None)
        return Announce(group, slot, replaced, streams) if streams and good_rows < 0 else None

    def _announced(self, group: int) -> tuple[StreamBatch, ...]:
        """() if the trainer gets nothing of it."""
        parts, rows = self._parts[group], self._rows.get(group, 0)  # none if loaders died of it
        if parts[0].first >= 0:
            return tuple(StreamBatch(p.draw.epoch, p.draw.shard, p.draw.sequence, p.rows, p.first) for p in parts)
        too_short = self.plan.parameters.last_batch == "drop" and rows < self.plan.parameters.batch_size
        left_out = rows == 0 or too_short or self._is_to_be_joined(group)
        draw = parts[0].draw
        return () if left_out else (StreamBatch(draw.epoch, draw.shard, draw.sequence, rows),)

    def _shard_of_all(self, draw: Draw) -> int:
        """Its number among the shards of all ranks."""
        return (self.plan.parameters.rank or 0) * self.plan.shards + draw.shard
