"""Batches from plain numbers."""

from __future__ import annotations

from blobfeed.workers.base.parameters import LastBatch, Parameters
from blobfeed.workers.order.batches import Batches


def batches(
    samples: int,
    batch_size: int,
    last_batch: LastBatch = "wrap",
    epochs: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
) -> Batches:
    parameters = Parameters(
        batch_size=batch_size, last_batch=last_batch, epochs=epochs, rank=rank, world_size=world_size
    )
    return Batches(samples, parameters, start)
