"""The trainer's walk over a sampler: which keys each batch has, and the state from which the walk goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ...supplies import EpochOrder, SequentialOrder, ShuffledOrder
from ...workers.base import derive_key
from ...workers.order import OwnGlobals, seed_generators
from .fetching import load_state, say_epoch, state_of


class SeededSampler(Sampler[int]):
    """The default order: a function of (seed, epoch, position), with every sample of an epoch once over all ranks.

    A rank has every `num_replicas`-th sample, so that the samples which all ranks have had are the first ones of the
    order, whatever their batch size. Nothing is added: the first ranks may have a sample more; `drop_last` leaves out
    what would make them differ.
    """

    def __init__(
        self, dataset: Any, *, shuffle: bool, seed: int, rank: int = 0, world_size: int = 1, drop_last: bool = False
    ) -> None:
        self._dataset, self._shuffle, self._drop_last = dataset, shuffle, drop_last
        self.seed, self.rank, self.num_replicas = seed, rank, world_size
        self.epoch = self.skip = 0
        """The epoch of the next loop, and how many of this rank's samples it leaves out."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        return len(range(self.rank, self._total, self.num_replicas))

    def of_all_ranks(self, begun: int, most: int) -> int:
        """Return how many samples all ranks had together, if each had `most` of its own behind the first `begun`.

        Towards the end of an epoch there may be fewer. The ranks that have one more are those whose turn is first.
        """
        left, step = self._total - begun, self.num_replicas
        return sum(min(most, len(range(rank, left, step))) for rank in range(step))

    @property
    def _total(self) -> int:
        samples = len(self._dataset)
        return samples - samples % self.num_replicas if self._drop_last else samples

    def __iter__(self) -> Iterator[int]:
        total, step = self._total, self.num_replicas
        first, self.skip = self.skip * step + self.rank, 0
        if not total:
            return
        samples = len(self._dataset)
        order: EpochOrder = ShuffledOrder(samples, self.seed) if self._shuffle else SequentialOrder(samples)
        begin = self.epoch * order.samples
        for start in range(first, total, _BLOCK * step):
            count = min(_BLOCK * step, total - start)
            yield from order.indices(begin + start, count)[::step].tolist()


_BLOCK = 1024
"""The indices that are computed at a time."""

_DRAW_AT_FIRST = (RandomSampler, WeightedRandomSampler, SubsetRandomSampler)
_DRAW_NOTHING = (SeededSampler, SequentialSampler, DistributedSampler, list, tuple, range)


class Drawn(NamedTuple):
    """The keys of a batch, how many they are, and the sampler's state behind them."""

    keys: Any
    rows: int
    state: Any


class Walk(Iterator[Drawn]):
    """One loop over `source`, which yields batches if `by_batch`. `skip` of what it yields was had before.

    What a sampler draws from the global generators of random numbers comes from those of (seed, epoch), so that a
    restart draws the same again. One that has a generator of its own keeps it.
    """

    def __init__(
        self,
        source: Any,
        *,
        by_batch: bool,
        batch_size: int | None,
        drop_last: bool,
        seed: int,
        epoch: int,
        skip: int,
        state: Any,
    ) -> None:
        self.source = source
        self._size, self._by_batch, self._drop_last = batch_size, by_batch, drop_last
        self._seeds = seed, derive_key(seed, "sampler"), epoch
        self._globals = OwnGlobals()
        self._draws_on = True
        self._has_drawn = self._is_seeded = False
        inner = getattr(source, "sampler", source) if by_batch else source
        if type(inner) in _DRAW_NOTHING:
            self._draws_on, self._has_drawn = False, True
        elif type(inner) in _DRAW_AT_FIRST:
            self._draws_on = False
        with self._random():
            knows = load_state(source, state) if not hasattr(type(source), "__next__") else False
            if isinstance(source, SeededSampler):
                source.skip, knows = skip, True
            self._iterator: Iterator[Any] = iter(source)
            if state is not None:
                knows = load_state(self._iterator, state) or knows
        if not knows:
            for _ in range(skip):
                with self._random():
                    if next(self._iterator, self) is self:
                        break
                self._has_drawn = True

    @contextmanager
    def _random(self) -> Iterator[None]:
        if self._has_drawn and not self._draws_on:
            yield
            return
        with self._globals.used():
            if not self._is_seeded:
                seed_generators(*self._seeds)
                self._is_seeded = True
            yield

    def __next__(self) -> Drawn:
        with self._random():
            keys: Any = next(self._iterator, self) if self._size is None else list(islice(self._iterator, self._size))
        self._has_drawn = True
        if keys is self:
            raise StopIteration
        rows = 1 if self._size is None and not self._by_batch else len(keys)
        if self._size is not None and rows < (self._size if self._drop_last else 1):
            raise StopIteration
        return Drawn(keys, rows, self.state())

    def state(self) -> Any:
        """Return what the sampler, or the iterator over it, says of its state; None if neither says anything."""
        if isinstance(self.source, SeededSampler):
            return None
        mine = state_of(self._iterator)
        return state_of(self.source) if mine is None else mine


def generator_of(sampler: object) -> torch.Generator | None:
    """Return the generator that the user has given to a sampler, or to the one in a batch sampler."""
    found = getattr(sampler, "generator", None) or getattr(getattr(sampler, "sampler", None), "generator", None)
    return found if isinstance(found, torch.Generator) else None


def replicas_of(sampler: object) -> tuple[int, int]:
    """Return over how many ranks a sampler deals its samples in turn, and which of them it is: (1, 0) if none."""
    inner = getattr(sampler, "sampler", sampler)
    replicas, rank = getattr(inner, "num_replicas", 1), getattr(inner, "rank", 0)
    return (replicas, rank) if isinstance(replicas, int) and isinstance(rank, int) and replicas > 0 else (1, 0)


def epoch_of(sampler: Any) -> int | None:
    """Return the epoch that somebody has told a sampler of the user's, or the one in a batch sampler."""
    inner = getattr(sampler, "sampler", sampler)
    epoch = getattr(inner, "epoch", None)
    told = isinstance(epoch, int) and callable(getattr(inner, "set_epoch", None))
    return epoch if told and not isinstance(inner, SeededSampler) else None


def say_epoch_to_sampler(sampler: Any, epoch: int) -> None:
    """Tell a sampler, and the one in a batch sampler, the epoch, if they want to know."""
    for each in (sampler, getattr(sampler, "sampler", None)):
        say_epoch(each, epoch)
