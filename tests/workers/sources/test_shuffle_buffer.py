"""The shuffle buffer: every element once, enough left to choose from, and the same order for the same seed."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterator

import pytest
from blobfeed.workers.base.errors import ParameterError
from blobfeed.workers.sources.shuffle_buffer import ShuffleBuffer, shuffled
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.uniformity import deviation

CAPACITIES = st.integers(1, 20).flatmap(lambda capacity: st.tuples(st.just(capacity), st.integers(0, capacity - 1)))


@settings(deadline=None, max_examples=200)
@given(sizes=CAPACITIES, seed=st.integers(0, 2**70), pushes=st.lists(st.booleans(), max_size=200))
def test_whatever_the_calls_every_element_comes_once_and_enough_stay(
    sizes: tuple[int, int], seed: int, pushes: list[bool]
) -> None:
    capacity, least = sizes
    buffer: ShuffleBuffer[int] = ShuffleBuffer(capacity, least, seed)
    pushed, popped = 0, []
    for push in pushes:
        assert buffer.can_push() == (len(buffer) < capacity)
        assert buffer.can_pop() == (len(buffer) > least)
        if push and buffer.can_push():
            buffer.push(pushed)
            pushed += 1
        elif not push and buffer.can_pop():
            popped.append(buffer.pop())
            assert len(buffer) >= least
    buffer.close()
    while buffer.can_pop():
        popped.append(buffer.pop())
    assert sorted(popped) == list(range(pushed))


@settings(deadline=None, max_examples=100)
@given(sizes=CAPACITIES, seed=st.integers(0, 2**40), count=st.integers(0, 100))
def test_a_stream_passes_whole_and_in_the_seed_s_order(sizes: tuple[int, int], seed: int, count: int) -> None:
    first = list(shuffled(range(count), ShuffleBuffer(*sizes, seed)))
    assert sorted(first) == list(range(count))
    assert first == list(shuffled(iter(range(count)), ShuffleBuffer(*sizes, seed)))


def test_a_stream_is_read_no_further_ahead_than_the_capacity() -> None:
    read = 0

    def stream() -> Iterator[int]:
        nonlocal read
        for item in range(1000):
            read += 1
            yield item

    for taken, item in enumerate(shuffled(stream(), ShuffleBuffer(50, 20, 0)), start=1):
        assert item < taken + 50
        assert read <= taken + 49


def test_each_held_element_is_equally_likely() -> None:
    places: Counter[int] = Counter()
    for seed in range(3000):
        buffer: ShuffleBuffer[int] = ShuffleBuffer(10, 5, seed)
        for item in range(10):
            buffer.push(item)
        buffer.pop()
        buffer.push(10)
        places[buffer.pop()] += 1
    # 10 has just come; each of the others has left with the first pop once in ten times.
    assert deviation([places[item] for item in range(10)]) < 4
    assert abs(places[10] - 300) < 4 * 300**0.5


def test_the_order_of_a_full_drain_is_uniform() -> None:
    orders = Counter(tuple(shuffled(range(4), ShuffleBuffer(4, 0, seed))) for seed in range(2400))
    assert len(orders) == 24
    assert deviation(list(orders.values())) < 4


def test_an_order_once_published_stays() -> None:
    assert list(shuffled(range(12), ShuffleBuffer(5, 2, seed=1))) == [0, 3, 1, 7, 8, 9, 6, 11, 10, 4, 2, 5]


def test_misuse_is_named() -> None:
    buffer: ShuffleBuffer[int] = ShuffleBuffer(2, 1, 0)
    buffer.push(1)
    with pytest.raises(queue.Empty, match="holds 1 elements of which 1 must stay"):
        buffer.pop()
    buffer.push(2)
    with pytest.raises(queue.Full, match="holds its capacity of 2"):
        buffer.push(3)
    buffer.close()
    with pytest.raises(ValueError, match="push after close"):
        buffer.push(3)


@pytest.mark.parametrize(("capacity", "least"), [(0, 0), (5, 5), (5, 6), (5, -1)])
def test_impossible_sizes_are_named(capacity: int, least: int) -> None:
    with pytest.raises(ParameterError, match=f"min_after_dequeue is {least} and capacity {capacity}"):
        ShuffleBuffer(capacity, least, 0)
