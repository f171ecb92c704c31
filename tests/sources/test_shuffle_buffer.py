"""A stream's shuffle buffer: every element once, each equally likely, and the same order for the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from blobfeed.sources.stream import shuffled
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples
from tests.support.uniformity import deviation


@examples(100)
@given(capacity=st.integers(1, 20), seed=st.integers(0, 2**40), count=st.integers(0, 100))
def test_a_stream_passes_whole_and_in_the_seed_s_order(capacity: int, seed: int, count: int) -> None:
    first = list(shuffled(range(count), capacity, seed))
    assert sorted(first) == list(range(count))
    assert first == list(shuffled(iter(range(count)), capacity, seed))


def test_a_stream_is_read_no_further_ahead_than_the_capacity() -> None:
    read = 0

    def stream() -> Iterator[int]:
        nonlocal read
        for item in range(1000):
            read += 1
            yield item

    for taken, item in enumerate(shuffled(stream(), 50, 0), start=1):
        assert item < taken + 50
        assert read <= taken + 49


def test_each_held_element_is_equally_likely() -> None:
    places: Counter[int] = Counter()
    for seed in range(3000):
        _, second, *_ = shuffled(range(11), 10, seed)
        places[second] += 1
    # 10 has just come; each of the others has left first once in ten times.
    assert deviation([places[item] for item in range(10)]) < 4
    assert abs(places[10] - 300) < 4 * 300**0.5


def test_the_order_of_a_full_drain_is_uniform() -> None:
    orders = Counter(tuple(shuffled(range(4), 4, seed)) for seed in range(2400))
    assert len(orders) == 24
    assert deviation(list(orders.values())) < 4


def test_an_order_once_published_stays() -> None:
    assert list(shuffled(range(12), 5, seed=1)) == [0, 3, 1, 7, 8, 9, 6, 11, 10, 4, 2, 5]
