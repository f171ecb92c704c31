"""A stream seen through the hooks: shards run through their shuffle buffers, batch after batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ..base.errors import SourceError
from ..base.hooks import Sample
from ..base.keys import derive_key
from ..base.parameters import Parameters
from ..sources.shuffle_buffer import ShuffleBuffer, shuffled
from ..sources.stream import EMPTY_EPOCH, StreamSource
from .row_maker import RowMaker


@dataclass(frozen=True, slots=True)
class Item:
    """What the iterator gave, not yet looked at; `index` counts a shard's samples of one epoch as they come."""

    index: int
    epoch: int
    value: object


class DecodedStream:
    """`source`'s samples as `rows` makes them. `num_shards`: over all ranks together."""

    def __init__(self, source: StreamSource, rows: RowMaker, num_shards: int) -> None:
        self.source = source
        self.rows = rows
        self.num_shards = num_shards

    def sample(self, item: Item) -> Sample:
        """Its components as arrays; raises ValueError if they are not those of the first sample."""
        return Sample(self.source.components(item.value), item.index, item.epoch)


def shard_items(source: StreamSource, num_shards: int, shard: int, epoch: int, seed: int) -> Iterator[Item]:
    """All samples of one shard in one epoch, shuffled by its buffer."""
    items: Iterator[object] = source.open(shard, num_shards)
    if source.capacity:
        key = derive_key(seed, "stream", epoch, shard)
        items = shuffled(items, ShuffleBuffer[object](source.capacity, source.min_after_dequeue, key))
    for index, value in enumerate(items):
        yield Item(index, epoch, value)


class ShardReader:
    """One shard's batches; asked for another than the next one, it runs the shard anew and skips forward."""

    def __init__(self, stream: DecodedStream, shard: int, parameters: Parameters) -> None:
        self._stream = stream
        self._shard = shard
        self._parameters = parameters
        self._next: tuple[int, int] | None = None
        self._items: Iterator[Item] = iter(())

    def batch(self, epoch: int, sequence: int) -> Iterator[Item]:
        """The samples of one batch; fewer than a batch if the shard ends."""
        if self._next != (epoch, sequence):
            self._items = self._run(epoch)
            skipped = sequence * self._parameters.batch_size
            next(itertools.islice(self._items, skipped, skipped), None)
        self._next = (epoch, sequence + 1)
        return itertools.islice(self._items, self._parameters.batch_size)

    def _run(self, epoch: int) -> Iterator[Item]:
        if self._parameters.last_batch != "wrap":
            yield from self._items_of(epoch)
            return
        epochs = self._parameters.epochs
        for number in itertools.count(epoch) if epochs is None else range(epoch, epochs):
            none = True
            for item in self._items_of(number):
                none = False
                yield item
            if none:
                raise SourceError(EMPTY_EPOCH.format(number))

    def _items_of(self, epoch: int) -> Iterator[Item]:
        return shard_items(self._stream.source, self._stream.num_shards, self._shard, epoch, self._parameters.seed)
