"""Samplers in a running pipeline: what comes is what a few lines of NumPy say, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.supplies import BalancedSampler, draw_epoch, sampler_rng

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer, ParameterError, Sample, SampleError, SourceError
from tests.support.part import some_of
from tests.support.pipelines import Numbered
from tests.support.reader_data import write_hdf5
from tests.support.sampled import expected_batches
from tests.support.waiting import DEADLINE_S

SAMPLES, SEED, BATCH = 60, 11, 8
WEIGHTS = np.arange(SAMPLES, dtype=np.float64) ** 2
SUBSET = np.arange(0, SAMPLES, 3)
LENGTHS = np.arange(SAMPLES) * 7 % 13
"""The lengths that the samples would have as texts."""


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
    """Return the labels of each batch; the data and the batch's indices must say the same."""
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


def test_the_length_is_known_where_every_epoch_is_as_long() -> None:
    with reader_of("weighted", 2, last_batch="partial") as reader:
        assert len(reader) == len(expected("weighted", 2, last_batch="partial")) == 12
        assert reader.samples == 45
    with reader_of("a function") as reader, pytest.raises(TypeError):
        len(reader)


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


class _Nested:
    class Drawing:
        def __call__(self, epoch: int, samples: int, rng: np.random.Generator) -> list[int]:
            return [3, 1, 2, 0]


@pytest.mark.parametrize(("sampler", "called"), [(varying, "sampler varying"), (_Nested.Drawing(), "sampler Drawing")])
def test_a_state_names_a_function_without_where_it_stands(sampler: Any, called: str) -> None:
    with read(sampler=sampler) as reader:
        assert reader.state_dict()["sampler"] == called


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
    with BatchReader(spec, batch_size=3, num_loaders=0, epochs=None) as reader:
        stored = list(chain.from_iterable(batch["label"].tolist() for batch in islice(reader, 20)))
    with LayerHarness(ReversedLayer, given) as harness:
        assert harness.forward()["label"].tolist() == [stored[59], stored[58], stored[57]]


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


# ---- sources of all kinds, bad samples, hooks


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


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"dims": ["n", "h", "w", "c"]}, 40),
        ({"dims": {"data": ["n", "h", "w", "c"]}}, 40),
        ({"window": {"length": 4, "labels": "last"}}, 37),
        ({"patch": {"size": {0: 1}, "shift": {0: 6}}}, 34),
    ],
)
def test_a_field_is_balanced_beside_options_of_the_other_tops(
    options: dict[str, Any], count: int, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"], file["label"] = np.zeros((40, 8, 8, 3), np.uint8), np.arange(40) % 10 // 9
    source = {"hdf5": {"path": str(tmp_path / "a.h5"), **options}}
    with BatchReader(
        source, batch_size=400, epochs=1, num_loaders=0, sampler={"balance": "label", "draws": 400}
    ) as reader:
        assert reader.samples == 400
        (batch,) = reader
        assert set(batch.indices.tolist()) <= set(range(count))
        assert 150 < batch["label"].sum() < 250


@pytest.mark.parametrize("dtype", ["U5", "S5"])
def test_classes_that_are_names_can_be_balanced(dtype: str) -> None:
    names = np.array(["rare"] * 5 + ["often"] * 55, dtype)
    source = {"arrays": {"data": np.arange(60), "name": names}}
    with BatchReader(source, batch_size=10, epochs=1, num_loaders=0, sampler={"balance": "name"}) as reader:
        found = np.concatenate([batch["name"] for batch in reader])
    assert np.count_nonzero(found == names[0]) == 30


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


def test_a_bad_sample_that_the_sampler_draws_alone_has_no_other_to_take_its_place() -> None:
    with pytest.raises(SampleError), read(sampler=[0, 0], decode=bad_at_zero, on_error="replace") as reader:
        list(reader)


def _noise(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
    return {"noise": np.array([sample.index, rng.integers(2**62), np.random.randint(2**31)])}  # noqa: NPY002


@pytest.mark.parametrize("num_loaders", some_of([0, 2], 2))
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
