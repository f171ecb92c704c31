"""Weights that are set while a sampler runs: from where on they count, and what they cost."""

from __future__ import annotations

import json
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.supplies import sampler_rng

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer, ParameterError
from tests.support.part import some_of
from tests.support.pipelines import Numbered
from tests.support.reader_data import write_hdf5

SAMPLES, SEED = 60, 11


def _weighted(**values: Any) -> BatchReader:
    settings: dict[str, Any] = {"batch_size": 4, "epochs": None, "seed": SEED, "num_loaders": 2, "prefetch_batches": 2}
    return BatchReader(Numbered(SAMPLES, items=70_000), **(settings | {"sampler": {"draws": 40}} | values))


def only(*indices: int) -> Any:
    weights = np.zeros(SAMPLES)
    weights[list(indices)] = 1
    return weights


@pytest.mark.parametrize("size", some_of([64, 50], 2))
def test_weights_set_after_a_loop_count_from_the_next_epoch_that_begins(size: int) -> None:
    numbers = {"arrays": {"label": np.arange(SAMPLES)}}
    settings: dict[str, Any] = {"batch_size": size, "epochs": 1, "last_batch": "wrap", "num_loaders": 1}
    with BatchReader(numbers, sampler={"draws": 1000}, **settings) as reader:
        for _ in reader:
            pass
        reader.set_weights(only(3))
        following = [batch for _ in range(2) for batch in reader]
    drawn = np.concatenate([batch["label"] for batch in following])
    # With 64 the first loop's last batch has taken 24 samples of epoch 1, so new weights count behind its other 976.
    old, new = (sampler_rng(0, 1).integers(SAMPLES, size=1000)[24:], 976) if size == 64 else (np.empty(0), 0)
    assert drawn[:new].tolist() == old.tolist()
    assert set(drawn[new + -new % size :].tolist()) == {3}


@pytest.mark.parametrize(
    ("values", "after", "epoch"),
    some_of(
        [
            (values, after, epoch)
            for after, epoch in [(0, 0), (1, 1), (10, 1), (11, 2)]
            for values in [{}, {"num_loaders": 0}, {"prefetch_batches": "auto"}]
        ],
        5,
    ),
)
def test_weights_count_from_the_next_epoch_however_far_the_loaders_are_ahead(
    values: dict[str, Any], after: int, epoch: int
) -> None:
    with _weighted(**values) as reader:
        loop, labels_, numbers = iter(reader), [], []
        for number in range(30):
            if number == after:
                reader.set_weights(only(5))
                reader.set_weights(only(3))  # the later ones count
            batch = next(loop)
            labels_.append(batch["label"].tolist())
            numbers.append(batch.number)
    assert numbers == [*range(30)]
    assert [set(label) == {3} for label in labels_] == [number >= 10 * epoch for number in range(30)]
    for drawn in range(epoch):
        found = [*chain(*labels_[10 * drawn : 10 * drawn + 10])]
        assert found == sampler_rng(SEED, drawn).integers(SAMPLES, size=40).tolist()


def test_a_state_names_the_weights_and_goes_on_by_the_same_ones_alone() -> None:
    with _weighted() as reader:
        reader.set_weights(only(3, 4))
        loop = iter(reader)
        before = [next(loop)["label"].tolist() for _ in range(4)]
        reader.set_weights(only(7))
        state = json.loads(json.dumps(reader.state_dict()))
        after = [next(loop)["label"].tolist() for _ in range(6)]
        assert set(next(loop)["label"].tolist()) == {7}
    assert set(chain(*before, *after)) == {3, 4}
    with _weighted(num_loaders=0) as resumed:
        with pytest.raises(ParameterError):
            resumed.load_state_dict(state)
        resumed.set_weights(only(3, 4))
        resumed.set_weights(only(3, 4))
        resumed.load_state_dict(state)
        assert [batch["label"].tolist() for batch in islice(resumed, 6)] == after


def test_a_layer_takes_weights(tmp_path: Path) -> None:
    spec = write_hdf5(tmp_path / "train.h5", SAMPLES)
    with LayerHarness(MultiProcessInputLayer, {"source": spec, "batch_size": 4, "sampler": {"draws": 8}}) as harness:
        harness.layer.set_weights(only(5))
        rows = [harness.forward()["label"].tolist() for _ in range(6)]
        assert all(len(set(row)) == 1 for row in rows)
        assert rows == rows[:1] * 6
