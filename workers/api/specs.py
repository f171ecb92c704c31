"""Shapes and types of a sample's arrays, and rows for samples whose shapes vary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import gt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import SampleTooLargeError

AnyArray = NDArray[Any]
"""An array of any type. Not of np.generic: to a type checker such an array has no arithmetic."""

IndexArray = NDArray[np.int64]

_MOST_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The shape and type of one array of a sample; `shape` has no batch axis.

    If `varies` is true, samples may differ in size. `shape` is then the largest that fits a slot: all samples have its
    number of axes, and no extent is larger.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    varies: bool = False

    @property
    def items(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.items * self.dtype.itemsize

    def require_fits(self, shape: Sequence[int]) -> None:
        """Raises SampleTooLargeError if a sample of `shape` is larger than the declared maximum."""
        if len(shape) != len(self.shape):
            rest = max(tuple(shape), self.shape, key=len)[1:]
            is_empty_list = rest and (tuple(shape) == (0,) or len(self.shape) == 1)  # this one, or the one learnt from
            empty = f"; of an empty list NumPy makes (0,): bring it to {(0, *rest)} by .reshape"
            raise SampleTooLargeError(
                f"a sample has the shape {tuple(shape)}, and the declared maximum is {self.shape}: expected "
                f"{len(self.shape)} axes{empty if is_empty_list else ''}"
            )
        if any(map(gt, shape, self.shape)):
            raise SampleTooLargeError(
                f"a sample of shape {tuple(shape)} does not fit the declared maximum {self.shape}; "
                "declare a larger maximum, or resize or crop the samples"
            )

    def __str__(self) -> str:
        return f"{'up to ' if self.varies else ''}{self.shape} {self.dtype.name}"


def channels_first_hint(shape: Sequence[int]) -> str:
    """Return a hint for an image whose channels seem to come last; "" if they do not."""
    if len(shape) != 3 or shape[0] <= _MOST_CHANNELS or shape[2] not in (1, 3, _MOST_CHANNELS):
        return ""
    return (
        f"; the channels seem to come last: bring them to the front, to {(shape[2], *shape[:2])}, in decode by "
        ".transpose(2, 0, 1), or by the option dims: [n, h, w, c] of the sources hdf5 and npy"
    )


def holds(dtype: np.dtype[np.generic], given: np.dtype[np.generic]) -> bool:
    """Return true if `dtype` holds values of type `given` whole. A text's type has its length, which may be shorter."""
    return given == dtype or (given.kind == dtype.kind and dtype.kind in "SU" and given.itemsize <= dtype.itemsize)


def exact_up_to(dtype: np.dtype[np.generic]) -> int:
    """Return the number up to which a float type holds all whole numbers: 2 to the power of its digits (IEEE 754)."""
    return 1 << (int(np.finfo(dtype.name).nmant) + 1)


def rounded_integer(values: AnyArray, into: np.dtype[np.generic]) -> int | None:
    """Return the integer of `values` farthest from 0 if the float type `into` cannot hold it exactly, else None."""
    if values.dtype.kind not in "iu" or into.kind not in "fc" or not values.size:
        return None
    farthest = max(int(values.max()), int(values.min()), key=abs)
    return farthest if abs(farthest) > exact_up_to(into) else None


@dataclass(slots=True, eq=False)
class RaggedRows:
    """Rows for samples of varying shape. Each row can hold the largest sample and stores its real shape.

    `memory`: shape (rows, spec.items), C-contiguous.  `shapes`: shape (rows, number of axes) int32.
    The sample of row i lies, C-contiguous, at the start of memory[i].
    """

    spec: ArraySpec
    memory: AnyArray
    shapes: NDArray[np.int32]

    @classmethod
    def empty(cls, spec: ArraySpec, rows: int) -> RaggedRows:
        return cls(spec, np.zeros((rows, spec.items), spec.dtype), np.zeros((rows, len(spec.shape)), np.int32))

    def __len__(self) -> int:
        return len(self.memory)

    def __getitem__(self, rows: slice) -> RaggedRows:
        return RaggedRows(self.spec, self.memory[rows], self.shapes[rows])

    def __iter__(self) -> Iterator[AnyArray]:
        """Yield a view of each sample, in its own shape."""
        return map(self.get, range(len(self)))

    def reserve(self, row: int, shape: Sequence[int]) -> AnyArray:
        """Return a writable view of `shape` on the memory of `row`; raises SampleTooLargeError."""
        self.spec.require_fits(shape)
        self.shapes[row] = shape
        return self.memory[row, : math.prod(shape)].reshape(tuple(shape))

    def put(self, row: int, sample: AnyArray) -> None:
        """Copy `sample` into `row`; raises SampleTooLargeError."""
        self.reserve(row, sample.shape)[...] = sample

    def get(self, row: int) -> AnyArray:
        """Return a view of the sample in `row`, in its own shape."""
        shape = tuple(int(extent) for extent in self.shapes[row])
        return self.memory[row, : math.prod(shape)].reshape(shape)


Gather = Callable[[AnyArray, IndexArray, IndexArray], None]
"""A function of (values, begins, positions): copies the sample at values[begins[i]] to row positions[i], for all i."""


@dataclass(slots=True, eq=False)
class ConvertedRows:
    """Rows that are filled from a mapped file with a conversion of type: each value is read once and written once.

    `out`: the rows, shape (rows, *sample shape). `gather` converts samples of bytes into them.
    """

    out: AnyArray
    gather: Gather
    first: int = 0

    def __getitem__(self, rows: slice) -> ConvertedRows:
        return ConvertedRows(self.out, self.gather, self.first + (rows.start or 0))

    def take(self, file: AnyArray, offsets: IndexArray, positions: IndexArray) -> None:
        """Convert the sample at file[offsets[i]] into row positions[i]; `file`: the mapped bytes, shape (bytes,)."""
        self.gather(file, offsets, positions + self.first)


DirectRows = Mapping[str, AnyArray | ConvertedRows]
"""Rows of the trainer's own memory into which samples are read without a slot between, by name."""

Rows = AnyArray | RaggedRows
"""The rows of one name: an array of shape (rows, *spec.shape), or ragged rows if the spec varies."""

NamedRows = Mapping[str, Rows]


def allocate_rows(specs: Mapping[str, ArraySpec], rows: int) -> dict[str, Rows]:
    """Allocate rows for `rows` samples, by name, for a source's `read` to fill."""
    return {
        name: RaggedRows.empty(spec, rows) if spec.varies else np.zeros((rows, *spec.shape), spec.dtype)
        for name, spec in specs.items()
    }
