"""`num_loaders: auto` over a hook of one's own: loaders come and are taken back while the trainer takes its batches."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from blobfeed.workers.base.hooks import Hooks, Sample
from blobfeed.workers.base.specs import AnyArray
from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.plan.plan import usable_cores

from tests.support.pipelines import Numbered, Promise, parameters
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class OnlyOneCanWork:
    """Slow, and four times as slow as soon as a second loader has come: together they are slower than one was."""

    folder: Path

    def __call__(self, sample: Sample, _: np.random.Generator) -> tuple[AnyArray, AnyArray]:
        if os.environ.get("BLOBFEED_ROLE") == "loader":
            (self.folder / str(os.getpid())).touch()
            time.sleep(0.01 if len(list(self.folder.iterdir())) == 1 else 0.04)
        return sample["data"], sample["label"]


@pytest.mark.skipif(usable_cores() < 2, reason="on one core there is one loader")
def test_a_second_loader_comes_and_is_taken_back_where_it_is_no_use(tmp_path: Path) -> None:
    given = parameters(num_loaders="auto", batch_size=1, epochs=None)
    promise, numbers = Promise(given), count()
    with Pipeline(given, Hooks(OnlyOneCanWork(tmp_path)), source=Numbered()) as pipeline:

        def taken() -> bool:
            batch = pipeline.take()
            assert np.asarray(batch.tops["label"]).tolist() == [promise.sample_at(next(numbers))]
            pipeline.release(batch)
            return True

        wait_until(lambda: taken() and len(list(tmp_path.iterdir())) == 2, "a second loader works")
        wait_until(lambda: taken() and pipeline.statistics().loaders == 1, "it has been taken back")
        for _ in range(10):
            taken()
        assert pipeline.statistics().loader_deaths == 0
