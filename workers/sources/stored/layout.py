"""How arrays lie in files: what the trainer finds out once, and what the loaders read by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...base.errors import SourceError
from .axes import FIRST_AXIS, Arrangement
from .file import FileStamp


@dataclass(frozen=True, slots=True)
class Contiguous:
    """In one piece, in C order, from byte `offset` of the file on."""

    offset: int


@dataclass(frozen=True, slots=True)
class ChunkFilter:
    """What was done to a chunk's bytes when it was written; `element_bytes` counts for the shuffle alone."""

    kind: Literal["shuffle", "deflate", "fletcher32"]
    element_bytes: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """In chunks of equal shape, each somewhere in the file.

    `offsets`: int64, one for each place of the grid of chunks in C order, -1 where a chunk was never written: its
    elements are then `fill` (the bytes of one element). `sizes`: stored bytes of each, None where nothing is filtered.
    `skipped`: for each chunk the bits of the filters that were left out for it, None where none was for any.
    """

    chunk: tuple[int, ...]
    offsets: NDArray[np.int64]
    fill: bytes
    filters: tuple[ChunkFilter, ...] = ()
    sizes: NDArray[np.uint32] | None = None
    skipped: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class ThroughLibrary:
    """Only the HDF5 library can read it; `reason` says why.

    `chunk`: the shape of its chunks where it has any. `plugin`: whether the library needs hdf5plugin for its filters.
    """

    reason: str
    chunk: tuple[int, ...] | None = None
    plugin: bool = False


Layout = Contiguous | Chunked | ThroughLibrary


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array in a file: `shape` and `dtype` as stored (elements that are arrays themselves count as further axes).

    `arrangement` says which axis counts the samples and how the others are delivered; where it is left out, the first
    axis does and the rest stays as it is. Strings of varying length have the fixed type that holds the longest;
    `longest` is set where each element is an array of varying length. `others`: further files that hold some of it.
    """

    file: FileStamp
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    layout: Layout
    longest: int | None = None
    arrangement: Arrangement = FIRST_AXIS
    others: tuple[FileStamp, ...] = ()

    def __str__(self) -> str:
        return f"{self.file.path}:{self.name}" if self.name else self.file.path

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.shape[self.arrangement.sample_axis]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of a sample as it is delivered."""
        return self.arrangement.delivered(self.shape)

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.sample_shape) * self.dtype.itemsize

    @property
    def chunk_samples(self) -> int | None:
        """Samples that are read and decoded together, None where each can be read by itself."""
        layout = self.layout
        if isinstance(layout, Contiguous) or (isinstance(layout, Chunked) and not layout.filters):
            return None
        return layout.chunk[self.arrangement.sample_axis] if layout.chunk else None

    def require_like(self, first: StoredArray, what: str) -> None:
        """Raises SourceError, begun by `what`, where its samples are not of the shape and type of those of `first`."""
        if self._form != first._form:
            raise SourceError(
                f"{what}: the samples differ between files: {first} has {first._said}, {self} has {self._said}; "
                "all files need the same shape per sample and the same type"
            )

    @property
    def _form(self) -> tuple[object, ...]:
        # Strings are delivered in the size of the longest, and either byte order as this machine's own.
        dtype = "string" if self.dtype.kind == "S" else self.dtype.newbyteorder("=")
        return dtype, self.longest is None, self.sample_shape

    @property
    def _said(self) -> str:
        return f"{self.sample_shape} {self.dtype}"
