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
    def batches(self) -> None:
        return None

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
        absent = {name: ours[name] for name in ("world_size", "capacity", "end")}  # earlier versions did not say
        checked = check_state(state, ours, fixed, absent)
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
        sequence = position.joined if joined else batch.position // given.batch_size
        position.take(Draw(batch.epoch, batch.shard, sequence))
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
    _draws: dict[int, Draw] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)
    _longest_in_epoch: int = field(init=False)
    """Rows of the batch that has most of them."""
    _ends: dict[int, int] = field(default_factory=dict)
    """By shard, which of its batches in this epoch is known not to be full."""
    _short: dict[int, tuple[Draw, int]] = field(default_factory=dict)
    """By shard, its last batch and the rows of it, to be joined with those of the others."""
    _joined: list[list[Part]] | None = None

    def __post_init__(self) -> None:
        given, position = self.plan.parameters, copy.deepcopy(self.plan.position)
        self._turns = ShardTurns(position, given.epochs, chained=given.last_batch == "wrap")
        self._longest_in_epoch = given.batch_size if any(position.sequences) else 0

    @property
    def finished(self) -> bool:
        return self._turns.finished and not self._draws and self._next_joined() is None

    def has(self, group: int) -> bool:
        if group not in self._draws and not self.complaint:
            draw = self._turns.next()
            if draw is None and (draw := self._next_joined()) is not None:
                self._turns.position.take(draw)
            if draw is not None:
                self._draws[group] = draw
        return group in self._draws

    def _next_joined(self) -> Draw | None:
        position = self._turns.position
        left = self._joined is not None and position.joined < len(self._joined)
        return Draw(position.epoch, JOINED, position.joined) if left else None

    def _parts(self, group: int) -> list[Part]:
        """Of a joined batch; else []."""
        draw = self._draws[group]
        return self._joined[draw.sequence] if draw.shard == JOINED and self._joined is not None else []

    def rows_of(self, group: int) -> int:
        return sum(part.rows for part in self._parts(group)) or self.plan.parameters.batch_size

    def affinity(self, group: int, row: int) -> int:
        within = [part.draw for part in self._parts(group) if part.row <= row]
        return (within[-1] if within else self._draws[group]).shard

    def stream_batches(self, group: int, first_row: int, rows: int) -> tuple[StreamBatch, ...]:
        whole = [Part(self._draws[group], -1, self.plan.parameters.batch_size, first_row)]
        return tuple(
            StreamBatch(part.draw.epoch, self._shard_of_all(part.draw), part.draw.sequence, part.rows, part.first)
            for part in self._parts(group) or whole
            if first_row <= part.row < first_row + rows
        )

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        rows = 0 if self._is_to_be_joined(group) else self._rows.get(group, 0)
        return (rows,) if 0 < rows <= good_rows else ()

    def _is_to_be_joined(self, group: int) -> bool:
        draw = self._draws[group]
        return self._short.get(draw.shard, (None, 0))[0] == draw

    def note_done(self, group: int, stream_rows: int) -> None:
        draw = self._draws[group]
        if draw.shard == JOINED:
            self._rows[group] = self.rows_of(group)
            return
        self._rows[group] = stream_rows
        self._longest_in_epoch = max(self._longest_in_epoch, stream_rows)
        if stream_rows < self.plan.parameters.batch_size:
            if self.plan.joins_ends and stream_rows > 0:
                self._short[draw.shard] = draw, stream_rows
            self._note_end(draw)
        if self.plan.joins_ends and self._turns.finished and all(asked in self._rows for asked in self._draws):
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
        asked = ((group, draw) for group, draw in self._draws.items() if draw.epoch == epoch)
        return any(group not in self._rows and draw.sequence < self._ends[draw.shard] for group, draw in asked)

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        within = [part for part in self._parts(group) if part.row <= row]
        draw, first = (within[-1].draw, within[-1].first - within[-1].row) if within else (self._draws[group], 0)
        index = seen if seen >= 0 else draw.sequence * self.plan.parameters.batch_size + first + row
        return draw.epoch, index, f"the stream's shard {self._shard_of_all(draw)}"

    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        streams = self._announced(group)
        del self._draws[group]
        self._rows.pop(group, None)
        return Announce(group, slot, replaced, streams) if streams and good_rows < 0 else None

    def _announced(self, group: int) -> tuple[StreamBatch, ...]:
        """() if the trainer gets nothing of it."""
        draw, rows = self._draws[group], self._rows.get(group, 0)  # none if loaders died of it
        if parts := self._parts(group):
            return tuple(StreamBatch(p.draw.epoch, p.draw.shard, p.draw.sequence, p.rows, p.first) for p in parts)
        too_short = self.plan.parameters.last_batch == "drop" and rows < self.plan.parameters.batch_size
        left_out = rows == 0 or too_short or self._is_to_be_joined(group)
        return () if left_out else (StreamBatch(draw.epoch, draw.shard, draw.sequence, rows),)

    def _shard_of_all(self, draw: Draw) -> int:
        """Its number among the shards of all ranks."""
        return (self.plan.parameters.rank or 0) * self.plan.shards + draw.shard
