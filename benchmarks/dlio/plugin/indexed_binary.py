"""A source of a user's own, in a module that imports no more than loaders need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blobfeed import ArraySpec, Source


class IndexedBinary(Source):
    """Records of one size in several files, a source of a user's own."""

    def __init__(self, paths: list[str], samples: int) -> None:
        self.paths, self.samples = paths, samples
        self.size = Path(paths[0]).stat().st_size // samples
        self.files: dict[int, np.memmap[Any, Any]] = {}

    def __len__(self) -> int:
        return len(self.paths) * self.samples

    @property
    def specs(self) -> dict[str, ArraySpec]:
        return {"data": ArraySpec((self.size,), np.dtype(np.uint8))}

    def read(self, indices: Any, out: Any) -> None:
        for row, index in enumerate(indices.tolist()):
            number, record = divmod(index, self.samples)
            if number not in self.files:
                self.files[number] = np.memmap(self.paths[number], np.uint8, "r", shape=(self.samples, self.size))
            out["data"][row] = self.files[number][record]

    def close(self) -> None:
        self.files = {}
