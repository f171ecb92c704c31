"""How arrays lie in HDF5 files: what the trainer finds out once, and what the loaders read by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ThroughLibrary:
    """Only the HDF5 library can read it; `reason` says why."""

    reason: str


Layout = ThroughLibrary


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One data set: `shape` and `dtype` as stored (elements that are arrays themselves count as further axes).

    `path` is the file that the data set lies in, which an external link makes another one than the file opened.
    Strings of varying length have the fixed type that holds the longest; `longest` is set where each element is an
    array of varying length.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    layout: Layout
    longest: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


@dataclass(frozen=True, slots=True)
class Part:
    """One file's share of the samples: its arrays by top, and the file as it was when it was examined."""

    path: str
    size: int
    mtime_ns: int
    arrays: Mapping[str, StoredArray]
