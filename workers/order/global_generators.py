"""The global generators of Python, NumPy and torch (CPU), for user code that draws from no other: seeded by sample.

To seed all of them takes 8 µs, more than the rest of a small sample costs, and most code draws from none. So a block of
samples is made while they lie at rest, as one seed left them. If one has moved afterwards, the block is made again,
with that one seeded before each sample, and from then on it always is: code that has drawn once will draw again. The
numbers are those of seeding all each time. To seed at the first draw would need no second time, but no generator says
that one begins: Python's draws are methods in C, which modules hold by name already.

Code may also read a state and draw nothing, or put the state back: `torch.random.fork_rng` does. So the functions that
return a state count as drawing while a block is made.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from ..base import derive_key

_FEW = 4
"""A block of fewer samples is seeded sample by sample: to look whether a generator has moved costs as much as three."""

_MT19937_BYTES = 2500
"""624 words and the place in them."""

_TORCH_BITS = (1 << 63) - 1
"""The bits that torch's own seeds have: `initial_seed` goes into a tensor. The draws come from the lower 32."""

_python_state = random.getstate
"""By this name, since `_reads_noted` puts another function into the module."""

_Made = TypeVar("_Made")
Seed = Callable[[int], None]
"""Seeds the generators for the sample of that place in the block."""


class _Global(Protocol):
    """A global generator. `readers`: the functions, by module, that return its state."""

    @property
    def module(self) -> str: ...

    @property
    def readers(self) -> tuple[tuple[str, str], ...]: ...

    def seed(self, key: int) -> None: ...

    def stamp(self) -> object:
        """Return a value that differs once the generator has moved."""

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...

    def seed_by_chance(self) -> None: ...


class _Python:
    module = "random"
    readers = (("random", "getstate"),)

    def seed(self, key: int) -> None:
        random.seed(key)

    def stamp(self) -> object:
        return _python_state()

    state = stamp

    def restore(self, state: Any) -> None:
        random.setstate(state)

    def seed_by_chance(self) -> None:
        random.seed()


class _NumPy:
    module = "numpy.random"
    readers = (("numpy.random", "get_state"),)

    def seed(self, key: int) -> None:
        np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002 - the one that other people's code uses

    def stamp(self) -> object:
        generator = cast(Any, np.random).get_bit_generator()  # NumPy's stubs lack it
        if isinstance(generator, np.random.MT19937):  # `state` makes an array word by word, in 30 µs
            return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
        return repr(generator.state)

    def state(self) -> Any:
        return np.random.get_state()  # noqa: NPY002

    def restore(self, state: Any) -> None:
        np.random.set_state(state)  # noqa: NPY002

    def seed_by_chance(self) -> None:
        np.random.seed()  # noqa: NPY002


class _Torch:
    """That of the CPU; torch.manual_seed seeds those of the GPUs, too."""

    module = "torch"
    readers = tuple(
        (module, name) for module in ("torch", "torch.random") for name in ("get_rng_state", "initial_seed")
    )

    def seed(self, key: int) -> None:
        sys.modules["torch"].default_generator.manual_seed(key & _TORCH_BITS)

    def stamp(self) -> object:
        return sys.modules["torch"].default_generator.get_state().numpy().tobytes()

    def state(self) -> Any:
        return sys.modules["torch"].get_rng_state()

    def restore(self, state: Any) -> None:
        sys.modules["torch"].set_rng_state(state)

    def seed_by_chance(self) -> None:
        sys.modules["torch"].default_generator.seed()


_ALL: tuple[_Global, ...] = (_Python(), _NumPy(), _Torch())


def _usable() -> tuple[_Global, ...]:
    """Return all, but torch's only if torch is loaded; a loader loads it before it unpickles hooks that name it."""
    return _ALL if sys.modules.get("torch") is not None else _ALL[:-1]


def seed_generators(seed: int, *numbers: int) -> int:
    """Seed the global generators; NumPy's takes 32 bits, torch's the 63 that are returned."""
    key = derive_key(seed, "globals", *numbers)
    _seed(key, _usable())
    return key & _TORCH_BITS


def _seed(key: int, generators: Iterable[_Global]) -> None:
    for each in generators:
        each.seed(key)


