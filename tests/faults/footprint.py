"""Memory: no growth over a million small batches, and eight loaders that share the pages of what they imported."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import Parameters
from blobfeed.workers.pipeline import Pipeline

from ..support.pipelines import Numbered
from .figures import Figure, megabytes, spread
from .processes import memory
from .scale import Scale
from .works import WORKS

_STUDY = "memory"
_LEAK_BYTES = 8e6
"""More is growth: a byte for each batch and process would be some megabytes."""


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _growth(scale.small_batches)
    yield from _loaders(scale, folder)


def _growth(batches: int) -> Iterator[Figure]:
    parameters = Parameters(source={}, batch_size=4, num_loaders=2, shuffle=True)
    with open_pipeline(parameters, source=Numbered(10**6, 2)) as pipeline:
        _take(pipeline, batches // 5)
        gc.collect()
        before = memory(with_trainer=True)
        begun = time.monotonic()
        _take(pipeline, batches)
        seconds = time.monotonic() - begun
        gc.collect()
        after = memory(with_trainer=True)
    for name, first, last in zip(("RSS", "PSS"), before, after, strict=True):
        what = f"{name} of all processes before and after {batches:,} batches of 4 tiny samples"
        yield Figure(_STUDY, what, f"{megabytes(first)} → {megabytes(last)}")
    yield Figure(_STUDY, "batches a second meanwhile", round(batches / seconds))
    yield Figure(_STUDY, "grown by more than 8 MB (PSS)", int(after[1] - before[1] > _LEAK_BYTES), 0)


def _take(pipeline: Pipeline, batches: int) -> None:
    for _ in range(batches):
        pipeline.release(pipeline.take())


def _loaders(scale: Scale, folder: Path) -> Iterator[Figure]:
    sizes = {}
    for loaders in (1, 8):
        starts = []
        for _ in range(scale.starts):
            with WORKS[4].open(folder, num_loaders=loaders, epochs=None) as pipeline:
                begun = time.monotonic()
                pipeline.peek()
                starts.append(time.monotonic() - begun)
                _take(pipeline, 200)  # all of them have worked by then
                sizes[loaders] = memory(with_trainer=False)
        yield Figure(_STUDY, f"time to first batch, loaders: {loaders}; median / 95 % / most", spread(starts))
    for loaders, (rss, pss) in sizes.items():
        what = f"assembler, nursery and loaders: {loaders}, ring included; RSS, PSS"
        yield Figure(_STUDY, what, f"{megabytes(rss)}, {megabytes(pss)}")
    each = [(many - one) / 7 for one, many in zip(sizes[1], sizes[8], strict=True)]
    yield Figure(_STUDY, "a further loader; RSS, PSS", ", ".join(map(megabytes, each)))
