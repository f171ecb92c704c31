"""The plan of a run over a stream, whose batches become known only when they come."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..base.errors import ParameterError, SourceError
from ..loading.stream_worker import StreamWorker
from ..loading.worker import Workplace
from ..order.shard_turns import ShardBatch, ShardTurns, StreamPosition
from ..sources.stream import EMPTY_EPOCH
from ..transport.messages import Announce, Replaced, Run
from .batch import Batch
from .plan import Plan, State, check_state
from .schedule import Schedule

_STATE_VERSION = 3

_NO_FULL_BATCH = (
    "last_batch is 'drop', and epoch {} of the stream has no full batch: no shard gave batch_size={} samples; "
    "use a smaller batch_size, fewer shards, or last_batch 'wrap' or 'partial'"
)


@dataclass(frozen=True, kw_only=True)
class StreamPlan(Plan):
    """A plan over a stream. `shards`: of this rank; each belongs to one loader at a time.

    `capacity`: the size of each shard's shuffle buffer. `end`: the value of `epochs` if a short batch at its end has
    been taken, else 0. `takes_any_shards`: the user declared no number of shards; it is that of the loaders, and may
    change at a restart.
    """

    shards: int
    position: StreamPosition
    capacity: int = 0
    end: int = 0
    takes_any_shards: bool = False

    @property
    def samples(self) -> int:
        raise SourceError("a stream does not know how many samples it has: read it until its end")

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
                f"the state was saved at the end of epochs={end}, whose last batches are short, and this "
                f"pipeline has epochs={epochs}: the same batches cannot follow; give the same epochs, or start without "
                "the state"
            )
        try:
            sequences = [int(number) for number in json.loads(str(checked["sequences"]))]
        except (ValueError, TypeError):
            sequences = []
        if len(sequences) != shards or not shards:
            raise ParameterError(f"the state's sequences are {checked['sequences']!r}: expected {shards} numbers")
        position = StreamPosition(int(checked["epoch"]), sequences, int(checked["turn"]) % shards)
        if shards != self.shards:
            self.decoded.value.num_shards = shards * (self.parameters.world_size or 1)
        return replace(self, shards=shards, position=position, end=end, first_number=int(checked["batches"]))

    def schedule(self) -> StreamSchedule:
        return StreamSchedule(self)

    def worker(self, place: Workplace) -> StreamWorker:
        return StreamWorker(self.decoded.value, self.parameters, place)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Counts the batches taken from each shard."""

    plan: StreamPlan
    position: StreamPosition
    end: int
    taken: int = 0

    def after(self, batch: Batch) -> StreamProgress:
        position, given = copy.deepcopy(self.position), self.plan.parameters
        position.take(ShardBatch(batch.epoch, batch.shard, batch.position // given.batch_size))
        ends = given.last_batch == "wrap" and batch.rows < given.batch_size
        return StreamProgress(self.plan, position, given.epochs or 0 if ends else self.end, self.taken + 1)

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
            "world_size": self.plan.parameters.world_size or 1,
            "capacity": self.plan.capacity,
            "end": self.end,
            "last_batch": self.plan.parameters.last_batch,
        }


@dataclass(slots=True)
class StreamSchedule(Schedule):
    """The schedule of a stream: shards take turns, and all batches of a shard go to the loader that runs it."""

    plan: StreamPlan
    can_be_cut: bool = False
    complaint: str = ""
    cause: tuple[int, str] = (0, "")
    _turns: ShardTurns = field(init=False)
    _draws: dict[int, ShardBatch] = field(default_factory=dict)
    """The batch of each group."""
    _rows: dict[int, int] = field(default_factory=dict)
    """The number of rows that each group has received."""
    _longest_in_epoch: int = field(init=False)
    """The number of rows of the longest batch in this epoch."""
    _ends: dict[int, int] = field(default_factory=dict)
    """The first batch of each shard in this epoch that is known not to be full."""

    def __post_init__(self) -> None:
        given, position = self.plan.parameters, copy.deepcopy(self.plan.position)
        self._turns = ShardTurns(position, given.epochs, chained=given.last_batch == "wrap")
        self._longest_in_epoch = given.batch_size if any(position.sequences) else 0

    @property
    def finished(self) -> bool:
        return self._turns.finished and not self._draws

    def has(self, group: int) -> bool:
        if group not in self._draws and not self.complaint and (draw := self._turns.next()) is not None:
            self._draws[group] = draw
        return group in self._draws

    def rows_of(self, group: int) -> int:
        return self.plan.parameters.batch_size

    def affinity(self, group: int, row: int) -> int:
        return self._draws[group].shard

    def runs(self, group: int, first_row: int, rows: int) -> tuple[Run, ...]:
        draw = self._draws[group]
        return (self._run(draw, rows, self._shard_of_all(draw)),)

    def _run(self, draw: ShardBatch, rows: int, shard: int) -> Run:
        return Run(0, rows, draw.epoch, draw.sequence * self.plan.parameters.batch_size, shard=shard)

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        rows = self._rows.get(group, 0)
        return (rows,) if 0 < rows <= good_rows else ()

    def note_done(self, group: int, stream_rows: int) -> None:
        self._rows[group] = stream_rows
        self._longest_in_epoch = max(self._longest_in_epoch, stream_rows)
        if stream_rows < self.plan.parameters.batch_size:
            self._note_end(self._draws[group])

    def _note_end(self, draw: ShardBatch) -> None:
        epoch = self._turns.position.epoch
        if self._turns.finished or draw.epoch != epoch:
            return  # requested before the end of its shard was known
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
        """Return true if a batch of `epoch` before its shard's end is still being made.

        A dismissed loader may have it, while the shard's next loader has already met the end.
        """
        asked = [draw for group, draw in self._draws.items() if group not in self._rows]
        return any(draw.epoch == epoch and draw.sequence < self._ends[draw.shard] for draw in asked)

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        draw = self._draws[group]
        counted = draw.sequence * self.plan.parameters.batch_size + row
        return draw.epoch, seen if seen >= 0 else counted, f"the stream's shard {self._shard_of_all(draw)}"

    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        draw, rows = self._draws.pop(group), self._rows.pop(group, 0)  # absent if loaders died of it
        too_short = self.plan.parameters.last_batch == "drop" and rows < self.plan.parameters.batch_size
        if rows == 0 or too_short or good_rows >= 0:
            return None
        return Announce(group, slot, replaced, (self._run(draw, rows, draw.shard),))

    def _shard_of_all(self, draw: ShardBatch) -> int:
        """Return the shard's number among the shards of all ranks."""
        return (self.plan.parameters.rank or 0) * self.plan.shards + draw.shard
