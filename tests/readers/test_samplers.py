"""Samplers in a running pipeline: what comes is what a few lines of NumPy say, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.api import HookBatch, Parameters
from blobfeed.workers.loading import Workplace
from blobfeed.workers.order import BalancedSampler, draw_epoch, sampler_rng
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.transport import Activity, Draw, SharedFile, Unwatched

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer, ParameterError, Sample, SampleError, SourceError
from tests.support.leftovers import descriptors
from tests.support.pipelines import Numbered
from tests.support.reader_data import write_hdf5
from tests.support.sampled import expected_batches
from tests.support.waiting import DEADLINE_S, is_gone, wait_until

from .wrong.samples import hanging

SAMPLES, SEED, BATCH = 60, 11, 8
WEIGHTS = np.arange(SAMPLES, dtype=np.float64) ** 2
SUBSET = np.arange(0, SAMPLES, 3)
LENGTHS = np.arange(SAMPLES) * 7 % 13
"""As if the samples were texts."""


def varying(epoch: int, samples: int, rng: np.random.Generator) -> Any:
    """Another number in each epoch, some twice."""
    return rng.integers(samples, size=20 + 9 * (epoch % 3))


def bucketed(epoch: int, samples: int, rng: np.random.Generator) -> Iterator[Any]:
    """Samples of about the same length together, as many as make up 40."""
    batch: list[int] = []
    for index in rng.permutation(samples)[np.argsort(LENGTHS[:samples], kind="stable")]:
        if len(batch) == BATCH or LENGTHS[[*batch, index]].sum() > 40:
            yield np.array(batch)
            batch = []
        batch.append(int(index))
    yield np.array(batch)


ORDERS: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "weighted": (
        {"sampler": {"weights": WEIGHTS, "draws": 45}},
        lambda epoch: sampler_rng(SEED, epoch).choice(SAMPLES, 45, p=WEIGHTS / WEIGHTS.sum()),
    ),
    "subset": ({"sampler": {"indices": SUBSET}}, lambda epoch: SUBSET),
    "shuffled subset": (
        {"sampler": SUBSET.tolist(), "shuffle": True},
        lambda epoch: sampler_rng(SEED, epoch).permutation(SUBSET),
    ),
    "balanced": (
        {"sampler": {"balance": "label", "draws": 70}},
        lambda epoch: (
            draw_epoch(
                BalancedSampler("label", lambda: np.arange(SAMPLES), 70),
                epoch,
                seed=SEED,
                samples=SAMPLES,
                batch_size=1,
            ).indices
        ),
    ),
    "a function": ({"sampler": varying}, lambda epoch: varying(epoch, SAMPLES, sampler_rng(SEED, epoch))),
    "bucketed": ({"batch_sampler": bucketed}, lambda epoch: list(bucketed(epoch, SAMPLES, sampler_rng(SEED, epoch)))),
}


def expected(order: str, epochs: int = 3, **values: Any) -> list[list[int]]:
    drawn = [ORDERS[order][1](epoch) for epoch in range(epochs + 1)]
    batches = expected_batches(
        drawn, batch_size=BATCH, epochs=epochs, gives_batches="batch_sampler" in ORDERS[order][0], **values
    )
    assert not isinstance(batches, str)
    return batches


def source(**given: Any) -> Numbered:
    return Numbered(SAMPLES, **({"items": 4} | given))


def reader_of(order: str, epochs: int = 3, **values: Any) -> BatchReader:
    settings: dict[str, Any] = {"batch_size": BATCH, "epochs": epochs, "seed": SEED, "last_batch": "wrap"}
    settings |= {"num_loaders": 2, "timeout_s": DEADLINE_S}
    return BatchReader(source(), **(settings | ORDERS[order][0] | values))


def read(**values: Any) -> BatchReader:
    """One epoch in batches of four, in this process, unless `values` say otherwise."""
    return BatchReader(source(), **({"batch_size": 4, "epochs": 1, "num_loaders": 0, "seed": SEED} | values))


def labels(batches: Any) -> list[list[int]]:
    """What lies in the tops; the reader must say the same of it."""
    found = []
    for batch in batches:
        assert batch["label"].tolist() == batch["data"][:, 0].tolist() == batch.indices.tolist()
        found.append(batch["label"].tolist())
    return found


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("last_batch", ["wrap", "drop", "partial"])
def test_the_order_is_that_of_plain_numpy_for_each_rank_and_goes_on_from_a_state(order: str, last_batch: str) -> None:
    for rank, world_size in ((0, 1), (0, 2), (1, 2))[: 1 if last_batch == "partial" else 3]:
        values: dict[str, Any] = {"rank": rank, "world_size": world_size, "last_batch": last_batch, "num_loaders": 0}
        whole = expected(order, rank=rank, world_size=world_size, last_batch=last_batch)
        for taken in (len(whole) // 2, len(whole) - 1):
            with reader_of(order, **values) as reader:
                before = labels(islice(reader, taken))
                state = json.loads(json.dumps(reader.state_dict()))
            with reader_of(order, **values) as reader:
                reader.load_state_dict(state)
                assert before + labels(reader) == whole, f"resumed after {taken} batches"


@pytest.mark.parametrize("order", ["weighted", "a function", "bucketed"])
@pytest.mark.parametrize("last_batch", ["wrap", "drop", "partial"])
def test_one_loop_follows_the_other(order: str, last_batch: str) -> None:
    with reader_of(order, 1, last_batch=last_batch, num_loaders=0) as reader:
        found = [labels(reader) for _ in range(3)]
        state = reader.state_dict()
        fourth = labels(reader)
    if last_batch != "wrap" or order == "bucketed":
        assert [*chain.from_iterable(found)] == expected(order, last_batch=last_batch)
    with reader_of(order, 1, last_batch=last_batch, num_loaders=0) as reader:
        reader.load_state_dict(state)
        assert labels(reader) == fourth


def test_the_length_is_known_where_every_epoch_is_as_long() -> None:
    with reader_of("weighted", 2, last_batch="partial") as reader:
        assert len(reader) == len(expected("weighted", 2, last_batch="partial")) == 12
        assert reader.samples == 45
    with reader_of("a function") as reader, pytest.raises(TypeError):
        len(reader)


def _kill(pipeline: Pipeline, *, drawing: bool) -> None:
    """One loader, the one that draws if it does, unless it has just died."""
    states = [state for state in pipeline.activities() if state.pid]
    draw = [state.pid for state in states if state.activity is Activity.SAMPLING] if drawing else []
    victims = draw or [state.pid for state in states]
    with contextlib.suppress(ProcessLookupError):
        os.kill(random.choice(victims or [0x7FFFFFFF]), signal.SIGKILL)


@pytest.mark.parametrize("order", ["weighted", "bucketed"])
def test_killed_loaders_and_samplers_change_nothing(order: str) -> None:
    given = Parameters(
        source={}, batch_size=BATCH, epochs=4, seed=SEED, num_loaders=3, timeout_s=DEADLINE_S, **ORDERS[order][0]
    )
    found = []
    with Pipeline(given, source=source(items=70_000)) as pipeline:
        for number in range(len(whole := expected(order, 4))):
            batch = pipeline.take()
            found.append(np.asarray(batch.tops["label"]).tolist())
            pipeline.release(batch)
            if number % 4 == 1:
                _kill(pipeline, drawing=False)
            if number % 4 == 3:
                _kill(pipeline, drawing=True)
    assert found == whole


# ---- what goes wrong


def raising(epoch: int, samples: int, rng: np.random.Generator) -> Any:
    if epoch == 1:
        raise KeyError("no such class")
    return np.arange(10)


def read_all(**values: Any) -> list[list[int]]:
    with read(**({"epochs": 2, "num_loaders": 2, "timeout_s": DEADLINE_S} | values)) as reader:
        return [batch["label"].tolist() for batch in reader]


def test_an_exception_is_told_behind_the_batches_before_it() -> None:
    with read(epochs=2, sampler=raising, last_batch="partial", num_loaders=1) as reader:
        loop = iter(reader)
        found = [next(loop)["label"].tolist() for _ in range(3)]
        with pytest.raises(SourceError) as told:
            next(loop)
        with pytest.raises(SourceError):
            next(loop)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert isinstance(told.value.__cause__, KeyError)
    assert "in raising" in "".join(told.value.__cause__.__notes__)


class Endless:
    """Its name has no end."""

    def __repr__(self) -> str:
        return "x" * 10_000_000


def test_even_what_takes_megabytes_to_name_is_told() -> None:
    with pytest.raises(SourceError) as caught:
        read_all(sampler=lambda epoch, samples, rng: Endless())
    assert len(str(caught.value)) < 10_000


def test_an_epoch_is_drawn_again_by_the_loader_that_takes_the_place_of_a_dead_one(tmp_path: Path) -> None:
    died = tmp_path / "died"

    def exiting_once(epoch: int, samples: int, rng: np.random.Generator) -> Any:
        if epoch == 1 and not died.exists():
            died.touch()
            os._exit(9)
        return rng.permutation(samples)[:10]

    found = read_all(sampler=exiting_once, num_loaders=1)
    assert died.exists()
    assert found == read_all(sampler=exiting_once, num_loaders=0)


def test_a_sampler_that_hangs_is_named_when_no_batch_comes() -> None:
    with Pipeline(Parameters(source={}, batch_size=4, sampler=hanging), source=source()) as pipeline:
        pipeline.start()
        wait_until(
            lambda: any(each.activity is Activity.SAMPLING for each in pipeline.activities()),
            "the loader that draws says what it does",
        )
        pids = [state.pid for state in pipeline.activities()]
    wait_until(lambda: all(map(is_gone, pids)), "the loaders have ended with the pipeline")


@pytest.mark.parametrize("given", [{"sampler": list(range(10))}, {"batch_sampler": [[0, 1], [2, 3]]}])
def test_what_is_left_for_no_round_of_another_size_is_dropped(given: dict[str, Any]) -> None:
    with read(last_batch="drop", **given) as reader:
        next(iter(reader))
        state = reader.state_dict()
    ranks = 2 if "batch_sampler" in given else 1
    with read(last_batch="drop", batch_size=8, rank=0, world_size=ranks, **given) as reader:
        whole = labels(reader)
        reader.load_state_dict(state)
        assert [labels(reader) for _ in range(3)] == [whole] * 3


class _Nested:
    class Drawing:
        def __call__(self, epoch: int, samples: int, rng: np.random.Generator) -> list[int]:
            return [3, 1, 2, 0]


@pytest.mark.parametrize(("sampler", "called"), [(varying, "sampler varying"), (_Nested.Drawing(), "sampler Drawing")])
def test_a_state_names_a_function_without_where_it_stands(sampler: Any, called: str) -> None:
    with read(sampler=sampler) as reader:
        assert reader.state_dict()["sampler"] == called


# ---- sources and files


def test_files_and_labels_come_from_where_the_source_does(tmp_path: Path) -> None:
    spec = write_hdf5(tmp_path / "train.h5", SAMPLES)
    np.save(tmp_path / "some.npy", SUBSET)
    (tmp_path / "some.txt").write_text("\n".join(map(str, SUBSET)))
    for name in ("some.npy", "some.txt"):
        settings: dict[str, Any] = {"batch_size": BATCH, "epochs": 1, "last_batch": "partial", "num_loaders": 0}
        with BatchReader(spec, sampler={"indices": name}, base_dir=tmp_path, **settings) as reader:
            assert np.concatenate([batch.indices for batch in reader]).tolist() == SUBSET.tolist()


def test_labels_of_any_source_can_be_balanced_and_need_be_no_top(tmp_path: Path) -> None:
    data, label = np.arange(SAMPLES), np.array([0] * 50 + [1] * 10)
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file["data"], file["label"] = data, label.astype(np.float32)
    np.savez(tmp_path / "train.npz", data=data, label=label)
    arrays = {"arrays": {"data": data, "label": label}}
    hdf5, npz = {"hdf5": {"path": str(tmp_path / "train.h5")}}, {"npz": {"path": str(tmp_path / "train.npz")}}
    settings: dict[str, Any] = {"batch_size": 10, "epochs": 1, "tops": "data", "num_loaders": 0}
    for given in (hdf5, arrays, npz, {"concat": [hdf5, hdf5]}, {"concat": [arrays, npz]}):
        with BatchReader(given, **settings, sampler={"balance": "label", "draws": 40}) as reader:
            found = np.concatenate([batch["data"] for batch in reader])
        assert np.bincount(label[found]).tolist() == [20, 20]


@pytest.mark.parametrize("dtype", ["U5", "S5"])
def test_classes_that_are_names_can_be_balanced(dtype: str) -> None:
    names = np.array(["rare"] * 5 + ["often"] * 55, dtype)
    source = {"arrays": {"data": np.arange(60), "name": names}}
    with BatchReader(source, batch_size=10, epochs=1, num_loaders=0, sampler={"balance": "name"}) as reader:
        found = np.concatenate([batch["name"] for batch in reader])
    assert np.count_nonzero(found == names[0]) == 30


def test_chunks_of_any_order_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file.create_dataset("data", data=np.arange(SAMPLES), chunks=(7,), compression="gzip")
    settings: dict[str, Any] = {"batch_size": BATCH, "epochs": 3, "seed": SEED, "sampler": varying, "tops": "data"}
    settings |= {"last_batch": "wrap", "num_loaders": 0}
    with BatchReader({"hdf5": {"path": str(tmp_path / "train.h5")}}, **settings) as reader:
        assert [batch["data"].tolist() for batch in reader] == expected("a function")


def noisy(sample: Sample, rng: np.random.Generator) -> Any:
    if sample.index == 7:
        raise ValueError("seven")
    return {"data": np.add(sample["data"], rng.integers(1000)), "label": sample["label"]}


def test_bad_samples_are_replaced_and_told() -> None:
    with read(sampler=[1, 7, 2, 7, 3], epochs=2, decode=noisy, on_error="replace") as reader:
        for batch in reader:
            assert batch["label"].tolist() == batch.indices.tolist()
            assert 7 not in batch.indices
        assert reader.statistics().replaced > 1


def left_out_is_bad(sample: Sample, rng: np.random.Generator) -> Any:
    """One sample that the sampler draws, and all that it leaves out would be seen."""
    if sample.index == 3:
        raise ValueError("three")
    return {"label": sample["label"], "noise": rng.integers(1 << 40)}


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": {"indices": SUBSET}, "shuffle": True},
        {"sampler": {"weights": np.isin(np.arange(SAMPLES), SUBSET)}},
        {"batch_sampler": lambda epoch, samples, rng: np.split(rng.permutation(SUBSET), 5)},
    ],
    ids=["indices", "weights", "batches"],
)
def test_no_sample_that_the_sampler_leaves_out_takes_the_place_of_a_bad_one(given: dict[str, Any]) -> None:

    def found(num_loaders: int, resumed_at: int = -1) -> list[tuple[list[int], list[int]]]:
        values = {"epochs": 6, "decode": left_out_is_bad, "on_error": "replace", **given}
        with read(num_loaders=num_loaders, **values) as reader:
            if resumed_at >= 0:
                reader.load_state_dict(states[resumed_at])
            batches = []
            for batch in reader:
                batches.append((batch["label"].tolist(), batch["noise"].tolist()))
                states.append(reader.state_dict())
        return batches

    states: list[Any] = []
    alone = found(0)
    assert set(chain(*(labels for labels, _ in alone))) <= set(SUBSET.tolist()) - {3}
    assert found(2) == alone
    assert found(0, resumed_at=6) == alone[7:]


def test_a_sampler_of_one_sample_has_no_other_to_take_its_place() -> None:
    with (
        pytest.raises((SampleError, ValueError)),
        read(sampler=[3, 3], decode=left_out_is_bad, on_error="replace") as one,
    ):
        list(one)


def bad_at_zero(sample: Sample, rng: np.random.Generator) -> Any:
    if sample.index == 0:
        raise ZeroDivisionError
    return {"label": sample["label"]}


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": {"indices": [3, 5, 7, 9]}},
        {"sampler": {"weights": [0] * 5 + [1] * 55}},
        {"sampler": lambda epoch, samples, rng: np.arange(1, samples)},
        {"batch_sampler": [[5, 3], [7]]},
    ],
    ids=["indices", "weights", "a function", "batches"],
)
def test_a_bad_sample_that_the_sampler_leaves_out_is_nobodys_business(given: dict[str, Any]) -> None:
    with read(decode=bad_at_zero, **given) as reader:
        assert 0 not in chain(*(batch["label"].tolist() for batch in reader))


def test_a_bad_sample_that_the_sampler_begins_with_is_told_in_setup() -> None:
    with pytest.raises(ZeroDivisionError):
        read(sampler={"indices": [0, 3]}, decode=bad_at_zero)


def tell(batch: HookBatch, rng: np.random.Generator) -> Any:
    """What the hook knows of its batch comes out beside it."""
    noise = rng.integers(1 << 40, size=len(batch.indices))
    return {"told": batch.indices, "epoch": np.full(len(noise), batch.epoch), "noise": noise}


@pytest.mark.parametrize("order", ["a function", "bucketed"])
def test_a_postprocess_hook_knows_the_samples(order: str) -> None:
    noise = []
    for num_loaders in (0, 3):
        with reader_of(order, postprocess=tell, num_loaders=num_loaders) as reader:
            batches = list(reader)
        assert [batch["told"].tolist() for batch in batches] == expected(order)
        assert all(set(batch["epoch"].tolist()) == {batch.epoch} for batch in batches)
        noise.append([batch["noise"].tolist() for batch in batches])
    assert noise[0] == noise[1]
    assert len({str(numbers) for numbers in noise[0]}) == len(noise[0])


def _noise(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
    return {"noise": np.array([sample.index, rng.integers(2**62), np.random.randint(2**31)])}  # noqa: NPY002


@pytest.mark.parametrize("num_loaders", [0, 2])
def test_copies_of_a_sample_have_random_numbers_of_their_own(num_loaders: int) -> None:
    """The first copy has those of the sample in any other order."""
    drawn = [3, 1, 3, 3, 1, 0, 2, 3, 9, 9, 9]
    with read(last_batch="partial", decode=_noise) as reader:
        by_sample = np.concatenate([batch["noise"] for batch in reader])
    values = {"last_batch": "partial", "decode": _noise, "sampler": drawn, "num_loaders": num_loaders}
    with read(**values) as reader:
        rows = [batch["noise"] for batch in islice(reader, 1)]
        state = reader.state_dict()
    with read(**values) as reader:
        reader.load_state_dict(state)
        rows = np.concatenate([*rows, *(batch["noise"] for batch in reader)]).tolist()
    assert [row[0] for row in rows] == drawn
    for index in set(drawn):
        copies = [row for row in rows if row[0] == index]
        assert copies[0] == by_sample[index].tolist()
        assert len({row[1] for row in copies}) == len({row[2] for row in copies}) == len(copies)


# ---- torch's samplers, and a layer's


def test_samplers_of_torch_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    weights = WEIGHTS.tolist()
    for sampler, loaders in (
        (RandomSampler(range(SAMPLES)), 1),
        (WeightedRandomSampler(weights, 30, generator=torch.Generator()), 0),
        (SubsetRandomSampler([5, 6, 7]), 0),
    ):
        runs = [_epochs_of(sampler=sampler, num_loaders=number) for number in (0, loaders)]
        assert runs[0] == runs[1]
        assert [len(epoch) for epoch in runs[0]] == [len(sampler)] * 2
        assert runs[0][0] != runs[0][1] or len(sampler) == 3
    batches = _epochs_of(batch_sampler=BatchSampler(RandomSampler(range(SAMPLES)), 7, drop_last=False), num_loaders=0)
    assert [sorted(epoch) for epoch in batches] == [list(range(SAMPLES))] * 2


def test_a_sampler_that_imports_torch_itself_is_seeded_in_its_first_epoch_too() -> None:
    pytest.importorskip("torch")

    def permuted(epoch: int, samples: int, rng: np.random.Generator) -> Any:
        import torch

        return torch.randperm(samples)

    first, second = (_epochs_of(sampler=permuted, num_loaders=number) for number in (0, 1))
    assert first == second
    assert first[0] != first[1]


def test_a_sampler_that_takes_its_ranks_part_is_refused_if_the_reader_takes_it_too() -> None:
    pytest.importorskip("torch")
    from torch.utils.data import BatchSampler, DistributedSampler

    samples: Any = range(SAMPLES)
    half: Any = DistributedSampler(samples, num_replicas=2, rank=0)
    givens: list[dict[str, Any]] = [
        {"sampler": half},
        {"batch_sampler": BatchSampler(half, 5, drop_last=False)},
        {"sampler": _Passing(half)},
    ]
    for given in givens:
        with pytest.raises(ParameterError):
            _epochs_of(**given, rank=0, world_size=2)
        assert [len(epoch) for epoch in _epochs_of(**given, rank=0, world_size=1, num_loaders=0)] == [SAMPLES // 2] * 2


class _Passing:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


def _epochs_of(**values: Any) -> list[list[int]]:
    with read(batch_size=BATCH, last_batch="partial", **values) as reader:
        return [[int(index) for batch in reader for index in batch["label"]] for _ in range(2)]


def test_only_the_loader_that_draws_imports_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large_module.py").write_text(
        "import os\nfrom pathlib import Path\n"
        f"with Path({str(tmp_path / 'importers')!r}).open('a') as file:\n"
        "    print(os.environ.get('BLOBFEED_ROLE', '-'), file=file)\n"
        "def sampler(epoch, samples, rng):\n    return [1, 2, 3, 4]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from large_module import sampler  # type: ignore[import-not-found]

    try:
        assert read_all(sampler=sampler) == [[1, 2, 3, 4]] * 2
    finally:
        del sys.modules["large_module"]
    assert (tmp_path / "importers").read_text().split() == ["-", "loader"]


class BucketLayer(MultiProcessInputLayer):
    """Each batch of one length; `self.extra` is there as in decode."""

    extra_parameters: ClassVar[Any] = {"first": 0}

    def batch_sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Iterator[Sequence[int]]:
        first = self.extra["first"]
        assert isinstance(first, int)
        yield [first, first + 1]
        yield [first + 2 + epoch]


class ReversedLayer(MultiProcessInputLayer):
    def sampler(self, epoch: int, samples: int, rng: np.random.Generator) -> Any:
        return np.arange(samples)[::-1]


def test_a_layer_may_have_a_sampler_of_its_own(tmp_path: Path) -> None:
    spec = write_hdf5(tmp_path / "train.h5", SAMPLES)
    given = {"source": spec, "batch_size": 3, "tops": ["data", "label"], "num_loaders": 0}
    with LayerHarness(BucketLayer, {**given, "first": 5}) as harness:
        shapes = [harness.forward()["label"].shape[0] for _ in range(4)]
        assert shapes == [2, 1, 2, 1]
    with BatchReader(spec, batch_size=3, num_loaders=0) as reader:
        stored = list(chain.from_iterable(batch["label"].tolist() for batch in islice(reader, 20)))
    with LayerHarness(ReversedLayer, given) as harness:
        assert harness.forward()["label"].tolist() == [stored[59], stored[58], stored[57]]


# ---- weights that are set while it runs


def _weighted(**values: Any) -> BatchReader:
    settings: dict[str, Any] = {"batch_size": 4, "epochs": None, "seed": SEED, "num_loaders": 2, "prefetch_batches": 2}
    return BatchReader(source(items=70_000), **(settings | {"sampler": {"draws": 40}} | values))


def only(*indices: int) -> Any:
    weights = np.zeros(SAMPLES)
    weights[list(indices)] = 1
    return weights


@pytest.mark.parametrize("size", [50, 64])
def test_weights_set_after_an_epoch_begin_behind_the_one_that_is_planned(size: int) -> None:
    numbers = {"arrays": {"label": np.arange(SAMPLES)}}
    settings: dict[str, Any] = {"batch_size": size, "epochs": 1, "last_batch": "wrap", "num_loaders": 1}
    with BatchReader(numbers, sampler={"draws": 1000}, **settings) as reader:
        for _ in reader:
            pass
        reader.set_weights(only(3))
        following = [batch for _ in range(2) for batch in reader]
    drawn = np.concatenate([batch["label"] for batch in following])
    first = 1000 - (-1000 % size) % size  # of epoch 1, what the first loop's last batch has not taken
    assert drawn[:first].tolist() == sampler_rng(0, 1).integers(SAMPLES, size=1000)[-first:].tolist()
    assert set(drawn[first:].tolist()) == {3}


@pytest.mark.parametrize(("after", "epoch"), [(0, 0), (5, 1), (6, 2)])
def test_weights_count_from_the_first_epoch_that_cannot_be_planned(after: int, epoch: int) -> None:
    """Of ten batches; five may be planned behind those that have come, however far the loaders are ahead."""
    with _weighted() as reader:
        loop = iter(reader)
        labels_ = [next(loop)["label"].tolist() for _ in range(after)]
        reader.set_weights(only(3))
        labels_ += [next(loop)["label"].tolist() for _ in range(30 - after)]
    assert [set(label) == {3} for label in labels_] == [number >= 10 * epoch for number in range(30)]
    if epoch:
        assert [*chain(*labels_[:10])] == sampler_rng(SEED, 0).integers(SAMPLES, size=40).tolist()


def _slow(sample: Any, rng: np.random.Generator) -> Any:
    time.sleep(0.002)
    return sample


def _first_by_new_weights(resumed_after: int = 0, **values: Any) -> int:
    """The number of the first batch that is drawn by weights that are set after 29 batches, of 40 in an epoch.

    Twelve more may be planned, one of them of the next epoch. If the slots that slow batches get counted, none would.
    """
    given = {"batch_size": 4, "seed": SEED, "num_loaders": 0, "sampler": {"draws": 160}, **values}
    taken: list[Any] = []
    state = None
    for stop in sorted({resumed_after, 90}):
        with BatchReader({"arrays": {"label": np.arange(SAMPLES)}}, **given) as reader:
            if state:
                reader.load_state_dict(state)
            for batch in islice(reader, stop - len(taken)):
                taken.append(set(batch["label"].tolist()))
                if len(taken) == 29:
                    reader.set_weights(only(3))
            state = reader.state_dict()
    return taken.index({3})


@pytest.mark.parametrize("values", [{"decode": _slow}, {"copy": False}, {"resumed_after": 1}])
@pytest.mark.parametrize("ahead", ["auto", 8])
def test_new_weights_begin_at_the_same_batch_however_long_one_takes(ahead: Any, values: dict[str, Any]) -> None:
    assert _first_by_new_weights(prefetch_batches=ahead, **values) == 80


BATCHES = [[1, 2], [3], [4, 5]]


@pytest.mark.parametrize(
    ("saved", "other"),
    [
        ({"sampler": {"weights": WEIGHTS, "draws": 45}}, {"sampler": {"weights": WEIGHTS[::-1].copy(), "draws": 45}}),
        ({"sampler": {"weights": WEIGHTS, "draws": 45}}, {"sampler": {"draws": 45}}),
        ({"sampler": {"draws": 45}}, {"sampler": {"weights": WEIGHTS, "draws": 45}}),
        ({"sampler": {"draws": 45}}, {"sampler": {"draws": 46}}),
        ({"sampler": {"draws": 45}}, {"sampler": {"indices": SUBSET}}),
        ({"sampler": {"balance": "label", "draws": 45}}, {"sampler": {"balance": "label"}}),
        ({"sampler": {"indices": SUBSET}}, {"sampler": {"indices": SUBSET[::-1].copy()}}),
        ({"sampler": SUBSET}, {"sampler": SUBSET, "shuffle": True}),
        ({"batch_sampler": BATCHES}, {"batch_sampler": BATCHES[:2]}),
        ({"batch_sampler": BATCHES}, {"batch_sampler": BATCHES[::-1]}),
    ],
)
def test_a_state_goes_on_only_in_the_order_that_it_was_saved_in(saved: Any, other: Any) -> None:
    with read(**saved) as reader:
        loop = iter(reader)
        next(loop)
        state = reader.state_dict()
        following = next(loop).indices.tolist()
    with read(**saved) as reader:
        reader.load_state_dict(state)
        assert next(iter(reader)).indices.tolist() == following
    with read(**other) as reader, pytest.raises(ParameterError):
        reader.load_state_dict(state)


def test_a_state_has_the_weights() -> None:
    with _weighted() as reader:
        loop = iter(reader)
        states, labels_ = [reader.state_dict()], []
        for number in range(36):
            if number in (3, 4, 9, 17):
                reader.set_weights(only(number, number + 1, number + 2))
                states[-1] = reader.state_dict()
            labels_.append(next(loop)["label"].tolist())
            states.append(json.loads(json.dumps(reader.state_dict())))
    for taken in (4, 5, 10, 18, 25):
        with _weighted(num_loaders=0) as resumed:
            resumed.load_state_dict(states[taken])
            known = [number for number in (3, 4, 9, 17) if number <= taken]
            later = min((number for number in (3, 4, 9, 17) if number > taken), default=36)
            found = [batch["label"].tolist() for batch in islice(resumed, later - taken)]
        assert known
        assert found == labels_[taken:later], f"resumed after {taken} batches"


def test_weights_set_in_every_step_take_no_more_memory() -> None:
    samples, steps = 100_000, 60
    numbers = {"arrays": {"label": np.arange(samples)}}
    with BatchReader(numbers, batch_size=4, num_loaders=1, sampler={"draws": 40}) as reader:
        for number, _ in enumerate(islice(reader, steps)):
            reader.set_weights(np.arange(samples) == number)
        (file,) = (number for number, target in descriptors().items() if "weights" in target)
        assert 0 < 512 * os.fstat(file).st_blocks < 20 * 8 * samples


def test_a_draw_by_weights_that_were_given_back_meanwhile_is_no_warning_of_numpys() -> None:
    given = Parameters(source={}, batch_size=4, sampler={"draws": 40})
    with (
        Pipeline(given, source=source()) as pipeline,
        contextlib.closing(SharedFile.create("drawn")) as drawn,
        contextlib.closing(SharedFile.create("weights")) as weights,
    ):
        plan: Any = pipeline.plan
        weights.write(8 * SAMPLES, only(3))
        weights.free(8 * SAMPLES, 8 * SAMPLES)
        place = Workplace([], Unwatched(), lambda _: 0, drawn.descriptor, weights.descriptor)
        answer = plan.worker(place).work(Draw(1, epoch=0, weights=1, offset=0)).drawn
    assert answer is not None
    assert answer.failure.endswith("the weights of version 1 count no more")


def test_a_layer_takes_weights(tmp_path: Path) -> None:
    spec = write_hdf5(tmp_path / "train.h5", SAMPLES)
    with LayerHarness(MultiProcessInputLayer, {"source": spec, "batch_size": 4, "sampler": {"draws": 8}}) as harness:
        harness.layer.set_weights(only(5))
        rows = [harness.forward()["label"].tolist() for _ in range(6)]
        assert all(len(set(row)) == 1 for row in rows)
        assert rows == rows[:1] * 6


def test_the_code_in_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "order.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text.partition("## Samplers")[2], re.DOTALL)
    assert blocks
    for block in blocks:
        found: dict[str, Any] = {"__name__": "documentation"}
        exec(block, found)
        with LayerHarness(
            found["Buckets"],
            {"source": {"npy": {"data": "texts.npy"}}, "batch_size": 64, "tops": ["data"], "num_loaders": 0},
        ) as harness:
            assert len({harness.forward()["data"].shape[0] for _ in range(20)}) > 1
