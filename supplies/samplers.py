"""Samplers choose the samples of an epoch instead of `shuffle`: by weights, classes, a list or a user's function.

A sampler draws a whole epoch from the epoch's number and a generator keyed by (seed, epoch). So the epoch can be drawn
again after a restart, and every rank draws the same. The draws are checked here, before any sample is read.
"""

from __future__ import annotations

import copy
import random
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from itertools import islice
from operator import length_hint
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from ..workers.api import IndexArray, SamplerHook
from ..workers.base import BlobfeedError, ParameterError, SourceError, derive_key
from ..workers.order import DrawnEpoch, raise_no_weights, seed_generators

Weights = NDArray[np.float64]

_MOST_INDICES = 1 << 26
"""The most indices taken from an iterable without a length: they need 2.4 GB, and an endless one would use up all."""
_MOST_BATCHES = 1 << 24
_ONE_AXIS = "expected one axis, the samples' indices; whole batches are what a batch_sampler gives"


class AboutSampler(msgspec.Struct, frozen=True):
    """The facts known of a sampler before it draws, also in the assembler, which never unpickles the sampler.

    `name`: for messages and states. `length`: samples, or batches, in every epoch; None if it is unknown before
    drawing. `declared`: the facts that define the order besides samples and seed, as far as they are known; a state
    resumes only if they are equal.
    """

    name: str
    length: int | None = None
    declared: str = ""
    gives_batches: bool = False

    @property
    def items(self) -> str:
        return "batches" if self.gives_batches else "samples"


