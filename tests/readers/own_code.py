"""A source of the user's own, whose samples tell their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from blobfeed.workers.api import IndexArray, NamedRows

from blobfeed import ArraySpec, BatchReader, Source

SAMPLES = 48


class Pictures(Source):
    """Sample i is `data`, shape (3,) uint8, i, i+1, i+2, and `label`, i."""

    kind = "pictures"

    def __len__(self) -> int:
        return SAMPLES

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return {"data": ArraySpec((3,), np.dtype(np.uint8)), "label": ArraySpec((), np.dtype(np.int64))}

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        out["data"][...] = indices[:, None] + np.arange(3)  # type: ignore[index]
        out["label"][...] = indices  # type: ignore[index]


def delivered(num_loaders: int = 0, **parameters: Any) -> dict[str, Any]:
    """All batches of one epoch, end to end; without loaders, since the worker that runs the hooks is theirs as well."""
    settings = {"batch_size": 8, "epochs": 1, "seed": 3, "shuffle": True, **parameters}
    with BatchReader(Pictures(), num_loaders=num_loaders, **settings) as reader:
        batches = [dict(batch) for batch in reader]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def pixels(labels: Any) -> Any:
    return (labels[:, None] + np.arange(3)).astype(np.uint8)
