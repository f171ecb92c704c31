"""What samplers draw, and what is no epoch."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from blobfeed.supplies import (
    MOST_SAMPLES,
    BalancedSampler,
    HookSampler,
    IterableSampler,
    SubsetSampler,
    WeightedSampler,
    draw_epoch,
    draws_of,
    sampler_rng,
    samplers,
    samples_in,
)
from hypothesis import example, given
from hypothesis import strategies as st

from blobfeed import SourceError

SEED, SAMPLES = 7, 100


def drawn(sampler: Any, epoch: int = 0, *, batch_size: int = 8) -> Any:
    return draw_epoch(sampler, epoch, seed=SEED, samples=SAMPLES, batch_size=batch_size)


def hook(result: Any, *, gives_batches: bool = False) -> HookSampler:
    return HookSampler("sampler()", lambda epoch, samples, rng: result, gives_batches=gives_batches)


def test_weights_draw_as_numpy_does() -> None:
    weights = np.arange(SAMPLES, dtype=np.float64)
    expected = sampler_rng(SEED, 3).choice(SAMPLES, 50, p=weights / weights.sum())
    assert drawn(WeightedSampler(weights, 50), 3).indices.tolist() == expected.tolist()
    assert drawn(WeightedSampler(None, 50).reweighed(weights, SAMPLES), 3).indices.tolist() == expected.tolist()
    assert len(set(drawn(WeightedSampler(None, 5000)).indices.tolist())) == SAMPLES


def test_a_subset_is_as_listed_or_shuffled_anew_in_each_epoch() -> None:
    subset = np.array([5, 3, 99, 3])
    assert drawn(SubsetSampler(subset, shuffle=False), 1).indices.tolist() == [5, 3, 99, 3]
    expected = sampler_rng(SEED, 1).permutation(subset).tolist()
    assert drawn(SubsetSampler(subset, shuffle=True), 1).indices.tolist() == expected


def test_every_class_comes_equally_often_and_its_samples_too() -> None:
    labels = np.array([0] * 90 + [4] * 7 + [9] * 3)
    epochs = [drawn(BalancedSampler("label", lambda: labels, 61), epoch).indices for epoch in range(3)]
    for indices in epochs:
        assert sorted(np.bincount(labels[indices], minlength=10)[[0, 4, 9]].tolist()) == [20, 20, 21]
        assert set(np.bincount(indices, minlength=SAMPLES)[90:97].tolist()) <= {2, 3}
        assert set(np.bincount(indices, minlength=SAMPLES)[:90].tolist()) == {0, 1}
    assert epochs[0].tolist() != epochs[1].tolist()


def test_global_generators_are_seeded_too() -> None:
    sampler = HookSampler("sampler()", lambda *_: np.random.permutation(SAMPLES), gives_batches=False)  # noqa: NPY002
    first = drawn(sampler, 0).indices.tolist()
    assert drawn(sampler, 1).indices.tolist() != first
    assert drawn(sampler, 0).indices.tolist() == first


class Counting:
    """Like torch's samplers: it has a length, and gives something else each time."""

    def __init__(self) -> None:
        self.times = 0

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return iter([self.times, 1, 2])


def test_an_iterable_begins_anew_in_each_epoch() -> None:
    sampler = IterableSampler("sampler Counting", Counting(), gives_batches=False)
    assert sampler.about.length == 3
    assert [drawn(sampler, epoch).indices.tolist() for epoch in (0, 1)] == [[1, 1, 2]] * 2


class Around:
    """Like torch's BatchSampler around a sampler without a length."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        raise self.error

    def __iter__(self) -> Iterator[int]:
        return iter([2, 1])


@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_a_length_that_a_sampler_cannot_say_is_unknown(error: type[Exception]) -> None:
    sampler = IterableSampler("sampler Around", Around(error), gives_batches=False)
    assert sampler.about.length is None
    assert drawn(sampler).indices.tolist() == [2, 1]


class _Own:
    """A class of the user's, as a DataLoader takes it: its generator goes on from epoch to epoch."""

    def __init__(self, generator: Any) -> None:
        self._own = generator

    def __iter__(self) -> Iterator[int]:
        indices = list(range(SAMPLES))
        self._own.shuffle(indices)
        return iter(indices)


@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState, random.Random])
def test_the_generator_of_an_iterable_is_seeded_anew_in_each_epoch(kind: Any) -> None:
    first, other = (IterableSampler("sampler _Own", _Own(kind(seed)), gives_batches=False) for seed in (0, 1))
    epochs = [drawn(first, epoch).indices.tolist() for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert [drawn(other, epoch).indices.tolist() for epoch in (0, 1)] == epochs


def test_batches_may_have_any_size_up_to_batch_size() -> None:
    made = drawn(hook([[1], np.array([2, 3]), range(8)], gives_batches=True))
    assert made.indices.tolist() == [1, 2, 3, *range(8)]
    assert made.sizes.tolist() == [1, 2, 8]


@pytest.mark.parametrize("gives_batches", [False, True])
def test_a_sampler_without_an_end_is_told(monkeypatch: pytest.MonkeyPatch, gives_batches: bool) -> None:
    monkeypatch.setattr(samplers, "_MOST_INDICES", 50)
    monkeypatch.setattr(samplers, "_MOST_BATCHES", 50)
    endless = itertools.repeat([1] if gives_batches else 1)
    with pytest.raises(SourceError, match="50"):
        drawn(hook(endless, gives_batches=gives_batches))
    assert len(drawn(hook(range(SAMPLES))).indices) == SAMPLES


class Drawing:
    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return iter([self.generator.randrange(SAMPLES) for _ in range(5)])


class Told:
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch])


class Joined:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[int]:
        return itertools.chain(*self.parts)


def test_samplers_that_a_sampler_holds_are_seeded_and_told_the_epoch_too() -> None:
    held = Joined(Drawing(random.Random(1)), Joined(Drawing(random.Random(1)), Told()))
    sampler = IterableSampler("sampler", held, gives_batches=False)
    first, second, again = (drawn(sampler, epoch).indices.tolist() for epoch in (0, 1, 0))
    assert first == again
    assert first[:5] not in (first[5:10], second[:5])
    assert (first[10], second[10]) == (0, 1)


@given(st.lists(st.integers(0, 9) | st.integers(0, MOST_SAMPLES - 1), max_size=50))
@example([])
def test_a_draw_says_its_sample_and_how_often_that_came_before(indices: list[int]) -> None:
    draws = draws_of(np.array(indices, np.int64))
    assert samples_in(draws).tolist() == indices
    seen: Counter[int] = Counter()
    for draw, index in zip(draws.tolist(), indices, strict=True):
        assert draw == index + seen[index] * MOST_SAMPLES
        seen[index] += 1


def test_a_sample_that_comes_too_often_to_be_counted_is_still_that_sample() -> None:
    draws = draws_of(np.full(40_000, MOST_SAMPLES - 1))
    assert (samples_in(draws) == MOST_SAMPLES - 1).all()
    assert len(np.unique(draws)) == 2**15
