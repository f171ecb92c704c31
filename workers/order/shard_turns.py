"""Which shard gives the next batch of a stream. Pure.

Shards take turns. One that has ended is passed over; when all have, the epoch ends, and the next one begins with the
first shard. Since the turns do not depend on when an end becomes known, the batches and their order depend on the
number of shards alone: a batch that was asked of a shard already at its end comes back empty, and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Draw:
    """The `sequence`-th batch of `shard` in `epoch`, all counted from 0."""

    epoch: int
    shard: int
    sequence: int


@dataclass(slots=True)
class StreamPosition:
    """Where a stream stands: batches taken from each shard in the current epoch, and whose turn it is."""

    epoch: int
    sequences: list[int]
    turn: int = 0

    @classmethod
    def start(cls, shards: int) -> StreamPosition:
        return cls(0, [0] * shards)

    def take(self, draw: Draw) -> None:
        if draw.epoch != self.epoch:
            self.epoch, self.sequences = draw.epoch, [0] * len(self.sequences)
        self.sequences[draw.shard] = draw.sequence + 1
        self.turn = (draw.shard + 1) % len(self.sequences)


@dataclass(slots=True)
class ShardTurns:
    """`chained`: the shards' epochs follow each other without a border (`last_batch: wrap`), so an end is the end."""

    position: StreamPosition
    epochs: int | None
    chained: bool
    finished: bool = False
    _ended: set[int] = field(default_factory=set)

    def next(self) -> Draw | None:
        """What to ask for next; None while the epoch's end is awaited, and when all has been asked for."""
        shards = len(self.position.sequences)
        if self.finished or len(self._ended) == shards:
            return None
        while self.position.turn in self._ended:
            self.position.turn = (self.position.turn + 1) % shards
        draw = Draw(self.position.epoch, self.position.turn, self.position.sequences[self.position.turn])
        self.position.take(draw)
        return draw

    def note_end(self, epoch: int, shard: int) -> None:
        """`shard` has no more batches in `epoch`; may be said again."""
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
