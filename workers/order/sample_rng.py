"""Random generators for one sample: keyed by seed, epoch and sample, never by worker, batch or time.

So augmentation is equal for any number of loaders, after a resume, and for a sample that a second loader decodes again
because the first one died. A stream's indices count within a shard, so the key contains the shard. If a sampler draws a
sample several times in an epoch, the key contains the number of the draw.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from ..api import IndexArray
from ..base import derive_key
from .epoch_order import keyed_permutation

_WORD = 2**64 - 1


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


def seed_generators(seed: int, *numbers: int) -> None:
    """Seed the global generators of NumPy, Python and torch (CPU), for user code that uses no other.

    Torch's is seeded only if torch is loaded; a loader loads it before it unpickles hooks that name it. NumPy's takes
    32 bits. A call costs about 15 µs, most of it for the 624 words of each of the two Mersenne Twisters.
    """
    key = derive_key(seed, "globals", *numbers)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002 - the one that other people's code uses
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(key)  # not those of the GPUs, which torch.manual_seed seeds too


class OwnGlobals:
    """Separate states of the global generators, for user code that runs in the trainer's process.

    Inside `used` the generators continue from the state at the end of the previous block; afterwards from the
    trainer's own state, as if the block had not run.
    """

    def __init__(self) -> None:
        self._states: tuple[Any, ...] | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        trainers = _global_states()
        if self._states is not None:
            _set_global_states(self._states)
        try:
            yield
        finally:
            self._states = _global_states()
            _set_global_states(trainers)


def globals_kept() -> AbstractContextManager[None]:
    """Restore the global generators after the block; for trials of user code in the trainer."""
    return OwnGlobals().used()


def _global_states() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    of_torch = torch.get_rng_state() if torch else None
    of_numpy = np.random.get_state() if "numpy.random" in sys.modules else None  # noqa: NPY002
    return random.getstate(), of_numpy, of_torch


def _set_global_states(states: tuple[Any, ...]) -> None:
    python, of_numpy, of_torch = states
    random.setstate(python)
    if of_numpy is not None:
        np.random.set_state(of_numpy)  # noqa: NPY002
    elif "numpy.random" in sys.modules:
        np.random.seed()  # noqa: NPY002 - user code has loaded it; NumPy seeds it by chance on import, too
    if of_torch is not None:
        sys.modules["torch"].set_rng_state(of_torch)
    elif torch := sys.modules.get("torch"):
        torch.default_generator.seed()  # by chance, too


def replacement_index(seed: int, epoch: int, index: int, attempt: int, samples: int) -> int:
    """Return the sample that replaces the bad one `index`; it depends on the arguments alone and is never `index`.

    Attempts 0, 1, … go through all other samples in a random order before one comes again. A single sample is its own
    replacement.
    """
    others = samples - 1
    if not others:
        return index
    permutation = keyed_permutation(others, derive_key(seed, "replacement", epoch, index))
    other = int(permutation(np.array([attempt % others]))[0])
    return other + (other >= index)


def replacement_among(samples: IndexArray, seed: int, epoch: int, index: int, attempt: int) -> int:
    """Return a replacement for `index` among `samples`, shape (count,); `index` itself if they have no other."""
    others = np.unique(samples[samples != index])
    if not len(others):
        return index
    permutation = keyed_permutation(len(others), derive_key(seed, "replacement", epoch, index))
    return int(others[permutation(np.array([attempt % len(others)]))[0]])
