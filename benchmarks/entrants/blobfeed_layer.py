"""blobfeed as a net has it: MultiProcessInputLayer, its hooks called as Caffe calls them, float32 blobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from blobfeed import LayerHarness, MultiProcessInputLayer

from ..works import Work
from . import Batch


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    parameters = {"batch_size": work.batch_size, **work.parameters}
    with LayerHarness(MultiProcessInputLayer, {"source": work.source(samples), **parameters}) as layer:
        yield _forwards(layer)


def _forwards(layer: LayerHarness[MultiProcessInputLayer]) -> Iterator[Batch]:
    while True:
        tops = layer.forward()
        yield tops["data"], tops["label"]
