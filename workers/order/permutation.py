"""Keyed permutations of [0, n): any position of a shuffled epoch costs the same, and none is stored. Pure.

The method depends on n:

- Up to SORTED_LIMIT: the key gives each position a random 64-bit number, and these are sorted. All n! permutations are
  equally likely. A cipher on so few values would not achieve that.
- Above: a Feistel network. A position is written as a pair (left, right) below sides a × b. Each round adds a hash of
  one half to the other half, modulo its side. Each round can be inverted, hence the whole is a bijection of [0, a·b).
  A result outside [0, n) is permuted again until it lies inside ("cycle walking": Black and Rogaway, Ciphers with
  Arbitrary Finite Domains, CT-RSA 2002, who describe this very a × b network).

The sides are near the square root of n, so a·b exceeds n by less than one side, and a walk is rare (1 in √n). A network
over the next power of two would let up to half of the positions walk, and on short arrays each of the many steps of
that walk costs as much as the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..api import IndexArray
from ..base import derive_key

Words = NDArray[np.uint64]

SORTED_LIMIT = 8192
"""The largest n that is permuted by sorting. It is a part of the order's definition: changing it changes orders."""

_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LAST_LOT = np.uint64(2**64 - 1)
# The finaliser of SplitMix64 (Steele, Lea, Flood 2014), Stafford's variant 13: its multipliers and shifts.
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_HALF_WORD = np.uint64(32)


Permutation = Callable[[IndexArray], IndexArray]
"""A bijection of [0, n) that maps positions to the numbers there, both of the same shape (count,)."""


def keyed_permutation(n: int, key: int) -> Permutation:
    """Return the permutation of [0, n) for the 64-bit `key`; 1 <= n <= 2**62."""
    if n > SORTED_LIMIT:
        return _FeistelPermutation(n, key)
    return shuffled_rows(np.array([key], np.uint64), np.array([n], np.int64)).take  # from its only row


def mix64(words: Words) -> Words:
    """Hash each 64-bit word, in place: a bijection in which each bit of the input touches every bit of the output."""
    words ^= words >> np.uint64(30)
    words *= _MULTIPLIER_1
    words ^= words >> np.uint64(27)
    words *= _MULTIPLIER_2
    words ^= words >> np.uint64(31)
    return words


def numbered_keys(key: int, numbers: IndexArray) -> Words:
    """Derive a key for each number from one 64-bit key; calling derive_key for each would take too long."""
    return mix64(numbers.astype(np.uint64) * _GOLDEN + np.uint64(key))


def shuffled_rows(keys: Words, sizes: IndexArray) -> IndexArray:
    """Return a row with a permutation of [0, size) for each key; a size is at most SORTED_LIMIT.

    `keys`, `sizes`: shape (rows,). Returns shape (rows, largest size); the columns behind a row's own size are unused.
    """
    columns = np.arange(int(sizes.max()), dtype=np.uint64)
    lots = mix64(keys[:, np.newaxis] + columns * _GOLDEN)
    lots[columns >= sizes[:, np.newaxis].astype(np.uint64)] = _LAST_LOT  # so that they are sorted behind the row's own
    shuffled: IndexArray = np.argsort(lots, axis=1, kind="stable")
    return shuffled


class _FeistelPermutation:
    def __init__(self, n: int, key: int) -> None:
        self._n = np.uint64(n)
        left = math.isqrt(n - 1) + 1
        self._sides = np.uint64(left), np.uint64(-(-n // left))
        self._round_keys = tuple(np.uint64(derive_key(key, "round", number)) for number in range(_ROUNDS))

    def __call__(self, positions: IndexArray) -> IndexArray:
        numbers = self._network(positions.astype(np.uint64))
        while len(outside := np.flatnonzero(numbers >= self._n)):
            numbers[outside] = self._network(numbers[outside])
        return numbers.view(np.int64)

    def _network(self, numbers: Words) -> Words:
        side, other_side = self._sides
        half = numbers // other_side
        other = numbers - half * other_side
        hashed, shifted = np.empty_like(numbers), np.empty_like(numbers)
        for round_key in self._round_keys:
            _add_hash(half, side, other, round_key, hashed, shifted)
            half, other, side, other_side = other, half, other_side, side
        half *= other_side  # _ROUNDS is even: the halves are where they began
        half += other
        return half


def _add_hash(half: Words, side: np.uint64, other: Words, key: np.uint64, hashed: Words, shifted: Words) -> None:
    """Compute half = (half + hash(other, key)) mod side without a division; `hashed`, `shifted`: scratch memory."""
    np.add(other, key, out=hashed)
    np.multiply(hashed, _MULTIPLIER_1, out=hashed)
    np.right_shift(hashed, _HALF_WORD, out=shifted)
    np.bitwise_xor(hashed, shifted, out=hashed)
    np.multiply(hashed, _MULTIPLIER_2, out=hashed)
    # The upper 32 bits as a fraction of the side: side is at most 2**31, so the product fits.
    np.right_shift(hashed, _HALF_WORD, out=hashed)
    np.multiply(hashed, side, out=hashed)
    np.right_shift(hashed, _HALF_WORD, out=hashed)
    np.add(half, hashed, out=half)
    # half is below 2·side now. Subtracting the side gives the result, or wraps around to a huge number.
    np.subtract(half, side, out=hashed)
    np.minimum(half, hashed, out=half)
