"""Errors of pure code: orders, samplers, states, hooks and transforms. errors.txt has the words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from blobfeed.supplies import (
    HookSampler,
    IterableSampler,
    MixedOrder,
    check_weights,
    draw_epoch,
    draws_per_pattern,
    make_order,
)
from blobfeed.workers.api import Transform, by_name
from blobfeed.workers.loading import CropMirror
from blobfeed.workers.plan import Plan

from blobfeed import ArraySpec
from tests.support.batches import batches
from tests.support.catalogue import Catalogue, Scenario

from ..loading.test_row_maker import CROP, maker, row_of, sample
from .test_plan import SAMPLES, indexed, stream
from .test_sampled_plan import plan_of

pytestmark = pytest.mark.pure


# ---- orders and samplers


def drawn(sampler: HookSampler | IterableSampler) -> Scenario:
    return lambda _: draw_epoch(sampler, 4, seed=7, samples=100, batch_size=8)


def hook(result: Any, *, gives_batches: bool = False) -> Scenario:
    return drawn(HookSampler("sampler()", lambda epoch, samples, rng: result, gives_batches=gives_batches))


def _breaks_its_word() -> IterableSampler:
    sampler = IterableSampler("sampler list", [1, 2], gives_batches=False)
    sampler.about = msgspec.structs.replace(sampler.about, length=3)
    return sampler


def mixed(*weights: float, samples: int = 5) -> Scenario:
    return lambda _: MixedOrder([5] * (len(weights) - 1) + [samples], weights, shuffle=True, seed=0)


ORDERS: dict[str, Scenario] = {
    "no samples": lambda _: make_order(0, shuffle=True, seed=0),
    "chunks of -2 samples": lambda _: make_order(10, shuffle="chunk", seed=0, chunk_samples=-2),
    "windows of 0 chunks": lambda _: make_order(10, shuffle="chunk", seed=0, chunk_samples=2, window_chunks=0),
    "a source of a mix without samples": mixed(1, 1, samples=0),
    "a weight of 0": mixed(1, 0),
    "a weight below 0": mixed(1, -0.5),
    "a weight that is no number": mixed(float("nan"), 1),
    "an infinite weight": mixed(float("inf"), 1),
    "a weight of a millionth": mixed(1, 1e-6),
    "a weight that no pattern draws": lambda _: draws_per_pattern([1, 8192]),
    "no full round": lambda _: batches(30, 16, "drop", world_size=2),
    "fewer samples than ranks": lambda _: batches(2, 16, "partial", world_size=3),
}
DRAWN: dict[str, Any] = {
    "an index beyond the samples": [1, 2, 100],
    "an index below 0": [-1],
    "no samples": [],
    "a fraction": np.array([1.5]),
    "a mask": np.array([True]),
    "two axes": np.zeros((2, 2), np.int64),
    "lists in a list": [[1, 2], [3]],
    "nothing": None,
}
DRAWN_BATCHES: dict[str, Any] = {
    "a batch that is too large": [[1], range(9)],
    "a batch without samples": [[1], []],
    "no batches": [],
    "nothing": None,
    "a fraction": [[1], [2.5]],
    "an index beyond the samples": [[1], [100]],
}
WEIGHTS: dict[str, Any] = {
    "too few": [1.0, 2.0],
    "one below 0": [1, 1, -1, 1],
    "one that is no number": [1, np.nan, 1, 1],
    "all of them 0": [0, 0, 0, 0],
    "words": ["a"] * 4,
    "one beyond all floats": [10**400, 1, 1, 1],
    "an infinite sum": [1e308] * 4,
}


# ---- states


def other(plan: Plan, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Scenario:
    """The plan's own state, changed."""
    return lambda _: plan.resumed(change(plan.begin().state()))


