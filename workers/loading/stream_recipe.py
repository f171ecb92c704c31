"""How a stream's samples become rows of the tops: shards run through their shuffle buffers, batch after batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..base.errors import SourceError
from ..base.hooks import Hooks, Sample
from ..base.keys import derive_key
from ..base.specs import ArraySpec
from ..sources.shuffle_buffer import ShuffleBuffer, shuffled
from ..sources.stream import EMPTY_EPOCH, StreamSource
from .row_maker import RowMaker
from .transform import CropMirror


@dataclass(frozen=True, slots=True)
class Item:
    """What the iterator gave, not yet looked at; `index` counts a shard's samples of one epoch as they come."""

    index: int
    epoch: int
    value: object


class StreamRecipe:
    """`specs`: what the tops' rows are, learnt from the first sample.  `num_shards`: over all ranks together."""

    def __init__(
        self,
        source: StreamSource,
        hooks: Hooks,
        *,
        num_shards: int,
        tops: tuple[str, ...] | None,
        seed: int,
        transform: CropMirror | None,
        max_shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.source = source
        self.hooks = hooks
        self.num_shards = num_shards
        self._seed = seed
        self.rows = RowMaker(
            hooks,
            source.specs,
            lambda: self.sample(next(self.items(0, 0))),
            tops=tops if hooks.decode else None,
            seed=seed,
            transform=transform,
            max_shapes=max_shapes,
        )

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self.rows.specs

    @property
    def slot_specs(self) -> Mapping[str, ArraySpec]:
        """Those, and what a slot has beside them."""
        return self.rows.slot_specs

    def sample(self, item: Item) -> Sample:
        """Its components as arrays; raises ValueError where they are not those of the first sample."""
        return Sample(self.source.components(item.value), item.index, item.epoch)

    def items(self, epoch: int, shard: int) -> Iterator[Item]:
        """All samples of one shard in one epoch, shuffled by its buffer."""
        items: Iterator[object] = self.source.open(shard, self.num_shards)
        if self.source.capacity:
            seed = derive_key(self._seed, "stream", epoch, shard)
            items = shuffled(items, ShuffleBuffer[object](self.source.capacity, self.source.min_after_dequeue, seed))
        for index, value in enumerate(items):
            yield Item(index, epoch, value)


class ShardReader:
    """One shard's batches; asked for another than the next one, it runs the shard anew and skips forward."""

    def __init__(self, recipe: StreamRecipe, shard: int, batch_size: int, epochs: int | None, chained: bool) -> None:
        self._recipe = recipe
        self._shard = shard
        self._batch_size = batch_size
        self._epochs = epochs
        self._chained = chained
        self._next: tuple[int, int] | None = None
        self._items: Iterator[Item] = iter(())

    def batch(self, epoch: int, sequence: int) -> Iterator[Item]:
        """The samples of one batch; fewer than a batch where the shard ends."""
        if self._next != (epoch, sequence):
            self._items = self._run(epoch)
            skipped = sequence * self._batch_size
            next(itertools.islice(self._items, skipped, skipped), None)
        self._next = (epoch, sequence + 1)
        return itertools.islice(self._items, self._batch_size)

    def _run(self, epoch: int) -> Iterator[Item]:
        if not self._chained:
            yield from self._recipe.items(epoch, self._shard)
            return
        for number in itertools.count(epoch) if self._epochs is None else range(epoch, self._epochs):
            none = True
            for item in self._recipe.items(number, self._shard):
                none = False
                yield item
            if none:
                raise SourceError(EMPTY_EPOCH.format(number))
