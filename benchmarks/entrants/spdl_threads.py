"""spdl: a pipeline of threads in the trainer itself; nothing travels, but whatever holds the GIL is not parallel.

Whole batches of indices go in, as its documentation does it, and are read in one call by two threads. Its own JPEG
decoder needs a system FFmpeg; OpenCV lets the GIL go too and is as fast.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..reading import Array, Labels, Reader
from ..works import Work
from . import WORKERS, Batch
from .orders import shuffled_batches

spdl = importlib.import_module("spdl.pipeline")


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    each = threading.local()

    def read(indices: Labels) -> tuple[Array, Labels]:
        reader: Reader = each.reader if hasattr(each, "reader") else work.reader(samples)
        each.reader = reader
        data, labels = reader.many(indices)
        return data.astype(np.dtype(work.dtype), copy=False), labels

    builder = spdl.PipelineBuilder().add_source(shuffled_batches(samples, work.batch_size))
    pipeline = builder.pipe(read, concurrency=WORKERS).add_sink(4).build(num_threads=WORKERS)
    with pipeline.auto_stop():
        yield iter(pipeline)
