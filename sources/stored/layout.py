"""The layout of arrays in files, and the form of their samples: found by the trainer, used by the loaders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...workers.api import Outlier, chosen
from ...workers.base import ParameterError
from ..files import Stamp, are_small
from .packing import Attributes, Packing

_DELIVERED = "cdhw"

Dims = tuple[str, ...] | dict[str, tuple[str, ...]] | None
"""The option `dims`: the stored order of the first top's dimensions, or a mapping from top to such an order."""


class Arrangement(msgspec.Struct, frozen=True):
    """The stored axis that counts the samples, and the order of the others.

    `order`: for each delivered axis, its number among the stored axes without `sample_axis`; None: they are delivered
    as they are stored.
    """

    sample_axis: int = 0
    order: tuple[int, ...] | None = None

    def delivered(self, stored: Sequence[int]) -> tuple[int, ...]:
        """The shape of one delivered sample; `stored` is the whole array's shape."""
        sample = without(stored, self.sample_axis)
        return sample if self.order is None else tuple(sample[axis] for axis in self.order)


FIRST_AXIS = Arrangement()


def without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """`shape` without one axis."""
    return (*shape[:axis], *shape[axis + 1 :])


def from_names(names: Sequence[str], rank: int, what: str) -> Arrangement:
    """The arrangement of an array stored with dimensions `names`: 'n' and any of 'c', 'd', 'h', 'w'.

    Raises ParameterError if they are not that, or not as many as the array has.
    """
    if len(set(names)) != len(names) or "n" not in names or not set(names) <= set("n" + _DELIVERED):
        raise ParameterError(
            f"{what}: parameter 'dims' is {list(names)!r}: expected the stored order of the dimensions, 'n' (samples) "
            "once and each of 'c', 'd', 'h', 'w' at most once, such as [n, h, w, c]"
        )
    if len(names) != rank:
        raise ParameterError(
            f"{what}: parameter 'dims' names {len(names)} dimensions, {list(names)!r}, but the array has {rank}"
        )
    sample = [name for name in names if name != "n"]
    return Arrangement(list(names).index("n"), tuple(sample.index(name) for name in _DELIVERED if name in sample))


def dims_by_top(dims: Dims, tops: Sequence[str], what: str) -> Mapping[str, tuple[str, ...]]:
    """The option `dims` as a mapping from top to names; raises ParameterError for a name that is no top."""
    named = dims if isinstance(dims, dict) else {tops[0]: dims} if dims else {}
    chosen(dict.fromkeys(tops), named, f"{what}: parameter 'dims'")
    return named


FilterKind = Literal["deflate", "crc32c", "numcodecs"]


class ChunkFilter(msgspec.Struct, frozen=True):
    """A step of writing a chunk's bytes; `codec`, for numcodecs alone, is the codec's configuration as JSON."""

    kind: FilterKind
    codec: str = ""


class Chunked(msgspec.Struct, frozen=True, eq=False):
    """In chunks of equal shape, each somewhere in the file; an array in one piece is a single chunk of its own shape.

    `offsets`: int64, one for each position in the grid of chunks in C order, -1 if a chunk was never written: its
    elements are then `fill` (the bytes of one element). `sizes`: stored bytes of each, None if nothing is filtered.
    `skipped`: for each chunk the bits of the filters that were not applied to it, None if all were.
    """

    chunk: tuple[int, ...]
    offsets: NDArray[np.int64]
    fill: bytes = b""
    filters: tuple[ChunkFilter, ...] = ()
    sizes: NDArray[np.uint32] | None = None
    skipped: NDArray[np.uint32] | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """The axis of the array that each axis of a stored chunk is."""
        return tuple(range(len(self.chunk)))


class ThroughLibrary(msgspec.Struct, frozen=True):
    """Only the HDF5 library can read it.

    `chunk`: the shape of its chunks if it has any. `plugin`: whether the library needs hdf5plugin for its filters.
    """

    chunk: tuple[int, ...] | None = None
    plugin: bool = False


