"""Randomness by sample: one stream for each (seed, epoch, index), whoever asks and whenever."""

from __future__ import annotations

import importlib
import itertools
import pickle
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base import derive_key
from blobfeed.workers.order import (
    OwnGlobals,
    SampleRng,
    SampleSeeds,
    globals_kept,
    replacements,
    seed_generators,
)
from blobfeed.workers.order.keyed_seed import KeyedSeed, keyed_generator
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples

NUMBERS = st.integers(0, 2**62)


@examples(60)
@given(seed=st.integers(0, 2**80), epoch=NUMBERS, index=NUMBERS, others=st.lists(st.tuples(NUMBERS, NUMBERS)))
def test_a_stream_does_not_depend_on_what_was_drawn_before(
    seed: int, epoch: int, index: int, others: list[tuple[int, int]]
) -> None:
    expected = SampleRng(seed).generator(epoch, index).random(10)
    rng = SampleRng(seed)
    for other in others:
        generator = rng.generator(*other)
        generator.random(3)
        generator.integers(0, 100, dtype=np.int32)  # leaves half a word behind
        generator.normal()
    assert np.array_equal(rng.generator(epoch, index).random(10), expected)


def test_a_stream_is_philox_at_the_sample_s_own_counter() -> None:
    # NumPy's own way to put a generator there: slower, and the same numbers.
    rng = SampleRng(12)
    key = rng.generator(0, 0).bit_generator.state["state"]["key"]
    fresh = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 77, 3]))
    assert np.array_equal(rng.generator(3, 77).integers(0, 2**63, 20), fresh.integers(0, 2**63, 20))


def test_a_sample_s_generator_spawns_others_that_depend_on_the_sample_alone() -> None:
    def spawned(rng: SampleRng, epoch: int, index: int) -> list[float]:
        generator = rng.generator(epoch, index)
        return [child.random() for count in (2, 1) for child in generator.spawn(count)]

    rng = SampleRng(12)
    first = spawned(rng, 3, 77)
    others = [spawned(rng, epoch, index) for epoch, index in ((3, 78), (4, 77), (77, 3))]
    assert len({*first, *itertools.chain(*others)}) == 12
    seed: Any = KeyedSeed(derive_key(12, "sample", bits=128), (0, 0, 77, 3))
    assert first == [child.random() for child in np.random.Generator(np.random.Philox(seed)).spawn(3)]
    assert (
        spawned(rng, 3, 77) == spawned(pickle.loads(pickle.dumps(rng)), 3, 77) == spawned(SampleRng(12), 3, 77) == first
    )


@pytest.mark.parametrize("key", [0, 5, 2**64, 2**128 - 1])
def test_a_keyed_generator_is_philox_by_that_key(key: int) -> None:
    assert keyed_generator(key).random() == np.random.Generator(np.random.Philox(key=key)).random()
    grandchildren = [keyed_generator(key).spawn(1)[0].spawn(1)[0].random() for _ in range(2)]
    assert grandchildren[0] == grandchildren[1] != keyed_generator(key).spawn(1)[0].random()
    assert keyed_generator(key).spawn(1)[0].random() == keyed_generator(key).spawn(2)[0].random()


@pytest.mark.parametrize("numbers", [(), (0, 0, 77, 3)])
def test_a_keyed_seed_gives_as_many_words_as_are_asked_for(numbers: tuple[int, ...]) -> None:
    seed = KeyedSeed(5, numbers)
    assert seed.generate_state(4, np.uint64).shape == (4,)
    assert seed.generate_state(624, np.uint32).shape == (624,)
    assert seed.generate_state(1)[0] < 2**32


@pytest.mark.parametrize("made", [np.random.PCG64, np.random.SFC64, np.random.MT19937, np.random.Philox])
def test_other_generators_by_a_sample_s_seed_depend_on_the_sample_alone(made: Any) -> None:
    def drawn(epoch: int, index: int) -> tuple[float, ...]:
        seed: Any = SampleRng(12).generator(epoch, index).bit_generator.seed_seq
        return tuple(np.random.Generator(made(one)).random() for one in (seed, seed.spawn(1)[0]))

    first = drawn(3, 77)
    np.ones(2)  # what lies behind the words in memory
    assert drawn(3, 77) == first
    assert len({*first, *drawn(3, 78), *drawn(4, 77)}) == 6


