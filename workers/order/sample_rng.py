"""Random generators for one sample: keyed by seed, epoch and sample, never by worker, batch or time.

So augmentation is equal for any number of loaders, after a resume, and for a sample that a second loader decodes again
because the first one died. A stream's indices count within a shard, so the key contains the shard. If a sampler draws a
sample several times in an epoch, the key contains the number of the draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from ..base import derive_key
from .permutation import keyed_permutation

_WORD = 2**64 - 1

MOST_REPLACEMENTS = 100
"""So many samples are tried in the place of a bad one: where all are bad the run shall end soon."""


class SampleRng:
    """Random generators by sample.

    Philox suits this: its 256-bit counter may start anywhere, and equal keys with different counters give independent
    streams (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). The key comes from the seed. The
    counter's upper words are epoch and number, which leaves 2**128 steps to each stream. One bit generator is reset for
    each sample, because constructing a new one takes ten times as long.
    """

    def __init__(self, seed: int) -> None:
        self._key = key = derive_key(seed, "sample", bits=128)
        self._counter = [0, 0, 0, 0]
        self._state: Any = {  # NumPy's stubs ask for arrays, which are set three times more slowly than lists
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": [key & _WORD, key >> 64]},
            "buffer": [0, 0, 0, 0],
            "buffer_pos": 4,  # the buffer is used up: the first draw computes from the counter
            "has_uint32": 0,
            "uinteger": 0,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_generator", "_seed")}

    def generator(self, epoch: int, number: int) -> np.random.Generator:
        """Return the generator of sample `number` in `epoch`, at its start; the next call resets the same object."""
        self._counter[2] = number
        self._counter[3] = epoch
        generator = self._generator
        generator.bit_generator.state = self._state
        self._seed.spawned = 0
        return generator

    @cached_property
    def _generator(self) -> np.random.Generator:
        """The one generator, made on first use: importing numpy.random takes 3.6 MB, and pure reading needs none."""
        return np.random.Generator(np.random.Philox(self._seed))

    @cached_property
    def _seed(self) -> Any:  # NumPy's stubs allow its own seed sequences alone
        from .keyed_seed import KeyedSeed

        return KeyedSeed(self._key, self._counter)


def replacements(seed: int, epoch: int, position: int, among: range) -> Iterator[int]:
    """Yield the positions whose samples are tried in the place of a bad one at `position`, the first one first.

    They are those of `among` but for `position`, each once, at most MOST_REPLACEMENTS, in a random order that depends
    on the arguments alone.
    """
    if (others := len(among) - 1) > 0:
        permutation = keyed_permutation(others, derive_key(seed, "replacement", epoch, position))
        for attempt in range(min(others, MOST_REPLACEMENTS)):
            other = among[int(permutation(np.array([attempt]))[0])]
            yield other + (other >= position)
