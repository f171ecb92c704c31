"""A source without files: as many samples as one likes, each made in as much time as one likes."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from blobfeed.workers.api import AnyArray, IndexArray, NamedRows

from blobfeed import ArraySpec, RaggedRows, Source


class SyntheticSource(Source):
    """`data`: zeros of `shape`, uint8; `label`: the sample's index. Each sample takes `seconds` of sleep."""

    def __init__(self, samples: int, shape: tuple[int, ...], seconds: float = 0.0) -> None:
        self._samples = samples
        self._specs = {
            "data": ArraySpec(shape, np.dtype(np.uint8)),
            "label": ArraySpec((), np.dtype(np.int64)),
        }
        self._seconds = seconds

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        if self._seconds:
            time.sleep(self._seconds * len(indices))
        _rows(out, "label")[...] = indices


def _rows(out: NamedRows, name: str) -> AnyArray:
    rows = out[name]
    if isinstance(rows, RaggedRows):
        raise TypeError(f"{name}: samples of one shape have plain rows")
    return rows
