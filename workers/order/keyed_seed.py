"""The seed sequence of a keyed Philox generator, which `Generator.spawn` needs to derive more generators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ..base import derive_key

_WORD = 2**64 - 1


class KeyedSeed(np.random.bit_generator.ISpawnableSeedSequence):
    """A seed sequence for which Philox(KeyedSeed(key)) gives the same numbers as Philox(key=key), 128 bits.

    `numbers`: spawned generators depend on them and on the key. A caller that changes them sets `spawned` to 0.
    """

    def __init__(self, key: int, numbers: Sequence[int] = ()) -> None:
        self.spawned = 0
        self._key = key
        self._numbers = numbers

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        if n_words == 2 and np.dtype(dtype) == np.uint64 and not self._numbers:  # what Philox asks for
            return np.array([self._key & _WORD, self._key >> 64], np.uint64)
        # NumPy's other generators read the number of words that they requested without checking the length.
        return np.random.SeedSequence(derive_key(self._key, "state", *self._numbers)).generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Self]:
        first, self.spawned = self.spawned, self.spawned + n_children
        children = range(first, self.spawned)
        return [type(self)(derive_key(self._key, "spawn", *self._numbers, n, bits=128)) for n in children]


def keyed_generator(key: int) -> np.random.Generator:
    """Return a new generator for the 128-bit `key`."""
    seed: Any = KeyedSeed(key)  # NumPy's stubs allow its own seed sequences alone
    return np.random.Generator(np.random.Philox(seed))
