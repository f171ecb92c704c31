"""`shuffle: chunk`: every chunk read about once, and the samples mixed as far as the window reaches."""

from __future__ import annotations

from collections import Counter, OrderedDict

import numpy as np
import pytest
from blobfeed.supplies import BLOCK, ChunkOrder
from blobfeed.workers.api import IndexArray
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples
from tests.support.uniformity import deviation, joint_counts

SAMPLES = st.one_of(st.integers(1, 200), st.integers(BLOCK - 20, 3 * BLOCK))


def _chunk_reads(chunks: IndexArray, kept: int) -> int:
    """How often a reader reads a chunk that keeps the last `kept` ones it has used."""
    cache: OrderedDict[int, None] = OrderedDict()
    reads = 0
    for chunk in chunks.tolist():
        reads += chunk not in cache
        cache[chunk] = None
        cache.move_to_end(chunk)
        if len(cache) > kept:
            cache.popitem(last=False)
    return reads


@examples(120)
@given(samples=SAMPLES, chunk=st.integers(1, 3000), window=st.integers(1, 50), epoch=st.integers(0, 1000))
def test_every_sample_comes_once_and_every_chunk_is_read_once(
    samples: int, chunk: int, window: int, epoch: int
) -> None:
    order = ChunkOrder(samples, 11, chunk, window).indices(epoch * samples, samples)
    assert np.array_equal(np.sort(order), np.arange(samples))
    assert _chunk_reads(order // chunk, kept=window) == -(-samples // chunk)


def test_a_small_window_reads_chunks_once_where_a_global_shuffle_reads_them_again_and_again() -> None:
    chunked = ChunkOrder(8000, 0, chunk_samples=8, window_chunks=16).indices(0, 8000)
    shuffled = np.random.default_rng(0).permutation(8000)
    assert _chunk_reads(chunked // 8, kept=16) == 1000
    assert _chunk_reads(shuffled // 8, kept=16) > 7000


def test_every_order_of_the_chunks_the_short_one_included_is_equally_likely() -> None:
    orders = Counter(
        tuple(dict.fromkeys((ChunkOrder(7, seed, 2, 1).indices(0, 7) // 2).tolist())) for seed in range(2400)
    )
    assert len(orders) == 24
    assert deviation(list(orders.values())) < 4


@pytest.mark.parametrize(("chunk", "window"), [(8, 16), (1000, 10)])  # sorted at once; by a network
def test_within_a_window_the_order_is_uniform(chunk: int, window: int) -> None:
    length = chunk * window
    order = ChunkOrder(40 * length, 5, chunk, window).indices(0, 40 * length).reshape(40, length)
    # Which of the window's samples, in the order in which they are stored, stands where.
    ranks = np.argsort(np.argsort(order, axis=1), axis=1)
    parts = 8 if length < 1000 else 16
    assert deviation(joint_counts(np.tile(np.arange(length), 40), ranks.ravel(), length, parts)) < 4
    assert deviation(joint_counts(ranks[:, :-1].ravel(), ranks[:, 1:].ravel(), length, parts)) < 4


def test_no_window_is_much_smaller_than_the_others() -> None:
    # 17 chunks in windows of at most 16: 9 and 8, and not 16 and 1, whose last batches would be of one chunk alone.
    chunks = ChunkOrder(1700, 0, 100, 16).indices(0, 1700) // 100
    assert len(set(chunks[:900].tolist())) == 9
    assert len(set(chunks[900:].tolist())) == 8


@examples(60)
@given(samples=st.integers(1, 300), chunk=st.integers(1, 40), window=st.integers(1, 10))
def test_only_positions_of_one_window_have_chunks_in_common(samples: int, chunk: int, window: int) -> None:
    order = ChunkOrder(samples, 4, chunk, window)
    windows = [number for at in range(2 * samples) if (number := order.window_at(at)) is not None]
    chunks = (order.indices(0, 2 * samples) // chunk).tolist()
    assert windows == sorted(windows)
    assert set(windows) == set(range(windows[-1] + 1))
    for epoch in (slice(samples), slice(samples, None)):
        together = set(zip(windows[epoch], chunks[epoch], strict=True))
        assert len(together) == -(-samples // chunk)  # no chunk in two windows
        assert max(Counter(number for number, _ in together).values()) <= window