def test_a_stream_once_published_stays() -> None:
    assert SampleRng(1).generator(2, 3).bit_generator.random_raw(3).tolist() == [
        7768644567375115105,
        847841026170924368,
        3301647638006654310,
    ]


@examples(60)
@given(seed=NUMBERS, epoch=NUMBERS, begin=st.integers(0, 2**50), count=st.integers(1, 150), data=st.data())
def test_replacements_go_once_through_the_other_positions_at_most_a_hundred(
    seed: int, epoch: int, begin: int, count: int, data: st.DataObject
) -> None:
    among = range(begin, begin + count)
    position = data.draw(st.sampled_from(among))
    found = list(replacements(seed, epoch, position, among))
    assert found == list(replacements(seed, epoch, position, among))
    assert len(found) == len(set(found)) == min(100, count - 1)
    assert {*found} <= {*among} - {position}


def test_replacements_once_published_stay() -> None:
    assert list(itertools.islice(replacements(1, 2, 3, range(10**6)), 3)) == [602814, 781648, 238016]
    assert list(itertools.islice(replacements(1, 2, 13, range(10, 15)), 4)) == [11, 14, 12, 10]


def test_the_global_generators_are_seeded_for_each_sample_by_all_that_names_it() -> None:
    drawn = []
    with globals_kept():
        for numbers in itertools.product((0, 1), (0, 1, 2), (0, 7, 8)):
            seed_generators(*numbers)
            drawn.append((random.random(), np.random.random()))  # noqa: NPY002
        seed_generators(1, 2, 8)
        assert (random.random(), np.random.random()) == drawn[-1]  # noqa: NPY002
    assert len({of_python for of_python, _ in drawn}) == len({of_numpy for _, of_numpy in drawn}) == 18


def _python_put_back() -> float:
    state = random.getstate()
    drawn = random.random()
    random.setstate(state)
    return drawn


def _numpy_put_back() -> float:
    state = np.random.get_state()  # noqa: NPY002
    drawn = np.random.random()  # noqa: NPY002
    np.random.set_state(state)  # noqa: NPY002
    return drawn


def _raises_at_rest() -> float:
    state = random.getstate()
    seed_generators(3)
    at_rest = random.random()
    random.setstate(state)
    if (drawn := random.random()) == at_rest:
        raise ValueError(drawn)
    return drawn


_DRAWN_BY: dict[str, Callable[[int], Any]] = {
    "nothing": lambda number: number,
    "Python's": lambda number: random.random(),
    "Python's kept half": lambda number: random.gauss(),
    "NumPy's": lambda number: np.random.random(),  # noqa: NPY002
    "NumPy's kept half": lambda number: np.random.standard_normal(),  # noqa: NPY002
    "now and then": lambda number: number == 7 and random.random(),
    "the one as the other says": lambda number: random.random() < 0.3 and np.random.random(),  # noqa: NPY002
    "a seed of its own": lambda number: (random.seed(5), random.random()),
    "the state": lambda number: random.getstate(),
    "Python's, put back": lambda number: _python_put_back(),
    "NumPy's, put back": lambda number: _numpy_put_back(),
    "what raises at rest": lambda number: _raises_at_rest(),
}


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("name", _DRAWN_BY)
def test_code_finds_the_generators_seeded_by_sample_whatever_it_draws(name: str, block: int) -> None:
    code, expected = _DRAWN_BY[name], []
    with globals_kept():
        for number in range(16):
            seed_generators(3, 2, number)
            expected.append(code(number))
        seeds, made = SampleSeeds(3), []
        for first in range(0, 16, block):
            numbers = range(first, min(16, first + block))

            def each(seed: Callable[[int], object], numbers: Sequence[int] = numbers) -> list[Any]:
                return [code(number) for row, number in enumerate(numbers) if not seed(row)]

            made += seeds.make([(2, number) for number in numbers], each)
            seeds = pickle.loads(pickle.dumps(seeds))
    assert made == expected