def changed(name: str, value: object) -> Scenario:
    return other(stream(), lambda state: {**state, name: value})


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "empty": lambda _: {},
    "with a name more": lambda state: {**state, "more": 1},
    "of a later version": lambda state: {**state, "version": 9},
    "of version 1": lambda state: {**state, "version": 1},
    "with batches as text": lambda state: {**state, "batches": "1"},
    "with -1 batches": lambda state: {**state, "batches": -1},
    "with true batches": lambda state: {**state, "batches": True},
    "with 1.0 batches": lambda state: {**state, "batches": 1.0},
    "with another seed": lambda state: {**state, "seed": 6},
}
OF_VERSION_1 = {"version": 1, "batches": 3, "position": 12, "samples": SAMPLES, "seed": 5, "shuffle": "True"}
SAMPLED = {"version": 3, "samples": SAMPLES, "sampler": "sampler {weights}"}
OF_A_STREAM = {"batch_size": 5, "shards": 3, "last_batch": "drop", "world_size": 2, "capacity": 7, "epochs": 3}

STATES: dict[str, Scenario] = {
    **{f"a state {name}": other(indexed(), change) for name, change in CHANGES.items()},
    **{f"a stream's state {name}": other(stream(), change) for name, change in CHANGES.items()},
    "a whole state of version 1": other(indexed(), lambda _: OF_VERSION_1),
    "a state of a sampler without one": other(indexed(), lambda _: SAMPLED),
    "a state of no stream for one": other(stream(), lambda _: dict(indexed().begin().state())),
    "a state of other samples": other(indexed(), lambda state: {**state, "samples": 11}),
    "a state of another order": other(indexed(), lambda state: {**state, "shuffle": "chunk"}),
    **{f"a stream's state of another {name}": changed(name, value) for name, value in OF_A_STREAM.items()},
    "a stream's state of fewer epochs that join": lambda _: stream(last_batch="wrap", epochs=5).resumed(
        stream(last_batch="wrap", epochs=2).begin().state()
    ),
    "a batch behind the last one": lambda _: indexed().at_batch(10),
    "a batch before the first one": lambda _: indexed().at_batch(-1),
    "a batch of a stream": lambda _: stream().at_batch(1),
    "a state with weights of before": other(plan_of(12), lambda state: {**state, "weights": "[[1, 2]]"}),
    "weights for a sampler that takes none": lambda _: IterableSampler("s", [1], gives_batches=False).reweighed([1], 1),
    "weights without a sampler": lambda _: indexed().reweighed([1]),
    "samples that a sampler does not tell": lambda _: plan_of(None, epochs=2).supply.samples,
}


# ---- hooks and transforms


def named(result: Any, *tops: str) -> Scenario:
    return lambda _: by_name(result, tops or ("one", "two"), "decode returned")


def decoding(first: Any, then: Any = None, **how: Any) -> Scenario:
    """A hook that makes `first` of the first sample and `then` of the next; each may be a function of its data."""

    def decode(raw: Any, _: object) -> Any:
        made = then if raw.index else first
        return (made(raw["data"]), raw["label"]) if callable(made) else made

    return lambda _: row_of(maker(decode, **how), sample(1))


def later(change: Any, **how: Any) -> Scenario:
    """A hook that gives back the first sample, and the next one changed."""
    return decoding(lambda data: data, change, tops=("data", "label"), **how)


def transformed(options: Transform, *shape: int) -> Scenario:
    return lambda _: CropMirror(options, train=True).output_spec(ArraySpec(shape, np.dtype("uint8")))


def _too_small_for_its_crop(_folder: Path) -> Any:
    return CropMirror(Transform(crop_size=50), train=True).draw((3, 49, 77), np.random.default_rng(3))


