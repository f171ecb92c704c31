"""spdl: a pipeline of threads in the trainer itself; nothing travels, but whatever holds the GIL is not parallel.

Whole batches of indices go in, as its documentation does it, and are read in one call by two threads. Its own JPEG
decoder needs a system FFmpeg; OpenCV lets the GIL go too and is as fast.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from ..works import Work
from . import WORKERS, Batch
from .orders import batches_of, into_blob

spdl = importlib.import_module("spdl.pipeline")


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    # One for both threads: what the HDF5 library reads it reads for one at a time anyway, and its chunks are kept once.
    reader = work.reader(samples)
    builder = spdl.PipelineBuilder().add_source(batches_of(work, samples))
    pipeline = builder.pipe(reader.many, concurrency=WORKERS).add_sink(4).build(num_threads=WORKERS)
    with pipeline.auto_stop():
        yield into_blob(work, pipeline)