@pytest.mark.parametrize(("name", "asked"), [("nothing", ["together"]), ("NumPy's", ["together", "each"])])
def test_samples_are_made_together_where_they_draw_nothing(name: str, asked: list[str]) -> None:
    code, calls, seeds, samples = _DRAWN_BY[name], list[str](), SampleSeeds(3), [(0, row) for row in range(8)]

    def each(seed: Callable[[int], object]) -> list[Any]:
        calls.append("each")
        return [code(row) for row in range(8) if not seed(row)]

    def together() -> list[Any]:
        calls.append("together")
        return [code(row) for row in range(8)]

    with globals_kept():
        made = seeds.make(samples, each, together)
        assert (seeds.make(samples, each, together), calls) == (made, [*asked, asked[-1]])
        assert seeds.make(samples, each) == made


class _Generator:
    """One number is its state."""

    state = 5

    def manual_seed(self, seed: int) -> None:
        self.state = seed


class _Torch:
    """Stands for torch, which a loader of pictures has loaded."""

    def __init__(self) -> None:
        self.default_generator, self.of_a_gpu = _Generator(), _Generator()

    def manual_seed(self, seed: int) -> None:
        for generator in (self.default_generator, self.of_a_gpu):
            generator.manual_seed(seed)

    def get_rng_state(self) -> int:
        return self.default_generator.state

    def set_rng_state(self, state: int) -> None:
        self.default_generator.state = state


def test_torchs_generator_is_seeded_for_each_sample_and_left_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = _Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    seeds = set()
    with globals_kept():
        for sample in range(3):
            seed_generators(0, 1, sample)
            seeds.add(torch.default_generator.state)
    assert len(seeds - {5}) == 3
    assert torch.default_generator.state == torch.of_a_gpu.state == 5


@pytest.mark.parametrize("samples", [3, 8])
def test_torch_that_code_loads_is_seeded_from_that_sample_on(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, keys = _Torch(), [(0, row) for row in range(samples)]
    monkeypatch.setitem(sys.modules, "torch", None)

    def each(seed: Callable[[int], object]) -> list[int]:
        states = []
        for row in range(samples):
            seed(row)
            if row == 2:
                monkeypatch.setitem(sys.modules, "torch", torch)
            states.append(torch.default_generator.state)
        return states

    with globals_kept():
        assert SampleSeeds(3).make(keys, each)[2:] == [derive_key(3, "globals", *key) % 2**63 for key in keys[2:]]
        monkeypatch.setitem(sys.modules, "torch", None)


def test_torch_that_a_trial_loads_goes_on_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(
        "class default_generator:\n"
        "    state = 'as it begins'\n"
        "    @classmethod\n"
        "    def seed(cls): cls.state = 'by chance'\n"
        "def get_rng_state(): return default_generator.state\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)  # so that the true one, if there is one, comes back
    del sys.modules["torch"]
    finders = list(sys.meta_path)
    with globals_kept():
        seed_generators(0, 1, 2)
        assert sys.meta_path == finders
        torch: Any = importlib.import_module("torch")
    assert torch.default_generator.state == "by chance"


def test_what_a_trial_has_used_goes_on_the_next_time() -> None:
    own, drawn = OwnGlobals(), []
    with own.used():
        seed_generators(0, 1, 2)
        drawn.append(random.random())
    with own.used():
        drawn.append(random.random())
    with globals_kept():
        seed_generators(0, 1, 2)
        assert [random.random(), random.random()] == drawn


def test_a_trial_leaves_the_global_generators_where_they_were() -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    expected = random.random(), np.random.random()  # noqa: NPY002
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    with globals_kept():
        seed_generators(0, 1, 2)
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002