class SampleSeeds:
    """Seeds the global generators for samples where code draws from them. `is_on`: false to leave them as they are."""

    def __init__(self, seed: int, *, is_on: bool = True) -> None:
        self._seed = seed
        self._is_on = is_on
        self._drawn_from: frozenset[str] = frozenset()
        """The modules of the generators that code was seen to draw from."""
        self._at_rest: dict[str, object] = {}
        """The stamps of generators at rest, by module; another host may have another version."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_at_rest": {}}

    def seed(self, *numbers: int) -> None:
        """Seed all of them for the sample of these numbers, as epoch and index."""
        if self._is_on:
            seed_generators(self._seed, *numbers)

    def make(
        self,
        samples: Sequence[tuple[int, ...]],
        each: Callable[[Seed], _Made],
        together: Callable[[], _Made] | None = None,
    ) -> _Made:
        """Return `each(seed)`, which makes the samples of these numbers and calls `seed(i)` before it makes sample i.

        `together()` makes them without a seed between two of them. It is called instead where code draws nothing. Both
        may be called several times; what the last call returns counts. Raises their exceptions.
        """
        if not self._is_on:
            return each(_leave) if together is None else together()

        def seed(row: int) -> None:
            _seed(derive_key(self._seed, "globals", *samples[row]), drawn_from)

        while True:
            usable, moved = _usable(), set[str]()
            drawn_from = [one for one in usable if len(samples) < _FEW or one.module in self._drawn_from]
            try:
                with self._lying_at_rest([one for one in usable if one not in drawn_from], moved):
                    made = each(seed if drawn_from else _leave) if together is None or drawn_from else together()
            except Exception:
                if not moved:
                    raise
            else:
                if not moved:
                    return made
            self._drawn_from |= moved

    @contextmanager
    def _lying_at_rest(self, generators: Sequence[_Global], moved: set[str]) -> Iterator[None]:
        """Add the modules of those that have moved in the block, or were loaded in it, to `moved`."""
        key = derive_key(self._seed, "globals")
        for one in generators:
            one.seed(key)
            if one.module not in self._at_rest:
                self._at_rest[one.module] = one.stamp()
        before = _usable()
        try:
            with _reads_noted(generators, moved):
                yield
        finally:
            moved.update(one.module for one in generators if one.stamp() != self._at_rest[one.module])
            moved.update(one.module for one in _usable() if one not in before)


@contextmanager
def draws_noted() -> Iterator[set[str]]:
    """Give the block a set that names, behind the block, the modules whose global generators were drawn from in it."""
    before = [(one, one.stamp()) for one in _usable()]
    drawn = set[str]()
    yield drawn
    drawn.update(one.module for one, stamp in before if one.stamp() != stamp)


def _leave(row: int) -> None:
    """Seed nothing."""


@contextmanager
def _reads_noted(generators: Iterable[_Global], moved: set[str]) -> Iterator[None]:
    """Add the module of a generator whose state is read in the block to `moved`."""

    def noting(module: str, read: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        moved.add(module)
        return read(*arguments, **named)

    replaced: list[tuple[Any, str, Any]] = []
    try:
        for one in generators:
            for module, name in one.readers:
                holder = sys.modules.get(module)
                if (read := getattr(holder, name, None)) is not None:
                    replaced.append((holder, name, read))
                    setattr(holder, name, partial(noting, one.module, read))
        yield
    finally:
        for holder, name, read in replaced:
            setattr(holder, name, read)


class OwnGlobals:
    """Separate states of the global generators, for user code that runs in the trainer's process.

    Inside `used` the generators continue from the state at the end of the previous block; afterwards from the
    trainer's own state, as if the block had not run.
    """

    def __init__(self) -> None:
        self._states: dict[str, Any] | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        trainers = _states()
        if self._states is not None:
            _restore(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _restore(trainers)


def globals_kept() -> AbstractContextManager[None]:
    """Restore the global generators after the block; for trials of user code in the trainer."""
    return OwnGlobals().used()


def _loaded() -> list[_Global]:
    """Return those whose modules are loaded: numpy.random takes 3.6 MB, and pure reading needs none."""
    return [each for each in _ALL if sys.modules.get(each.module) is not None]


def _states() -> dict[str, Any]:
    return {each.module: each.state() for each in _loaded()}


def _restore(states: dict[str, Any]) -> None:
    """Restore `states`. A generator that user code has loaded since is seeded by chance, as on import."""
    for each in _loaded():
        if each.module in states:
            each.restore(states[each.module])
        else:
            each.seed_by_chance()
