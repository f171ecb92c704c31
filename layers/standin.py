"""A stand-in for Caffe's objects around a Python layer: the layer's base class, its blobs, and the vectors of them.

It is as strict as Caffe (BVLC Caffe 1.0.0, Python layer, as measured there). An operation at which Caffe aborts the
process raises CaffeAbort here. `except Exception` does not catch it, since nothing catches an abort.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_Item = TypeVar("_Item")

_CACHE_LINE = 64
_ALIGNED_TO = 16
"""The alignment of the memory in bytes, no better than Caffe's."""


class CaffeAbort(BaseException):
    """Caffe would have ended the process here, with exit code 134 and no way to catch it."""


class Layer:
    """The base class of Python layers. Caffe sets `param_str` and `phase` (0 TRAIN, 1 TEST) after construction."""

    param_str: str
    phase: int

    def __init__(self, layer_param: object) -> None:
        self.blobs = BlobVector(())
        self.type = "Python"


class _Vector(Generic[_Item]):
    """A sequence that is no list: `len`, `[i]` and `[-1]` work; an index out of range raises IndexError."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[_Item]) -> None:
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> _Item:
        if not isinstance(index, int):
            raise TypeError(f"expected a plain Python integer as index, got {index!r}")
        return self._items[index]


class Extents(_Vector[int]):
    """A blob's shape. It is iterable, but no tuple and equal to none."""

    __slots__ = ()

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)


class _Memory:
    """Float32 memory that keeps its address when it shrinks. Growing moves it and invalidates older views."""

    def __init__(self) -> None:
        self._floats: NDArray[np.float32] = np.empty(0, np.float32)

    def view(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        count = math.prod(shape)
        if count > len(self._floats):
            # In Caffe such a view dangles. Filling it with NaN is the closest safe imitation.
            self._floats.fill(np.nan)
            self._floats = _barely_aligned(count)
        return self._floats[:count].reshape(shape)


def _barely_aligned(count: int) -> NDArray[np.float32]:
    memory = np.zeros(4 * count + 2 * _CACHE_LINE, np.uint8)
    start = (_ALIGNED_TO - memory.ctypes.data) % _CACHE_LINE
    return memory[start : start + 4 * count].view(np.float32)


def legacy_extents(error: type[BaseException]) -> Iterator[property]:
    """Yield the properties `num`, `channels`, `height` and `width`, which raise `error` for more than 4 axes."""

    def extent(blob: Any, axis: int) -> int:
        shape = tuple(blob.shape)
        if len(shape) > 4:
            raise error(f"num, channels, height and width are for up to 4 axes, and this blob has {shape}")
        return shape[axis] if axis < len(shape) else 1

    return (property(partial(extent, axis=axis)) for axis in range(4))


class Blob:
    """A blob with `data`, `diff`, `shape`, `count`, `num`, `channels`, `height`, `width`, `reshape`, and nothing else.

    Each access to `data` or `diff` returns a new view: float32, C-contiguous, writable, not the owner of its memory.
    """

    __slots__ = ("_data", "_diff", "_shape")

    def __init__(self) -> None:
        self._shape: tuple[int, ...] | None = None
        self._data = _Memory()
        self._diff = _Memory()

    @property
    def data(self) -> NDArray[np.float32]:
        return self._data.view(self._known_shape("data"))

    @property
    def diff(self) -> NDArray[np.float32]:
        return self._diff.view(self._known_shape("diff"))

    @property
    def shape(self) -> Extents:
        return Extents(self._shape or ())

    @property
    def count(self) -> int:
        return 0 if self._shape is None else math.prod(self._shape)

    num, channels, height, width = legacy_extents(CaffeAbort)

    def reshape(self, *shape: int) -> None:
        """Set the shape; accepts only plain Python integers. `reshape()` gives a blob without axes: one number."""
        for extent in shape:
            if not isinstance(extent, int):
                raise TypeError(f"reshape takes plain Python integers, got {extent!r} of type {type(extent).__name__}")
        if any(extent < 0 for extent in shape):
            raise CaffeAbort(f"reshape{shape}: an axis is negative")
        self._shape = shape

    def _known_shape(self, what: str) -> tuple[int, ...]:
        if self._shape is None:
            raise CaffeAbort(f"{what} of a blob was read before its first reshape")
        return self._shape


class BlobVector(_Vector[Blob]):
    """The type of `bottom` and `top`."""

    __slots__ = ()