class ChunkObjects(msgspec.Struct, frozen=True):
    """In chunks of equal shape, each of them, or each shard of several, a file or object of its own, as in zarr.

    `folder`: where they lie. `lead`, `separator`: of their names, as in c/3/0. `order`: which axis of the array each
    axis of a stored chunk is. `shard`: the number of chunks along each axis of a shard, None if each is by itself; then
    an index at the shard's end, or its start, has the chunks' offsets and sizes, and a checksum if `index_checked`.
    """

    folder: str
    chunk: tuple[int, ...]
    lead: str
    separator: str
    fill: bytes
    filters: tuple[ChunkFilter, ...]
    order: tuple[int, ...]
    shard: tuple[int, ...] | None = None
    index_at_end: bool = True
    index_checked: bool = True

    def key(self, at: Sequence[int]) -> str:
        """The name of the chunk or shard at position `at` of their grid."""
        return self.lead + self.separator.join(map(str, at))


Layout = Chunked | ThroughLibrary | ChunkObjects


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array in a file: `shape` and `dtype` as stored (elements that are arrays themselves count as further axes).

    `arrangement` says which axis counts the samples and how the others are delivered; by default the first axis does
    and the rest stays as it is. Strings of varying length have the fixed type that holds the longest; `longest` is set
    if each element is an array of varying length. `others`: further files that hold some of it.
    `largest`: of elements of varying length the longest, if all were looked at. `attributes`: what the file says of the
    numbers by the conventions of netCDF; `packing`: what of it is applied. `dims`: the names of the axes, if the file
    has them.
    """

    file: Stamp
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    layout: Layout
    longest: int | None = None
    arrangement: Arrangement = FIRST_AXIS
    others: tuple[Stamp, ...] = ()
    largest: Outlier | None = None
    attributes: Attributes = field(default_factory=dict)
    packing: Packing | None = None
    dims: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file.path}:{self.name}" if self.name else self.file.path

    @property
    def samples(self) -> int:
        return self.shape[self.arrangement.sample_axis]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.arrangement.delivered(self.shape)

    @property
    def delivered_dtype(self) -> np.dtype[np.generic]:
        return self.packing.dtype if self.packing else self.dtype.newbyteorder("=")

    @property
    def sample_bytes(self) -> int:
        return math.prod(self.sample_shape) * self.dtype.itemsize

    @property
    def lies_in_rows(self) -> bool:
        """True if each sample that was written is one stretch of bytes."""
        layout = self.layout
        return (
            isinstance(layout, Chunked)
            and not layout.filters
            and not self.arrangement.sample_axis
            and layout.chunk[1:] == self.shape[1:]
        )

    @property
    def delivers_rows(self) -> bool:
        """True if each sample is one stretch of bytes, in the form in which it is delivered."""
        order = self.arrangement.order
        return (
            self.lies_in_rows
            and isinstance(self.layout, Chunked)
            and self.dtype.isnative
            and not self.packing
            and order in (None, tuple(range(len(self.shape) - 1)))
            and int(self.layout.offsets.min(initial=0)) >= 0
        )

    @property
    def chunk_samples(self) -> int | None:
        """Samples that are read and decoded together, None if each can be read by itself."""
        layout = self.layout
        if isinstance(layout, Chunked) and not layout.filters:
            return None
        return layout.chunk[self.arrangement.sample_axis] if layout.chunk else None

    @property
    def decoded_bytes(self) -> int:
        """Bytes of what is decoded to get at one sample: its chunk, or the chunks side by side that it lies in.

        Chunks that are not filtered are mapped. Those on a network, and those with large rows, are read whole if a
        sample is no single stretch.
        """
        if self.layout.chunk is None:
            return 0
        row_bytes = math.prod(without(self.layout.chunk, self.arrangement.sample_axis)) * self.dtype.itemsize
        is_mapped = self.layout.chunk == self.shape or (not self.file.on_network and are_small(row_bytes))
        if self.chunk_samples is None and (is_mapped or self.lies_in_rows):
            return 0
        if self.layout.chunk[self.arrangement.sample_axis] == 1:  # no other sample needs any of them
            return math.prod(self.layout.chunk) * self.dtype.itemsize
        pairs = zip(self.shape, self.layout.chunk, strict=True)
        extents = [
            size if axis == self.arrangement.sample_axis else -(-extent // size) * size
            for axis, (extent, size) in enumerate(pairs)
        ]
        return math.prod(extents) * self.dtype.itemsize

    @property
    def form(self) -> tuple[object, ...]:
        """The type and shape that the arrays of one top must have in common."""
        # Strings are delivered in the size of the longest, and either byte order as this machine's own.
        dtype = self.dtype.kind if self.dtype.kind in "SU" else self.delivered_dtype
        return dtype, self.longest is None, self.sample_shape
