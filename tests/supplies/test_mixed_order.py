"""Weighted mixes: exact shares, every source through its own epochs, any position at once."""

from __future__ import annotations

import math
import pickle
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from blobfeed.supplies import (
    ChunkOrder,
    EpochOrder,
    MixedOrder,
    SequentialOrder,
    Shuffle,
    ShuffledOrder,
    draws_per_pattern,
    even_pattern,
)
from blobfeed.workers.api import IndexArray
from hypothesis import example, given
from hypothesis import strategies as st

from blobfeed import ParameterError
from tests.support.part import examples
from tests.support.uniformity import deviation

WEIGHTS = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


def _sources(order: MixedOrder, indices: IndexArray) -> IndexArray:
    return np.searchsorted(order.offsets, indices, side="right") - 1


@examples(60)
@given(weights=st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_shares_of_small_whole_weights_are_exact(weights: list[int]) -> None:
    draws = draws_per_pattern(weights)
    assert all(Fraction(n, sum(draws)) == Fraction(w, sum(weights)) for n, w in zip(draws, weights, strict=True))


@examples(100)
@given(weights=WEIGHTS)
def test_shares_that_cannot_be_exact_are_rounded_where_most_is_missing(weights: list[float]) -> None:
    draws = draws_per_pattern(weights)
    total, exact = sum(draws), [Fraction(str(weight)) for weight in weights]
    shares = [weight / sum(exact) * total for weight in exact]
    missing = [share - math.floor(share) for share in shares]
    up = [count > math.floor(share) for count, share in zip(draws, shares, strict=True)]
    assert all(count - math.floor(share) in (0, 1) for count, share in zip(draws, shares, strict=True))
    most_left = max((part for part, rounded in zip(missing, up, strict=True) if not rounded), default=0)
    assert min((part for part, rounded in zip(missing, up, strict=True) if rounded), default=1) >= most_left


def test_the_smallest_share_that_is_drawn_is_one_draw_of_a_pattern() -> None:
    assert draws_per_pattern([1, 8191]) == (1, 8191)
    with pytest.raises(ParameterError):
        draws_per_pattern([1, 8192])


def test_decimal_weights_are_taken_as_written() -> None:
    assert draws_per_pattern([0.7, 0.3]) == (700, 300)
    assert draws_per_pattern([0.7, 0.25, 0.05]) == (700, 250, 50)


@examples(60)
@given(draws=st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_an_even_pattern_is_near_the_shares_after_every_draw(draws: list[int]) -> None:
    pattern = even_pattern(draws)
    for source, count in enumerate(draws):
        due = np.arange(1, len(pattern) + 1) * (count / len(pattern))
        assert np.abs(np.cumsum(pattern == source) - due).max() <= len(draws)


def test_a_far_position_costs_what_a_near_one_does() -> None:
    # Counting from the start, this would take hours.
    order = MixedOrder([10**9, 10**6], [1, 2], shuffle=True, seed=1)
    drawn = order.indices(10**14, 3003)
    assert drawn.min() >= 0
    assert drawn.max() < order.samples == 10**9 + 10**6
    assert (drawn >= 10**9).mean() == pytest.approx(2 / 3, abs=0.05)


def test_every_pattern_has_the_exact_shares_in_an_order_of_its_own() -> None:
    order = MixedOrder([10, 10], [0.7, 0.3], shuffle=True, seed=1)
    patterns = _sources(order, order.indices(0, 20_000)).reshape(20, 1000)
    assert (patterns.sum(axis=1) == 300).all()
    assert len({tuple(pattern.tolist()) for pattern in patterns}) == 20
    assert deviation(patterns.sum(axis=0).reshape(20, 50).sum(axis=1)) < 4


def test_sequential_sources_are_interleaved_evenly() -> None:
    order = MixedOrder([4, 100], [1, 1], shuffle=False, seed=99)
    assert order.indices(0, 12).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 0, 8, 1, 9]


@examples(8)
@example(sizes=[40, 30, 1], shuffle="chunk", cuts=[8_190])
@given(
    # Each epoch of a tiny source is shuffled by itself: one of a single sample alone takes a hundred times as long.
    sizes=st.lists(st.integers(8, 40), min_size=1, max_size=3),
    shuffle=st.sampled_from([False, True, "chunk"]),
    cuts=st.lists(st.integers(0, 9000), min_size=1, max_size=4),
)
def test_no_sample_comes_twice_in_an_epoch_of_its_own_source(
    sizes: list[int], shuffle: Shuffle, cuts: list[int]
) -> None:
    order = MixedOrder(sizes, [0.7, 0.2, 0.1][: len(sizes)], shuffle=shuffle, seed=3)
    indices, epochs = order.with_epochs(0, 9000)
    np.testing.assert_array_equal(indices, order.indices(0, 9000))
    sources = _sources(order, indices)
    for source, size in enumerate(sizes):
        mine = sources == source
        np.testing.assert_array_equal(epochs[mine], np.arange(mine.sum()) // size)
        assert len(np.unique(epochs[mine] * sum(sizes) + indices[mine])) == mine.sum()
    for start in cuts:
        for again, whole in zip(
            pickle.loads(pickle.dumps(order)).with_epochs(start, 50), (indices, epochs), strict=True
        ):
            np.testing.assert_array_equal(again[: 9000 - start], whole[start : start + 50])


def test_a_thread_that_asks_while_another_computes_a_block_gets_the_epochs_of_its_own_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = MixedOrder([50, 40], [1, 1], shuffle=True, seed=1).with_epochs(100, 60)
    order = MixedOrder([50, 40], [1, 1], shuffle=True, seed=1)
    order.with_epochs(100, 60)
    reached, may_go_on, compute = threading.Event(), threading.Event(), ShuffledOrder.with_epochs

    def waiting(of_source: ShuffledOrder, start: int, count: int) -> tuple[IndexArray, IndexArray]:
        if threading.current_thread() is not threading.main_thread() and of_source.samples == 40:
            reached.set()  # in the midst of a block
            assert may_go_on.wait(30)
        return compute(of_source, start, count)

    monkeypatch.setattr(ShuffledOrder, "with_epochs", waiting)
    other = threading.Thread(target=order.indices, args=(10**6, 5))
    other.start()
    try:
        assert reached.wait(30)
        indices, epochs = order.with_epochs(100, 60)
    finally:
        may_go_on.set()
        other.join(30)
    np.testing.assert_array_equal(indices, expected[0])
    np.testing.assert_array_equal(epochs, expected[1])


@pytest.fixture
def threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_switch_often")
@pytest.mark.parametrize(
    "order",
    [
        SequentialOrder(500),
        ShuffledOrder(500, seed=1),
        ChunkOrder(500, 1, chunk_samples=10, window_chunks=4),
        MixedOrder([300, 200], [1, 2], shuffle=True, seed=1),
    ],
    ids=["stored", "shuffled", "chunked", "mixed"],
)
def test_two_threads_get_what_one_gets(order: EpochOrder) -> None:
    places = [(number * 7_919, 50) for number in range(200)]
    expected = [pickle.loads(pickle.dumps(order)).with_epochs(*place) for place in places]
    wrong: list[int] = []

    def ask(first: int) -> None:
        for number in range(first, len(places), 2):
            got = order.with_epochs(*places[number])
            if any(not np.array_equal(one, other) for one, other in zip(got, expected[number], strict=True)):
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_an_order_once_published_stays() -> None:
    order = MixedOrder([10**6, 1000], [0.7, 0.3], shuffle=True, seed=1)
    assert order.indices(10**7, 6).tolist() == [74566, 884131, 467408, 1000040, 29520, 379977]


def test_a_state_tells_mixes_of_other_sizes_or_weights_apart() -> None:
    mixes = ([10, 10], [1, 2]), ([10, 10], [2, 1]), ([12, 8], [1, 2]), ([10, 10], [2, 4])
    first, *others, same = [MixedOrder(*mix, shuffle=True, seed=1).declared for mix in mixes]
    assert first == same
    assert first not in others