class Sampler(ABC):
    """Draws the samples of an epoch."""

    about: AboutSampler
    descriptors: tuple[int, ...] = ()
    """File descriptors that `draw` needs; the process that runs it inherits them under the same numbers."""

    first: int | None = None
    """A sample that occurs in epochs, if one is known before the first draw."""

    @abstractmethod
    def draw(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        """Draw epoch `epoch` of a source of `samples` samples."""

    def reweighed(self, weights: object, samples: int) -> Sampler:
        """Return this sampler with other weights, one for each sample; raises ParameterError."""
        raise_no_weights(f"{self.about.name}, which has no weights")


class WeightedSampler(Sampler):
    """Draws `draws` samples with replacement, in proportion to their weights; without weights uniformly."""

    def __init__(self, weights: Weights | None, draws: int) -> None:
        by = "equal weights" if weights is None else f"weights {_checksum(weights)}"
        self.about = AboutSampler("sampler {weights}", draws, f"{draws} draws by {by}")
        self.first = 0 if weights is None else int(np.flatnonzero(weights)[0])
        self._draws = draws
        self._weights = weights

    def draw(self, epoch: int, samples: int, rng: np.random.Generator) -> IndexArray:
        weights = self._weights
        if weights is None:
            return rng.integers(samples, size=self._draws)
        drawn: IndexArray = rng.choice(samples, self._draws, p=weights / weights.sum())
        return drawn

    def reweighed(self, weights: object, samples: int) -> Sampler:
        return WeightedSampler(check_weights(weights, samples, "set_weights"), self._draws)


class SubsetSampler(Sampler):
    """Draws exactly these samples: as listed, or in a new random order in each epoch."""

    def __init__(self, indices: IndexArray, *, shuffle: bool) -> None:
        declared = f"{len(indices)} indices {_checksum(indices)}, {'shuffled' if shuffle else 'as listed'}"
        self.about = AboutSampler("sampler {indices}", len(indices), declared)
        self.first = int(indices[0])
        self._indices = indices
        self._shuffle = shuffle

    def draw(self, epoch: int, samples: int, rng: np.random.Generator) -> IndexArray:
        return rng.permutation(self._indices) if self._shuffle else self._indices


class BalancedSampler(Sampler):
    """Draws `draws` samples, equally many of each class (counts differ by one if the classes do not divide `draws`).

    The samples of a class smaller than its share repeat equally often, give or take one. A larger class contributes
    other samples in other epochs. `labels` is called once, in the process that draws; it needs `descriptors` there.
    """

    def __init__(
        self, name: str, labels: Callable[[], NDArray[Any]], draws: int, descriptors: tuple[int, ...] = ()
    ) -> None:
        self.about = AboutSampler(f"sampler {{balance: {name}}}", draws, f"{draws} draws")
        self.descriptors = descriptors
        self._draws = draws
        self._labels = labels
        self._classes: list[IndexArray] = []

    def draw(self, epoch: int, samples: int, rng: np.random.Generator) -> IndexArray:
        if not self._classes:
            _, numbers = np.unique(self._labels(), return_inverse=True)
            ends = np.cumsum(np.bincount(numbers))[:-1]
            self._classes = np.split(np.argsort(numbers, kind="stable"), ends)
        each, left = divmod(self._draws, len(self._classes))
        larger = set(rng.permutation(len(self._classes))[:left].tolist())
        parts = [repeated(members, each + (k in larger), rng) for k, members in enumerate(self._classes)]
        return rng.permutation(np.concatenate(parts))


class HookSampler(Sampler):
    """Draws by a user's function of (epoch, samples, rng), which returns indices or yields batches."""

    def __init__(self, name: str, hook: SamplerHook, *, gives_batches: bool) -> None:
        self.about = AboutSampler(name, gives_batches=gives_batches)
        self._hook = hook

    def draw(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        return self._hook(epoch, samples, rng)


class IterableSampler(Sampler):
    """Draws by iterating over an iterable: a list, an array, torch's own samplers.

    Each epoch iterates over a fresh copy, whose generators are seeded by the epoch. Torch's samplers keep a state in
    their `generator` or in torch's global one, and an epoch must not depend on earlier epochs.
    """

    def __init__(self, name: str, iterable: Iterable[Any], *, gives_batches: bool) -> None:
        length = None
        with suppress(TypeError, NotImplementedError):  # raised by torch's BatchSampler around one without a length
            length = len(iterable) if isinstance(iterable, Sized) else None
        declared = "" if length is None else f"length {length}"
        if gives_batches and isinstance(iterable, list | tuple) and iterable:
            parts = [part for batch in iterable for part in ([-1], _integers(batch, name))]
            declared += f", batches {_checksum(np.concatenate(parts))}"
        self.about = AboutSampler(name, length, declared, gives_batches)
        self._iterable = iterable

    def draw(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        fresh = copy.deepcopy(self._iterable)
        for part in samplers_in(fresh):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)
            for held in _held_by(part):
                _seed(held, rng)
        return fresh


def samplers_in(sampler: Any) -> list[Any]:
    """Return the sampler and the samplers inside it, as in torch's BatchSampler; each once, the outer one first."""
    found = [sampler]
    for part in found:
        for held in _held_by(part):
            is_one = held is getattr(part, "sampler", part) or _is_sampler(held)
            if is_one and not any(held is other for other in found):
                found.append(held)
    return found


def _is_sampler(held: Any) -> bool:
    """Return true if `held` looks like a sampler. An object with items by index is data, not a sampler."""
    if hasattr(held, "set_epoch") or hasattr(held, "num_replicas"):
        return True
    return hasattr(type(held), "__iter__") and not hasattr(type(held), "__getitem__") and hasattr(held, "__dict__")


def _held_by(part: Any) -> Iterator[Any]:
    """Yield the part's attributes and the items of lists and dicts among them, but not the numbers of index lists."""
    for value in getattr(part, "__dict__", {}).values():
        many = list(value.values()) if isinstance(value, dict) else value
        if isinstance(many, list | tuple) and not isinstance(next(iter(many), None), int | float | np.number):
            yield from many
        else:
            yield value


def _seed(held: Any, rng: np.random.Generator) -> None:
    """Seed `held` if it is a generator: torch's, NumPy's or Python's."""
    if callable(getattr(held, "manual_seed", None)):
        held.manual_seed(int(rng.integers(1 << 62)))
    elif isinstance(held, np.random.Generator):
        held.bit_generator.state = type(held.bit_generator)(int(rng.integers(1 << 62))).state
    elif isinstance(held, random.Random | np.random.RandomState):
        held.seed(int(rng.integers(1 << 32)))


def _checksum(values: NDArray[Any]) -> str:
    return xxh3_64_hexdigest(np.ascontiguousarray(values).data)


def repeated(members: IndexArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Return `count` of `members`, each equally often, give or take one."""
    whole, rest = divmod(count, len(members))
    return np.concatenate([np.tile(members, whole), rng.choice(members, rest, replace=False)])


def sampler_rng(seed: int, epoch: int) -> np.random.Generator:
    from ..workers.order.keyed_seed import keyed_generator  # loads numpy.random

    return keyed_generator(derive_key(seed, "sampler", epoch, bits=128))


def draw_epoch(sampler: Sampler, epoch: int, *, seed: int, samples: int, batch_size: int) -> DrawnEpoch:
    """Run `sampler` for one epoch; raises its exceptions, and SourceError if the result is no valid epoch.

    Seeds the global generators of NumPy, Python and torch, too, for user code that uses no other.
    """
    seed_generators(seed, epoch)
    about, what = sampler.about, f"{sampler.about.name}, epoch {epoch}"
    drawn = sampler.draw(epoch, samples, sampler_rng(seed, epoch))
    if about.gives_batches:
        made = _batches(drawn, batch_size, what)
    else:
        made = DrawnEpoch(_integers(drawn, what))
        if not len(made.indices):
            raise SourceError(f"{what}: it gave no samples: expected at least one index")
    check_range(made.indices, samples, what, SourceError)
    items = len(made.indices if made.sizes is None else made.sizes)
    if about.length is not None and items != about.length:
        raise SourceError(
            f"{what}: it gave {items}, and its length is {about.length}: every epoch must be as "
            "long; if epochs differ, leave out the sampler's __len__, or give a function of (epoch, samples, rng)"
        )
    return made


def _batches(drawn: Iterable[Any], batch_size: int, what: str) -> DrawnEpoch:
    if not (hasattr(drawn, "__iter__") or hasattr(drawn, "__getitem__")):
        raise SourceError(
            f"{what}: it gave {drawn!r}: expected an iterable of batches, each the indices of its samples"
        )
    batches = []
    for number, batch in enumerate(drawn):
        if number == _MOST_BATCHES:
            raise SourceError(f"{what}: it gave {number:,} batches and goes on: an epoch must end")
        indices = _integers(batch, f"{what}, batch {number}")
        if not 0 < len(indices) <= batch_size:
            raise SourceError(
                f"{what}: batch {number} has {len(indices)} samples: expected 1 to batch_size={batch_size}"
            )
        batches.append(indices)
    if not batches:
        raise SourceError(f"{what}: it gave no batches: expected at least one")
    return DrawnEpoch(np.concatenate(batches), np.array([len(batch) for batch in batches], np.int64))


def _integers(drawn: Any, what: str) -> IndexArray:
    """Convert to an int64 array of shape (count,), without a copy if it is one already."""
    try:
        if not isinstance(drawn, np.ndarray):
            most = _MOST_INDICES
            with suppress(NotImplementedError):  # a TypeError of its __len__ is ignored
                most = max(most, length_hint(drawn))
            drawn = list(islice(drawn, most + 1))
            if len(drawn) > most:
                raise SourceError(f"{what}: it gave {most:,} indices and goes on: an epoch must end")
        array = np.asarray(drawn)
    except TypeError:
        raise SourceError(f"{what}: it gave {drawn!r}: expected sample indices, an array or any iterable") from None
    except ValueError:  # NumPy's, of lists of different lengths
        raise SourceError(f"{what}: it gave {reprlib.repr(drawn)}: {_ONE_AXIS}") from None
    if array.ndim != 1:
        raise SourceError(f"{what}: it gave an array of shape {array.shape}: {_ONE_AXIS}")
    if len(array) and array.dtype.kind not in "iu":
        hint = "; a mask becomes indices by np.flatnonzero" if array.dtype.kind == "b" else ""
        raise SourceError(
            f"{what}: its first index is {array.tolist()[0]!r}, of type {array.dtype}: expected whole numbers{hint}"
        )
    return array.astype(np.int64, copy=False)


def check_range(indices: IndexArray, samples: int, what: str, error: type[BlobfeedError]) -> None:
    """Raises `error` for the first of `indices`, shape (count,), that is not below `samples`."""
    if int(indices.min()) >= 0 and int(indices.max()) < samples:
        return
    position = int(np.flatnonzero((indices < 0) | (indices >= samples))[0])
    raise error(
        f"{what}: the index at position {position} is {indices[position]}: expected 0 to {samples - 1}, for the "
        f"source has {samples} samples"
    )


def check_weights(values: object, samples: int, what: str) -> Weights:
    """Convert `values` to a new float64 array of shape (samples,); raises ParameterError."""
    try:
        weights = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ParameterError(f"{what}: expected {samples} numbers, one for each sample: {error}") from None
    if weights.shape != (samples,):
        raise ParameterError(f"{what}: got the shape {weights.shape}, expected ({samples},), a number for each sample")
    if len(wrong := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))):
        raise ParameterError(
            f"{what}: the weight of sample {wrong[0]} is {weights[wrong[0]]}: expected a finite number, at least 0"
        )
    if not weights.any():
        raise ParameterError(f"{what}: all weights are 0: expected at least one above 0")
    with np.errstate(over="ignore"):
        if np.isinf(weights.sum()):
            raise ParameterError(
                f"{what}: the weights are as large as {weights.max():g} and their sum is infinite: only their shares "
                "count, so divide all by the largest"
            )
    return weights
