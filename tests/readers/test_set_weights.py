"""Weights that are set while a sampler runs: from where on they count, and what they cost."""

from __future__ import annotations

import contextlib
import json
import os
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Parameters
from blobfeed.workers.loading import Workplace
from blobfeed.workers.order import sampler_rng
from blobfeed.workers.transport import Draw, SharedFile, Unwatched

from blobfeed import BatchReader, LayerHarness, MultiProcessInputLayer
from tests.support.leftovers import descriptors
from tests.support.reader_data import write_hdf5

from .sampling import SAMPLES, SEED, source


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
    """An epoch has ten batches; five may be planned behind those that have come, however far the loaders are ahead."""
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
    given = {"batch_size": 4, "epochs": None, "seed": SEED, "num_loaders": 0, "sampler": {"draws": 160}, **values}
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
    with BatchReader(numbers, batch_size=4, num_loaders=1, epochs=None, sampler={"draws": 40}) as reader:
        for number, _ in enumerate(islice(reader, steps)):
            reader.set_weights(np.arange(samples) == number)
        (file,) = (number for number, target in descriptors().items() if "weights" in target)
        assert 0 < 512 * os.fstat(file).st_blocks < 20 * 8 * samples


def test_a_draw_by_weights_that_were_given_back_meanwhile_is_no_warning_of_numpys() -> None:
    given = Parameters(source={}, batch_size=4, sampler={"draws": 40})
    with (
        open_pipeline(given, source=source()) as pipeline,
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
