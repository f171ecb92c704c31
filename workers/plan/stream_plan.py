"""The plan of a run over a stream: its batches are known when they come, not before."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..base.errors import ParameterError, SourceError
from ..base.specs import NamedRows, Rows
from ..loading.stream_worker import StreamWorker
from ..order.shard_turns import Draw, ShardTurns, StreamPosition
from ..sources.stream import EMPTY_EPOCH
from ..transport.error_channel import SendError
from ..transport.messages import Announce, DrawnRows, StreamBatch
from ..transport.status_board import LoaderStatus
from .batch import Batch
from .plan import Plan, State, check_state

_STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StreamPlan(Plan):
    """`shards`: of this rank; each belongs to one loader at a time."""

    shards: int
    position: StreamPosition

    @property
    def batches_per_slot(self) -> int:
        return 1

    @property
    def samples(self) -> int:
        raise SourceError("a stream does not know how many samples it has: read it until its end")

    @property
    def batches(self) -> None:
        return None

    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        stream = announce.stream
        if stream is None:
            raise TypeError(f"group {announce.group} of a stream was announced without saying which batch it is")
        tops = {name: rows[name][: stream.rows] for name in self.delivered}
        position = stream.sequence * self.parameters.batch_size
        number = self.first_number + announce.group
        return [Batch(number, stream.epoch, position, stream.rows, tops, announce.group, None, {}, stream.shard)]

    def begin(self) -> StreamProgress:
        return StreamProgress(self, self.position)

    def resumed(self, state: Mapping[str, object]) -> StreamPlan:
        ours = self.begin().state()
        checked = check_state(state, ours, ("seed", "batch_size", "shards", "last_batch"))
        try:
            sequences = [int(number) for number in json.loads(str(checked["sequences"]))]
        except (ValueError, TypeError):
            sequences = []
        if len(sequences) != self.shards:
            raise ParameterError(f"the state's sequences are {checked['sequences']!r}: expected {self.shards} numbers")
        position = StreamPosition(int(checked["epoch"]), sequences, int(checked["turn"]) % self.shards)
        return replace(self, position=position, first_number=int(checked["batches"]))

    def schedule(self) -> StreamSchedule:
        return StreamSchedule(self)

    def worker(
        self, slots: Sequence[NamedRows], status: LoaderStatus, send_error: SendError, drawn: int = -1
    ) -> StreamWorker:
        return StreamWorker(self.decoded.value, self.parameters, slots, status, send_error)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Counts what has been taken from each shard."""

    plan: StreamPlan
    position: StreamPosition
    taken: int = 0

    def after(self, batch: Batch) -> StreamProgress:
        position = copy.deepcopy(self.position)
        position.take(Draw(batch.epoch, batch.shard, batch.position // self.plan.parameters.batch_size))
        return StreamProgress(self.plan, position, self.taken + 1)

    def state(self) -> State:
        return {
            "version": _STATE_VERSION,
            "batches": self.plan.first_number + self.taken,
            "epoch": self.position.epoch,
            "sequences": json.dumps(self.position.sequences),
            "turn": self.position.turn,
            "seed": self.plan.parameters.seed,
            "batch_size": self.plan.parameters.batch_size,
            "shards": self.plan.shards,
            "last_batch": self.plan.parameters.last_batch,
        }


@dataclass(slots=True)
class StreamSchedule:
    """What the assembler asks: shards take turns, and a shard's batches belong to the loader that runs it."""

    plan: StreamPlan
    can_be_cut: bool = False
    complaint: str = ""
    cause: tuple[int, str] = (0, "")
    _turns: ShardTurns = field(init=False)
    _draws: dict[int, Draw] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)
    _samples_in_epoch: int = 0
    _ends: dict[int, int] = field(default_factory=dict)
    """By shard, which of its batches in this epoch is known not to be full."""

    def __post_init__(self) -> None:
        given, position = self.plan.parameters, copy.deepcopy(self.plan.position)
        self._turns = ShardTurns(position, given.epochs, chained=given.last_batch == "wrap")
        self._samples_in_epoch = sum(position.sequences) * given.batch_size

    @property
    def finished(self) -> bool:
        return self._turns.finished and not self._draws

    def has(self, group: int) -> bool:
        if group not in self._draws and not self.complaint and (draw := self._turns.next()) is not None:
            self._draws[group] = draw
        return group in self._draws

    def rows_of(self, _group: int) -> int:
        return self.plan.parameters.batch_size

    def affinity(self, group: int, _row: int) -> int:
        return self._draws[group].shard

    def stream_batch(self, group: int) -> StreamBatch:
        draw = self._draws[group]
        return StreamBatch(draw.epoch, self._shard_of_all(draw), draw.sequence, self.plan.parameters.batch_size)

    def drawn(self, _group: int, _first_row: int, _rows: int) -> tuple[DrawnRows, ...]:
        return ()

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        rows = self._rows.get(group, 0)
        return (rows,) if 0 < rows <= good_rows else ()

    def note_done(self, group: int, stream_rows: int) -> None:
        draw = self._draws[group]
        self._rows[group] = stream_rows
        self._samples_in_epoch += stream_rows
        if stream_rows < self.plan.parameters.batch_size:
            self._note_end(draw)

    def _note_end(self, draw: Draw) -> None:
        epoch = self._turns.position.epoch
        if self._turns.finished or draw.epoch != epoch:
            return  # it was asked of a shard whose end was not known yet
        self._ends[draw.shard] = min(draw.sequence, self._ends.get(draw.shard, draw.sequence))
        self._turns.note_end(draw.epoch, draw.shard)
        if not self._turns.finished and self._turns.position.epoch == epoch:
            return
        if not self._samples_in_epoch and not self._may_get_more(epoch):
            self.complaint = EMPTY_EPOCH.format(epoch)
        self._samples_in_epoch = 0
        self._ends.clear()

    def _may_get_more(self, epoch: int) -> bool:
        """Whether a batch of `epoch` that lies before its shard's end is still being made.

        A loader that was dismissed may have it, while the shard's next loader has already met the end.
        """
        asked = ((group, draw) for group, draw in self._draws.items() if draw.epoch == epoch)
        return any(group not in self._rows and draw.sequence < self._ends[draw.shard] for group, draw in asked)

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        draw = self._draws[group]
        first = draw.sequence * self.plan.parameters.batch_size
        return draw.epoch, seen if seen >= 0 else first + row, f"the stream's shard {self._shard_of_all(draw)}"

    def announcement(
        self, group: int, slot: int, replaced: tuple[tuple[int, int], ...], good_rows: int = -1
    ) -> Announce | None:
        draw, rows = self._draws.pop(group), self._rows.pop(group)
        too_short = self.plan.parameters.last_batch == "drop" and rows < self.plan.parameters.batch_size
        if rows == 0 or too_short or good_rows >= 0:
            return None
        return Announce(group, slot, replaced, StreamBatch(draw.epoch, draw.shard, draw.sequence, rows))

    def _shard_of_all(self, draw: Draw) -> int:
        """Its number among the shards of all ranks."""
        return (self.plan.parameters.rank or 0) * self.plan.shards + draw.shard
