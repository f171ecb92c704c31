"""blobfeed as a layer's forward does it: each batch copied into NumPy arrays that were allocated before."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blobfeed.readers.delivery import HostDelivery, Top, make_tops
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, Parameters, check_parameters

from ..datasets import data_folder
from ..works import Work
from . import WORKERS, Batch


@dataclass(frozen=True)
class Blob:
    data: AnyArray


def parameters_of(work: Work, samples: int, **options: Any) -> Parameters:
    """Return blobfeed's parameters for `work`, with `options` on top."""
    chosen = {"batch_size": work.batch_size, "num_loaders": WORKERS, **work.parameters, **options}
    return check_parameters({"source": dict(work.source(samples)), **chosen})


def blobs_for(tops: list[Top], work: Work) -> list[Blob]:
    """Written to once here: a trainer's blobs have their pages long before the first batch comes."""
    types = [np.dtype(work.dtype), *(top.dtype for top in tops[1:])]
    shapes = [top.largest_shape(work.batch_size) for top in tops]
    return [Blob(np.full(shape, 1, dtype)) for shape, dtype in zip(shapes, types, strict=True)]


@contextmanager
def open_batches(work: Work, samples: int, **options: Any) -> Iterator[Iterator[Batch]]:
    parameters = parameters_of(work, samples, **options)
    with open_pipeline(parameters) as pipeline:
        tops = make_tops(pipeline.specs, parameters, Path.cwd())
        yield _delivered(HostDelivery(pipeline, tops), blobs_for(tops, work))


@contextmanager
def open_cached(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    """With a cache of decoded samples, filled during the first epoch."""
    with tempfile.TemporaryDirectory(dir=data_folder()) as folder:
        cache = {"path": f"{folder}/decoded", "size_limit": 4 << 30}
        with open_batches(work, samples, cache=cache) as batches:
            yield batches


def _delivered(delivery: HostDelivery, blobs: list[Blob]) -> Iterator[Batch]:
    data, labels = (blob.data for blob in blobs)
    while True:
        delivery.deliver(blobs)
        yield data, labels
