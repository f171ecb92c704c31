"""A pipeline that stands still: for what a delivery costs when its batch lies ready."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from blobfeed.readers.delivery import Delivery, make_delivery, make_tops
from blobfeed.workers.api import check_parameters
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.plan import Batch
from blobfeed.workers.transport import Ring, Run, SlotLayout

from blobfeed import ArraySpec

SLOTS = 5


@dataclass(frozen=True)
class Shape:
    rows: int
    sample: tuple[int, ...]

    @property
    def items(self) -> int:
        return self.rows * int(np.prod(self.sample))


class StillPipeline:
    """The part of a Pipeline that a delivery asks for: the slots of a real ring, in turn, and always ready."""

    gathered: Collection[str] = ()

    def __init__(self, shape: Shape, dtype: str, **values: object) -> None:
        self.parameters = check_parameters(
            {"source": {"hdf5": {"path": "none"}}, "batch_size": shape.rows, "tops": ["data"], **values}
        )
        self.specs = {"data": ArraySpec(shape.sample, np.dtype(dtype))}
        self.ring = Ring.create(SlotLayout(self.specs, shape.rows), SLOTS)
        rng = np.random.default_rng(0)
        for view in self.ring.views:
            rows = cast(Any, view["data"])
            rows[...] = rng.integers(0, 256, rows.shape, dtype=np.uint8)
        for _ in self.ring.use_huge_pages():  # as a running pipeline has them after half a second
            pass
        self.progress = _Count(0)
        self._batch: Batch | None = None

    def peek(self) -> Batch:
        if self._batch is None:
            taken = self.progress.taken
            slot = self.ring.views[taken % SLOTS]
            rows = self.parameters.batch_size
            self._batch = Batch(taken, 0, 0, rows, slot, taken, [Run(0, rows, 0, 0)])
        return self._batch

    def take(self) -> Batch:
        batch = self.peek()
        self.progress, self._batch = _Count(self.progress.taken + 1), None
        return batch

    def check_usable(self) -> None: ...

    def deliver_into_host(self, *, calls_make: bool) -> None: ...

    def is_next(self, batch: Batch) -> bool:
        return batch is self._batch

    def holds(self, batch: Batch) -> bool:
        return True

    def release(self, batch: Batch) -> None: ...

    def is_ready(self) -> bool:
        return True

    def look_ahead(self) -> None: ...

    def use_huge_pages(self) -> None: ...


@dataclass(frozen=True)
class _Count:
    """The same part of a Position."""

    taken: int


def ready(pipeline: StillPipeline, blob: Any) -> Delivery:
    """A delivery of the pipeline's batches into `blob`."""
    tops = make_tops(pipeline.specs, pipeline.parameters, Path())
    blob.reshape(*tops[0].largest_shape(pipeline.parameters.batch_size))
    return make_delivery(cast(Pipeline, pipeline), tops, [blob])
