"""spdl: a pipeline of threads in the trainer itself; nothing travels, but whatever holds the GIL is not parallel.

Whole batches of indices go in, as its documentation does it, and are read in one call by two threads. Its own JPEG
decoder needs a system FFmpeg; OpenCV lets the GIL go too and is as fast. Turbo: by libjpeg-turbo, as its users have it.

Pooled: into arrays that are used again when the next batch is asked for, of the type that is wanted, so that the
threads convert. Filling: such an array as it is stored, copied, and converted, into the trainer's own.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ..datasets import JPEG
from ..reading import Array, Labels, TurboCrops
from ..works import Work
from . import WORKERS, Batch
from .orders import batches_of, into_blob

spdl = importlib.import_module("spdl.pipeline")


Read = Callable[..., tuple[Array, Labels]]


@contextmanager
def _running(work: Work, samples: int, read: Read) -> Iterator[Any]:
    builder = spdl.PipelineBuilder().add_source(batches_of(work, samples))
    pipeline = builder.pipe(read, concurrency=WORKERS).add_sink(4).build(num_threads=WORKERS)
    with pipeline.auto_stop():
        yield pipeline


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    # One for both threads: what the HDF5 library reads it reads for one at a time anyway, and its chunks are kept once.
    with _running(work, samples, work.reader(samples).many) as batches:
        yield into_blob(work, batches)


@contextmanager
def open_turbo(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    reader = TurboCrops(JPEG.path(samples), samples, work.shape[-1], resizes=work.resizes)
    with _running(work, samples, reader.many) as batches:
        yield into_blob(work, batches)


@contextmanager
def open_pooled(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    with _pooled(work, samples, work.dtype) as batches:
        yield batches


@contextmanager
def open_filling(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    with _pooled(work, samples, None) as batches:
        yield _filled(work, batches)


@contextmanager
def _pooled(work: Work, samples: int, dtype: str | None) -> Iterator[Iterator[Batch]]:
    free = deque[Array]()

    def make(shape: tuple[int, ...], stored: np.dtype[Any]) -> Array:
        try:
            return free.pop()
        except IndexError:
            return np.empty(shape, dtype or stored)

    with _running(work, samples, partial(work.reader(samples).many, make=make)) as batches:
        yield _giving_back(batches, free)


def _giving_back(batches: Iterator[Batch], free: deque[Array]) -> Iterator[Batch]:
    for data, labels in batches:
        yield data, labels
        free.append(data)


def _filled(work: Work, batches: Iterator[Batch]) -> Iterator[Batch]:
    blob = np.zeros((work.batch_size, *work.shape), work.dtype)
    for data, labels in batches:
        work.normalise(data, blob)
        yield blob, labels
