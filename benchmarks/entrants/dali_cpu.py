"""NVIDIA DALI without a GPU: two threads of its own read, decode and crop; it is made for decoding on a device."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from ..datasets import JPEG
from ..works import Work
from . import WORKERS, Batch

dali = importlib.import_module("nvidia.dali")
fn = importlib.import_module("nvidia.dali.fn")
types = importlib.import_module("nvidia.dali.types")


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    folder, size = JPEG.path(samples), work.shape[-1]

    @dali.pipeline_def(batch_size=work.batch_size, num_threads=WORKERS, device_id=None, prefetch_queue_depth=2)  # type: ignore[untyped-decorator]
    def made() -> tuple[object, object]:
        files, labels = [str(folder / f"{index}.jpg") for index in range(samples)], list(range(samples))
        jpegs, label = fn.readers.file(files=files, labels=labels, shuffle_after_epoch=True)
        options = {"device": "cpu", "output_type": types.RGB}
        if work.resizes:
            crops = fn.resize(fn.decoders.image_random_crop(jpegs, **options), size=(size, size))
        else:
            crops = fn.decoders.image_crop(  # which decodes no more of a picture than it has to
                jpegs,
                crop=(size, size),
                crop_pos_x=fn.random.uniform(range=(0, 1)),
                crop_pos_y=fn.random.uniform(range=(0, 1)),
                **options,
            )
        return fn.transpose(crops, perm=[2, 0, 1]), label

    pipeline = made()
    pipeline.build()
    yield _endless(pipeline)


def _endless(pipeline: object) -> Iterator[Batch]:
    while True:
        data, labels = pipeline.run()  # type: ignore[attr-defined]
        yield data.as_array(), labels.as_array().reshape(-1)
