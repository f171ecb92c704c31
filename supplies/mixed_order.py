"""`mix`: draws from several sources in proportion to their weights, as a function of the position.

The sources share one space of indices, one behind the other (`offsets`). *Patterns* choose the source of each position.
A pattern is a run of some thousand positions in which every source has exactly its share, in a random order of its own.
So the number of a source's earlier draws is known at any position without counting from the start. Each source follows
its own epoch order: none of its samples comes again before all of them have come.

Drawing the source of each position independently would give right proportions only on average, and the draws of a
source before position 10**9 could only be found by counting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from xxhash import xxh3_64_hexdigest

from ..workers.api import IndexArray
from ..workers.base import ParameterError, derive_key
from ..workers.order import SORTED_LIMIT, numbered_keys, shuffled_rows
from .computed import BLOCK, Block, EpochOrder
from .ordering import Shuffle, make_order

_LEAST_PATTERN = 1000


class MixedOrder(EpochOrder):
    """The order of a mix. An epoch has as many draws as the sources have samples together.

    An epoch reads a source of large weight more than once, and only part of a source of small weight; the next epoch
    starts with the rest, since a source's own epochs run independently of the mix's. With `shuffle` false the sources
    are interleaved evenly, each as stored, and the seed has no effect.

    `sizes`, `weights`: one for each source; weights need not sum to 1. `chunk_samples`: see make_order; one for each
    source, or None. Raises ParameterError.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        *,
        shuffle: Shuffle,
        seed: int,
        chunk_samples: Sequence[int | None] | None = None,
        window_chunks: int = 16,
    ) -> None:
        super().__init__(sum(sizes))
        chunks = chunk_samples or [None] * len(sizes)
        self.offsets = tuple(sum(sizes[:source]) for source in range(len(sizes)))
        self.draws = draws_per_pattern(weights)
        seeds = [derive_key(seed, "mix source", source) for source in range(len(sizes))]
        self._orders = [
            make_order(size, shuffle=shuffle, seed=own, chunk_samples=chunk, window_chunks=window_chunks)
            for size, own, chunk in zip(sizes, seeds, chunks, strict=True)
        ]
        parts = [order.declared for order in self._orders]
        self.declared = f"mix {xxh3_64_hexdigest(repr((tuple(sizes), self.draws, parts)).encode())}"
        self._key = derive_key(seed, "mix pattern") if shuffle else None
        self._pattern = even_pattern(self.draws)

    def with_epochs(self, start: int, count: int) -> tuple[IndexArray, IndexArray]:
        """Return samples and epochs; each sample's epoch is that of its own source."""
        indices, epochs = np.empty(count, np.int64), np.empty(count, np.int64)
        done = 0
        while done < count:
            block = self._block_at(start + done)
            if block.epochs is None:
                raise TypeError("a block of a mix has no epochs of its samples")
            first = start + done - block.start
            part = slice(first, first + count - done)
            end = done + len(block.samples[part])
            indices[done:end], epochs[done:end] = block.samples[part], block.epochs[part]
            done = end
        return indices, epochs

    def _compute_block(self, position: int) -> Block:
        length = len(self._pattern)
        together = max(1, BLOCK // length)
        first = position // length // together * together
        sources = self._sources(np.arange(first, first + together, dtype=np.int64))
        samples, epochs = np.empty(len(sources), np.int64), np.empty(len(sources), np.int64)
        for source, (order, offset, draws) in enumerate(zip(self._orders, self.offsets, self.draws, strict=True)):
            mine = sources == source
            indices, epochs[mine] = order.with_epochs(first * draws, together * draws)
            samples[mine] = indices + offset
        return Block(first * length, samples, epochs)

    def _sources(self, numbers: IndexArray) -> IndexArray:
        """Return the source of each draw in the patterns `numbers`, one pattern behind the other."""
        if self._key is None:
            return np.tile(self._pattern, len(numbers))
        sizes = np.full(len(numbers), len(self._pattern), np.int64)
        shuffled: IndexArray = self._pattern[shuffled_rows(numbered_keys(self._key, numbers), sizes)]
        return shuffled.ravel()


def draws_per_pattern(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the number of draws from each source in one pattern.

    The length of the pattern makes the shares exact if at most 8192 draws can: 0.7 and 0.3 give 700 and 300. Otherwise
    it is 8192, and the shares are rounded to whole draws. Raises ParameterError for a weight that is not above zero, or
    so small that its source would never be drawn.
    """
    for weight in weights:
        if not 0 < weight < math.inf:
            raise ParameterError(f"mix: a weight is {weight}, of {list(weights)}: expected a number above 0")
    exact = [Fraction(str(weight)) for weight in weights]  # 0.7 is 7/10 here; the float itself is a little less
    shares = [weight / sum(exact) for weight in exact]
    common = math.lcm(*(share.denominator for share in shares))
    length = common * -(-_LEAST_PATTERN // common) if common <= SORTED_LIMIT else SORTED_LIMIT
    for weight, share in zip(weights, shares, strict=True):
        if share * length < 1:
            raise ParameterError(
                f"mix: the weight {weight} is {float(share):.2g} of all weights, {list(weights)}: expected at least "
                f"1/{SORTED_LIMIT} of them; raise it, or leave its source out"
            )
    return _largest_remainder(shares, length)


def even_pattern(draws: Sequence[int]) -> IndexArray:
    """Return source numbers, source s draws[s] times, spread as evenly as possible; shape (sum of draws,)."""
    due = np.concatenate([(np.arange(count) + 0.5) / count for count in draws])
    sources: IndexArray = np.repeat(np.arange(len(draws), dtype=np.int64), draws)
    return sources[np.argsort(due, kind="stable")]


def _largest_remainder(shares: Sequence[Fraction], total: int) -> tuple[int, ...]:
    counts = [math.floor(share * total) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda source: counts[source] - shares[source] * total)
    for source in by_remainder[: total - sum(counts)]:
        counts[source] += 1
    return tuple(counts)