VALUES: dict[str, Any] = {
    "a time in seconds": 1763793000.25,
    "a whole number that float32 rounds": -16777217.0,
    "a number beyond float32": 1e300,
    "nothing": None,
    "a set": {1},
    "a number beyond int64": 2**70,
    "an array of objects": np.array([None]),
    "a masked array": np.ma.masked_array([1.0, 9e9], mask=[False, True]),
    "lists of unequal lengths": [[1], [1, 2]],
}
RESULTS: dict[str, Any] = {
    "three arrays": (1, 2, 3),
    "a list of one": [1],
    "an empty tuple": (),
    "a top less": {"one": 1},
    "a top more": {"one": 1, "two": 2, "three": 3},
    "numbers for names": {1: 1, 2: 2},
    "one array": np.ones(2),
    "nothing": None,
}
LATER: dict[str, Callable[[Any], Any]] = {
    "a channel less": lambda data: data[:-1],
    "an axis more": lambda data: data[..., None],
    "one pixel": lambda data: data[:1, :1, :1],
    "float32": lambda data: data.astype(np.float32),
    "int8": lambda data: data.astype(np.int8),
    "a number": lambda _: 5,
    "a text": lambda _: "text",
}
TO_CROP: dict[str, Callable[[Any], Any]] = {
    "one channel": lambda data: data[:1],  # would go to all three by broadcasting
    "two axes": lambda data: data[0],
    "float64": lambda data: data + 0.5,  # would be cut to whole numbers
}
HOOKS: dict[str, Scenario] = {
    **{f"a value, {name}": named({"top": value}, "top") for name, value in VALUES.items()},
    **{f"a result, {name}": named(result) for name, result in RESULTS.items()},
    "a first result, nothing": decoding(None),
    "a first result, an empty mapping": decoding({}),
    "a first result, a number for a name": decoding({1: 1}),
    "a first result without a top that was chosen": decoding({"left": 1, "right": 2}, tops=("left", "top")),
    **{f"a later result, {name}": later(change) for name, change in LATER.items()},
    "a later result, a top less": later(np.zeros((3, 4, 6), np.uint8)),
    "a later result, a longer text": decoding({"top": "im9"}, {"top": "im10"}),
    "a later result, float64": decoding({"top": np.zeros(3, np.float32)}, {"top": np.zeros(3)}),
    "a later result, more rows": decoding({"top": np.zeros((2, 4))}, {"top": np.zeros((3, 4))}),
    "a later result, more rows to concatenate": decoding(
        {"top": np.zeros((2, 4))}, {"top": np.zeros((3, 4))}, concatenate=("top",)
    ),
    "a later result, wider rows to concatenate": decoding(
        {"top": np.zeros((2, 4))}, {"top": np.zeros((2, 5))}, concatenate=("top",)
    ),
    "a later result, above its maximum": decoding(
        lambda data: data[:, :1], lambda data: data[:, :3], max_shapes={"data": (3, 2, 6)}, tops=("data", "label")
    ),
    "a later result, float64 where shapes vary": later(lambda data: data / 2, max_shapes={"data": (3, 4, 6)}),
    **{f"a later result to crop, {name}": later(change, transform=CROP) for name, change in TO_CROP.items()},
    "an unknown top": lambda _: maker(tops=("data", "depth")),
    "a maximum of an unknown top": lambda _: maker(max_shapes={"depth": (1,)}),
}
TRANSFORMS: dict[str, Scenario] = {
    "a crop larger than the image": transformed(Transform(crop_size=33), 3, 32, 64),
    "an image of two axes": transformed(Transform(crop_size=8), 32, 64),
    "four channels as gray": transformed(Transform(force_gray=True), 4, 8, 8),
    "two channels as colour": transformed(Transform(force_color=True), 2, 8, 8),
    "channels that come last": transformed(Transform(mirror=True), 40, 48, 3),
    "one channel that comes last": transformed(Transform(crop_size=32), 40, 48, 1),
    "a later image smaller than its crop": _too_small_for_its_crop,
}

ERRORS = Catalogue(
    Path(__file__).with_name("errors.txt"),
    {
        **ORDERS,
        **{f"a sampler, {name}": hook(result) for name, result in DRAWN.items()},
        **{f"a batch_sampler, {name}": hook(result, gives_batches=True) for name, result in DRAWN_BATCHES.items()},
        "a sampler of another length than it says": drawn(_breaks_its_word()),
        **{
            f"weights, {name}": lambda _, values=values: check_weights(values, 4, "set_weights")  # type: ignore[misc]
            for name, values in WEIGHTS.items()
        },
        **STATES,
        **HOOKS,
        **TRANSFORMS,
    },
)


@pytest.mark.parametrize("name", ERRORS.scenarios)
def test_the_error_is_the_one_in_the_catalogue(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    ERRORS.check(name, tmp_path, update=pytestconfig.getoption("--update"))


def test_the_catalogue_has_these_scenarios_and_no_others() -> None:
    ERRORS.check_names()
