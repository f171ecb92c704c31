"""Chooses the shard of each batch of a stream. Pure.

Shards take turns. A shard that has ended is skipped. When all have ended, the epoch ends, and the next one begins with
the first shard. A batch that was requested from a shard already at its end comes back empty and is dropped. So the
moment at which an end becomes known has no effect: the batches and their order depend on the number of shards alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """The `sequence`-th batch of `shard` in `epoch`, all counted from 0."""

    epoch: int
    shard: int
    sequence: int


@dataclass(slots=True)
class StreamPosition:
    """The position in a stream: the batches taken from each shard in the current epoch, and the next shard."""

    epoch: int
    sequences: list[int]
    turn: int = 0

    @classmethod
    def start(cls, shards: int) -> StreamPosition:
        return cls(0, [0] * shards)

    def take(self, draw: ShardBatch) -> None:
        if draw.epoch != self.epoch:
            self.epoch, self.sequences = draw.epoch, [0] * len(self.sequences)
        self.sequences[draw.shard] = draw.sequence + 1
        self.turn = (draw.shard + 1) % len(self.sequences)


@dataclass(slots=True)
class ShardTurns:
    """The turns of the shards. `chained`: epochs join without a border (`last_batch: wrap`), so a shard ends once."""

    position: StreamPosition
    epochs: int | None
    chained: bool
    finished: bool = False
    _ended: set[int] = field(default_factory=set)

    def next(self) -> ShardBatch | None:
        """Return the next batch to request; None while the end of the epoch is awaited, and after the last batch."""
        shards = len(self.position.sequences)
        if self.finished or len(self._ended) == shards:
            return None
        while self.position.turn in self._ended:
            self.position.turn = (self.position.turn + 1) % shards
        draw = ShardBatch(self.position.epoch, self.position.turn, self.position.sequences[self.position.turn])
        self.position.take(draw)
        return draw

    def note_end(self, epoch: int, shard: int) -> None:
        """Record that `shard` has no more batches in `epoch`; may be called repeatedly."""
        if epoch != self.position.epoch or self.finished:
            return
        self._ended.add(shard)
        if len(self._ended) < len(self.position.sequences):
            return
        if self.chained or (self.epochs is not None and epoch + 1 >= self.epochs):
            self.finished = True
            return
        self._ended.clear()
        self.position = StreamPosition(epoch + 1, [0] * len(self.position.sequences))
