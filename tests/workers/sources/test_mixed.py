"""Several sources as one: what is read, where it lies, and the shares that a running pipeline delivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.hooks import Hooks, Sample
from blobfeed.workers.base.parameters import check_parameters
from blobfeed.workers.base.source import Source
from blobfeed.workers.base.specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows, allocate_rows
from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.sources.mixed import MixedSource
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stored import in_loader


class Shelf(Source):
    """Sample i of shelf s: `id`, s and i; `word`, of i % 4 letters all alike."""

    kind = "shelf"

    def __init__(self, number: int, samples: int, longest: int = 3) -> None:
        self.number = number
        self.samples = samples
        self.longest = longest
        self.told: list[int] = []
        self.closed = False
        self.modules = (f"shelf{number}", "shelves")

    def __len__(self) -> int:
        return self.samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return {
            "id": ArraySpec((2,), np.dtype(np.int64)),
            "word": ArraySpec((self.longest,), np.dtype(np.uint8), varies=True),
        }

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        words, ids = out["word"], out["id"]
        assert isinstance(words, RaggedRows)
        assert isinstance(ids, np.ndarray)
        assert len(words) == len(ids) == len(indices)
        for row, index in enumerate(indices.tolist()):
            assert 0 <= index < self.samples
            ids[row] = self.number, index
            words.put(row, np.full(index % 4, self.number, np.uint8))

    def where(self, index: int) -> str:
        return f"shelf {self.number}, place {index}"

    def will_need(self, indices: IndexArray) -> None:
        self.told += indices.tolist()

    def close(self) -> None:
        self.closed = True


SIZES = st.lists(st.integers(1, 20), min_size=1, max_size=4)


def mixed(sizes: list[int]) -> MixedSource:
    return MixedSource([Shelf(number, size) for number, size in enumerate(sizes)], [1.0] * len(sizes))


def origin(sizes: list[int], index: int) -> tuple[int, int]:
    """The shelf and the place there of one sample of the whole."""
    return [(number, place) for number, size in enumerate(sizes) for place in range(size)][index]


@settings(max_examples=100)
@given(sizes=SIZES, data=st.data())
def test_any_rows_of_any_sources_are_read_into_their_places(sizes: list[int], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=12))
    source = in_loader(mixed(sizes))
    assert len(source) == sum(sizes)
    out = allocate_rows(source.specs, len(indices))
    source.read(np.array(indices, np.int64), out)
    for row, index in enumerate(indices):
        shelf, place = origin(sizes, index)
        ids, words = out["id"], out["word"]
        assert isinstance(ids, np.ndarray)
        assert isinstance(words, RaggedRows)
        assert ids[row].tolist() == [shelf, place]
        assert words.get(row).tolist() == [shelf] * (place % 4)


def test_each_source_is_told_of_its_own_samples() -> None:
    source = mixed([5, 5, 5])
    source.will_need(np.array([0, 14, 4, 10]))
    assert [shelf.told for shelf in source.sources if isinstance(shelf, Shelf)] == [[0, 4], [], [4, 0]]


def test_modules_are_those_of_all_sources_each_once() -> None:
    assert mixed([2, 2]).modules == ("shelf0", "shelves", "shelf1")


def test_the_fingerprint_changes_with_the_weights_and_with_every_source() -> None:
    shelves = [Shelf(0, 3), Shelf(1, 4)]
    prints = {
        MixedSource(shelves, [1, 1]).fingerprint(),
        MixedSource(shelves, [1, 2]).fingerprint(),
        MixedSource([Shelf(0, 3), Shelf(1, 5)], [1, 1]).fingerprint(),
        MixedSource(shelves[::-1], [1, 1]).fingerprint(),
    }
    assert len(prints) == 4
    assert MixedSource(shelves, [1, 1]).fingerprint() in prints


# ---- declared, and through a running pipeline


def write_npy(folder: Path, name: str, first: int, samples: int) -> dict[str, Any]:
    """A part of a mix whose sample i holds `first` + i; its weight is the caller's to set."""
    np.save(folder / f"{name}.npy", np.arange(first, first + samples, dtype=np.int64)[:, None])
    return {"npy": {"data": f"{name}.npy"}}


@pytest.fixture
def declared(tmp_path: Path) -> dict[str, Any]:
    """A mix of 0.7 and 0.3 of sources with 90 and 40 samples."""
    parts = [
        write_npy(tmp_path, "many", 0, 90) | {"weight": 0.7},
        write_npy(tmp_path, "few", 1000, 40) | {"weight": 0.3},
    ]
    return {"mix": parts, "batch_size": 10, "num_loaders": 2, "shuffle": True, "seed": 4}


def delivered(pipeline: Pipeline, batches: int) -> Iterator[AnyArray]:
    for _ in range(batches):
        batch = pipeline.take()
        yield np.asarray(batch.tops["data"]).ravel().copy()
        pipeline.release(batch)


def test_a_running_mix_has_exact_shares_and_whole_epochs_of_each_source(
    tmp_path: Path, declared: dict[str, Any]
) -> None:
    with Pipeline(check_parameters(declared), base_dir=tmp_path) as pipeline:
        assert pipeline.samples == 130
        samples = np.concatenate(list(delivered(pipeline, 200)))
    assert (samples.reshape(2, 1000) >= 1000).sum(axis=1).tolist() == [300, 300]
    for source, size in ((samples[samples < 1000], 90), (samples[samples >= 1000] - 1000, 40)):
        epochs = np.sort(source[: len(source) // size * size].reshape(-1, size), axis=1)
        assert np.array_equal(epochs, np.tile(np.arange(size), (len(epochs), 1)))


def noise(sample: Sample, rng: np.random.Generator) -> AnyArray:
    return rng.integers(1 << 60, size=1)


def test_a_sample_of_a_large_weight_is_augmented_anew_each_time(tmp_path: Path, declared: dict[str, Any]) -> None:
    first, second = declared["mix"]
    uneven = declared | {"mix": [first | {"weight": 0.05}, second | {"weight": 0.95}]}
    with Pipeline(check_parameters(uneven), Hooks(decode=noise), base_dir=tmp_path) as pipeline:
        drawn = np.concatenate(list(delivered(pipeline, 39)))
    assert len(np.unique(drawn)) == len(drawn) == 390


def test_a_running_mix_goes_on_from_its_state(tmp_path: Path, declared: dict[str, Any]) -> None:
    with Pipeline(check_parameters(declared), base_dir=tmp_path) as pipeline:
        whole = list(delivered(pipeline, 17))
        state = pipeline.state_dict()
        whole += delivered(pipeline, 12)
    with Pipeline(check_parameters(declared | {"num_loaders": 1}), base_dir=tmp_path) as resumed:
        resumed.load_state_dict(state)
        assert all(map(np.array_equal, delivered(resumed, 12), whole[17:]))


def test_the_ranks_of_a_mix_share_its_draws(tmp_path: Path, declared: dict[str, Any]) -> None:
    with Pipeline(check_parameters(declared), base_dir=tmp_path) as pipeline:
        whole = list(delivered(pipeline, 8))
    for rank in range(2):
        shard = check_parameters(declared | {"rank": rank, "world_size": 2, "num_loaders": 1})
        with Pipeline(shard, base_dir=tmp_path) as pipeline:
            assert all(map(np.array_equal, delivered(pipeline, 4), whole[rank::2]))
