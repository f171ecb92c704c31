"""Keyed permutations: bijections of any size, uniform, and without a pattern among neighbours."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from blobfeed.workers.api import IndexArray
from blobfeed.workers.order import SORTED_LIMIT, keyed_permutation, numbered_keys, shuffled_rows
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from tests.support.part import examples
from tests.support.uniformity import deviation, joint_counts

KEYS = st.integers(0, 2**64 - 1)
SIZES = (
    st.integers(1, 300) | st.integers(SORTED_LIMIT - 3, SORTED_LIMIT + 3000) | st.sampled_from((65536, 65537, 999_983))
)
NETWORK_SIZES = (SORTED_LIMIT + 1, 10_000, 2**20, 1_000_003)


@examples(60)
@given(n=SIZES, key=KEYS)
def test_every_number_stands_at_exactly_one_position(n: int, key: int) -> None:
    assert np.array_equal(np.sort(keyed_permutation(n, key)(np.arange(n))), np.arange(n))


@examples(40)
@given(n=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_numbers_are_in_range_and_distinct_up_to_the_largest_n(n: int, key: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 1))
    positions = np.arange(start, min(start + 1000, n), dtype=np.int64)
    numbers = keyed_permutation(n, key)(positions)
    assert numbers.dtype == np.int64
    assert numbers.min() >= 0
    assert numbers.max() < n
    assert len(np.unique(numbers)) == len(positions)


@examples(30)
@given(n=st.integers(1, 2**40), key=KEYS, seed=st.integers(0, 2**32))
def test_a_position_s_number_depends_on_no_other_position(n: int, key: int, seed: int) -> None:
    positions = np.random.default_rng(seed).integers(0, n, size=50)
    together = keyed_permutation(n, key)(positions)
    alone = [int(keyed_permutation(n, key)(positions[[i]])[0]) for i in range(0, 50, 10)]
    assert together[::10].tolist() == alone


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_permutations_of_few_are_equally_frequent(n: int) -> None:
    every = list(itertools.permutations(range(n)))
    keys = np.arange(50 * len(every), dtype=np.int64)
    rows = shuffled_rows(numbered_keys(123, keys), np.full(len(keys), n))
    seen = Counter(map(tuple, rows.tolist()))
    assert deviation([seen[permutation] for permutation in every]) < 4


def test_rows_of_unequal_sizes_are_permutations_of_their_own_size() -> None:
    sizes = np.array([3, 1, 8, 5])
    rows = shuffled_rows(numbered_keys(1, np.arange(4)), sizes)
    assert [sorted(row[:size].tolist()) for row, size in zip(rows, sizes.tolist(), strict=True)] == [
        list(range(size)) for size in sizes.tolist()
    ]


def _numbers(n: int, keys: int = 8) -> list[IndexArray]:
    positions = np.arange(min(n, 2**17))
    return [keyed_permutation(n, key * 0x9E3779B97F4A7C15 % 2**64)(positions) for key in range(keys)]


# Two numbers below a third one that must be unrelated: of numbers x below n, in the order of their positions.
PAIRS: dict[str, Callable[[IndexArray, int], tuple[ArrayLike, ArrayLike, int]]] = {
    "a position and its number": lambda x, n: (np.arange(len(x)) * (n / len(x)), x, n),
    "neighbours": lambda x, n: (x[:-1], x[1:], n),
    "numbers two apart": lambda x, n: (x[:-2], x[2:], n),
    "numbers three apart": lambda x, n: (x[:-3], x[3:], n),
    "numbers 64 apart": lambda x, n: (x[:-64], x[64:], n),
    "the low bits of neighbours": lambda x, n: (x[:-1] % 16, x[1:] % 16, 16),
    "a number and its difference to the next": lambda x, n: (x[:-1], np.diff(x) % n, n),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("n", [*NETWORK_SIZES, 10**9, 2**45 + 1])
def test_what_stands_near_has_nothing_in_common(n: int, pair: str) -> None:
    assert deviation(sum(joint_counts(*PAIRS[pair](x, n)) for x in _numbers(n))) < 4


@pytest.mark.parametrize("n", [SORTED_LIMIT + 1, 10_000])
def test_positions_one_side_of_the_network_apart_have_nothing_in_common(n: int) -> None:
    # These share one half of what goes into the network: with four rounds in place of eight this test fails.
    left = math.isqrt(n - 1) + 1
    side = -(-n // left)
    assert deviation(sum(joint_counts(x[:-side], x[side:], n) for x in _numbers(n, keys=60))) < 4


@pytest.mark.parametrize("n", [*NETWORK_SIZES, 10**9])
def test_neighbouring_keys_give_unrelated_permutations(n: int) -> None:
    positions = np.arange(min(n, 2**17))
    permutations = [keyed_permutation(n, key)(positions) for key in range(9)]
    assert deviation(sum(joint_counts(x, y, n) for x, y in itertools.pairwise(permutations))) < 4


@pytest.mark.parametrize("n", [100, SORTED_LIMIT + 1, 10**9])
def test_one_position_is_uniform_over_keys_and_so_is_a_pair(n: int) -> None:
    pairs = np.array([keyed_permutation(n, key)(np.array([0, 1])) for key in range(4000)])
    assert deviation(joint_counts(pairs[:, 0], pairs[:, 0], n, parts=10).diagonal()) < 4
    assert deviation(joint_counts(pairs[:, 0], pairs[:, 1], n, parts=5)) < 4


def test_the_measure_sees_what_is_not_uniform() -> None:
    n = 2**20
    rotated = (np.arange(n) + 12345) % n
    strided = np.arange(n) * 77773 % n  # a linear generator: uniform by itself, and its neighbours are related
    assert deviation(joint_counts(np.arange(n), rotated, n)) > 100
    assert deviation(joint_counts(strided[:-1], strided[1:], n)) > 100
