"""`replay`: the first batches again and again, without loaders."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.errors import EndOfData, ParameterError
from blobfeed.workers.pipeline.variants import make_pipeline
from blobfeed.workers.sources.stream import StreamSource

from blobfeed import BatchReader
from tests.support.pipelines import Delivered, Numbered, deliver, parameters


@pytest.mark.parametrize("values", [{}, {"items": 4}, {"prefetch_batches": 2}])
def test_the_first_batches_come_again_and_again(tmp_path: Path, values: dict[str, Any]) -> None:
    """`items`: of tiny samples several batches share a slot."""
    values = dict(values)
    source = Numbered(items=values.pop("items", 70_000))
    with make_pipeline(parameters(), source=source) as pipeline:
        plain = list(deliver(pipeline))
    with make_pipeline(parameters(replay=3, **values), source=source, base_dir=tmp_path) as pipeline:
        replayed = list(deliver(pipeline))
        assert pipeline.statistics().tasks < 80
        with pytest.raises(EndOfData):
            pipeline.take()
    assert [batch.number for batch in replayed] == list(range(20))
    assert [batch.tops for batch in replayed] == [plain[number % 3].tops for number in range(20)]
    assert [batch.indices for batch in replayed] == [plain[number % 3].indices for number in range(20)]


def test_what_comes_again_is_not_traced() -> None:
    with pytest.raises(ParameterError, match=r"'trace' is 'run.json' and 'replay' is 3: .* give one of the two"):
        make_pipeline(parameters(replay=3, trace="run.json"), source=Numbered())


@pytest.mark.parametrize(
    ("source", "given"),
    [(StreamSource(lambda epoch: iter([1, 2])), {}), (Numbered(), {"sampler": lambda epoch, samples, rng: [1, 2]})],
)
def test_epochs_that_nobody_knows_the_length_of_are_refused(source: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"'replay' is 2 and 'epochs' is 1, .*: give epochs=None"):
        BatchReader(source, batch_size=2, epochs=1, replay=2, **given)
    with BatchReader(source, batch_size=2, replay=2, num_loaders=0, **given) as reader:
        assert len(list(islice(reader, 6))) == 6


def test_a_batch_is_released_once(tmp_path: Path) -> None:
    with make_pipeline(parameters(replay=1), source=Numbered()) as pipeline:
        first = pipeline.take()
        pipeline.release(first)
        again = pipeline.take()
        assert Delivered.copy_of(again).tops == Delivered.copy_of(first).tops
        pipeline.release(again)
        with pytest.raises(ValueError, match="batch 1 is not held"):
            pipeline.release(again)


def test_a_readers_arrays_are_its_own_also_when_batches_are_replayed() -> None:
    with BatchReader(Numbered(), batch_size=4, epochs=1, replay=2, num_loaders=1) as reader:
        labels = []
        for batch in reader:
            labels.append(batch["label"].tolist())
            batch["label"][:] = -1
    assert labels == [[0, 1, 2, 3], [4, 5, 6, 7]] * 5
    with BatchReader(Numbered(), batch_size=4, epochs=1, replay=2, num_loaders=1, copy=False) as reader:
        assert [int(np.sum(batch["label"])) for batch in reader] == [6, 22] * 5


def test_batches_come_again_though_loaders_take_over_among_them() -> None:
    source, changed = {"arrays": {"data": np.arange(240.0).reshape(20, 3, 2, 2)}}, {"scale": 2.0, "crop_size": 2}
    settings: dict[str, Any] = {"batch_size": 2, "epochs": 3, "transform": changed, "prefetch_batches": 2}
    with BatchReader(source, **settings, replay=6) as reader:
        replayed = [batch["data"].tolist() for batch in reader]
        assert reader.statistics().loaders
    with BatchReader(source, **settings) as reader:
        plain = [batch["data"].tolist() for batch in reader]
    assert replayed == [plain[number % 6] for number in range(30)]
