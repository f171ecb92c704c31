"""Converts type, mean and scale in one pass: on the way into a slot that is handed over, or from the slot into a blob.

The extension `_convert` (convert.c) does it where it was built, and NumPy else, with the same values to the bit.
Measured for 64×3×224×224 (38 MB of float32) on one core of an AMD EPYC 9004, where the plain copy of float32 takes
2.2 ms: uint8 to float32 with a mean and a scale 1.5 ms, by NumPy 3.1 ms. What did not work by NumPy: letting a ufunc
convert (it goes through buffers of 8192 items, and each pass reads memory again), cv2.LUT, numexpr on one thread, a
scratch block in the cache (the first store into memory that is not in the cache is what costs, so that goes to the top
itself).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..api import AnyArray, Gather, IndexArray

try:
    from ._convert import convert
except ImportError:  # installed without a compiler
    convert = None  # type: ignore[assignment]

BLOCK_ITEMS = 1 << 18
"""A megabyte of float32: most of a block is still in the second-level cache when the next operation comes to it."""

_ROW_ITEMS = 1 << 14
"""Samples of fewer are gathered before they are converted: Python around each takes longer than a pass over them."""

_STREAMED_BYTES = 1 << 24
"""Results from here on go past the caches: with others' data they are larger than these anyway."""

_STREAMED_COPY_BYTES = 1 << 22
"""Likewise for what is copied: 64 rows of 150 KB took 0.80 of the time of `numpy.take` into slots, and copied from
there to a blob all in all 0.88."""

Mean = NDArray[np.float32]

_NO_MEAN: Mean = np.zeros((), np.float32)


class MeanImage:
    """`whole`: shape (channels, height, width). `shape`: of a sample, with at most that height and width.

    `both`: shape (2, channels, height, width), the mean and its mirror image, so that every part is read forwards.
    """

    def __init__(self, whole: Mean, shape: tuple[int, ...]) -> None:
        self.both: Mean = np.stack([whole, whole[:, :, ::-1]])
        self._height, self._width = shape[1:]
        self._spare_height, self._spare_width = (
            have - want for have, want in zip(whole.shape[1:], shape[1:], strict=True)
        )

    @property
    def centre(self) -> Mean:
        """The part under a centred crop, shape (channels, height, width)."""
        return np.ascontiguousarray(self.part((0, self._spare_height // 2, self._spare_width // 2)))

    def corners(self, notes: AnyArray) -> IndexArray:
        """Return the start of each row's part in `both`: image, top and left, shape (rows, 3).

        `notes`: shape (rows, 3), CropMirror.note of each row. The centres of image and mean lie upon each other; a part
        that would reach beyond a mean smaller than the image is moved back into it.
        """
        down, right, mirrored = notes.T.astype(np.int64)
        top = np.clip(self._spare_height // 2 + down, 0, self._spare_height)
        left = np.clip(self._spare_width // 2 + right, 0, self._spare_width)
        return np.stack([mirrored, top, np.where(mirrored, self._spare_width - left, left)], axis=1)

    def part(self, corner: tuple[int, int, int]) -> Mean:
        """A view, shape (channels, height, width)."""
        image, top, left = corner
        return self.both[image, :, top : top + self._height, left : left + self._width]


@dataclass(frozen=True, eq=False)
class Conversion:
    """`(value - mean) * scale`, as Caffe's data layers compute it.

    `scale`: one number, or float32 of shape (channels, 1, 1).
    `mean`: float32, shape (channels, height, width), (channels, 1, 1) or (1, 1, 1), or None.
    `axis`: 0, or -1 where both have a number for each entry of the last axis: shape (1, features).
    `image`: what `mean` is the centre of, for rows whose crops lie elsewhere.
    """

    scale: float | Mean = 1.0
    mean: Mean | None = None
    image: MeanImage | None = None
    axis: int = 0

    @functools.cached_property
    def changes_values(self) -> bool:
        return self.mean is not None or self.scales

    @functools.cached_property
    def scales(self) -> bool:
        return isinstance(self.scale, np.ndarray) or self.scale != 1.0

    def computed_in(self, into: np.dtype[np.generic]) -> np.dtype[np.generic]:
        """The type of each step on the way into the type `into`: at least float32, and rounded to `into` at the end."""
        return np.dtype(np.float32) if self.changes_values and into.itemsize < 4 else into

    def put(self, rows: AnyArray, out: AnyArray, corners: IndexArray | None = None) -> None:
        """Convert `rows` into `out`, both of shape (rows, *sample shape), which `check_types` has let pass.

        `corners`: shape (rows, 3), as MeanImage.corners gives them, where each row has its own part of the mean.
        Raises FloatingPointError where a value is beyond the range of the type that is computed in, or the result is
        beyond that of a narrower `out`. What the arithmetic itself takes beyond float32 is infinite, as in Caffe.
        """
        if _is_plain(rows.dtype, out) and rows.flags.c_contiguous and rows.flags.aligned:
            image = None if corners is None else self.image
            self._put_compiled(out, rows, None, None, image, corners)
            return
        if not self.changes_values:
            _cast(rows, out)
            return
        if self.image is not None and corners is not None:
            self._put_cropped(rows, out, self.image, corners)
            return
        mean, scale = self._mean_for(rows.shape[1:]), self._scale_for(rows.shape[1:], out.dtype)
        for block in _blocks(rows.shape):
            inner = block[1:]
            self._put_block(
                rows[block],
                out[block],
                None if mean is None else mean[inner],
                scale if scale is None or not scale.ndim else scale[inner],
            )

    def _put_compiled(
        self,
        out: AnyArray,
        values: AnyArray,
        begins: IndexArray | None,
        positions: IndexArray | None,
        image: MeanImage | None = None,
        corners: IndexArray | None = None,
    ) -> None:
        mean = image.both if image is not None else _NO_MEAN if self.mean is None else self.mean
        streams = out.nbytes >= _STREAMED_BYTES
        convert(values, begins, positions, out, mean, self._factors, None if image is None else corners, streams)

    @functools.cached_property
    def _factors(self) -> AnyArray:
        return np.asarray(self.scale, np.float32)

    def corners(self, notes: object) -> IndexArray | None:
        """Return the place of each row's part of the mean image, shape (rows, 3); None if all have the same.

        `notes`: the slot's array CROPS, if it has one.
        """
        return self.image.corners(notes) if self.image is not None and isinstance(notes, np.ndarray) else None

    def gather_into(self, out: AnyArray, stored: np.dtype[np.generic]) -> Gather | None:
        """Return a function that converts samples of the type `stored` into `out`; None if `put` has to do it.

        Only for a type of which float32 holds every value: nothing is checked.
        """
        if _is_plain(stored, out):
            return partial(self._put_compiled, out)
        is_large = _ROW_ITEMS <= math.prod(out.shape[1:]) <= BLOCK_ITEMS
        return partial(self._put_found, out) if is_large and out.dtype == np.float32 else None

    def _put_found(self, out: AnyArray, values: AnyArray, begins: IndexArray, positions: IndexArray) -> None:
        shape = out.shape[1:]
        mean, scale, items = self._mean_for(shape), self._scale_for(shape, out.dtype), math.prod(shape)
        for begin, position in zip(begins.tolist(), positions.tolist(), strict=True):
            self._put_block(values[begin : begin + items].reshape(shape), out[position], mean, scale)

    def _mean_for(self, shape: tuple[int, ...]) -> Mean | None:
        return None if self.mean is None else np.broadcast_to(self.mean, shape)

    def _put_cropped(self, rows: AnyArray, out: AnyArray, image: MeanImage, corners: IndexArray) -> None:
        scale = self._scale_for(rows.shape[1:], out.dtype)
        for row, corner in enumerate(corners.tolist()):
            self._put_block(rows[row], out[row], image.part(corner), scale)

    def _scale_for(self, shape: tuple[int, ...], into: np.dtype[np.generic]) -> AnyArray | None:
        """One number, or a view of a sample's shape, to be cut like the sample; None if nothing is scaled."""
        if not self.scales:
            return None
        scale = np.asarray(self.scale, self.computed_in(into))
        return np.broadcast_to(scale, shape) if scale.ndim else scale

    def _put_block(self, values: AnyArray, out: AnyArray, mean: Mean | None, scale: AnyArray | None) -> None:
        computed_in = self.computed_in(out.dtype)
        work = out if computed_in == out.dtype else np.empty(out.shape, computed_in)
        if values.dtype != work.dtype:
            _cast(values, work)
            values = work
        if mean is not None:
            np.subtract(values, mean, out=work)
            values = work
        if scale is not None:
            np.multiply(values, scale, out=work)
        if work is not out:
            _cast(work, out)


def gather(memory: NDArray[np.uint8], addresses: IndexArray, positions: IndexArray, rows: NDArray[np.uint8]) -> bool:
    """Put the bytes at memory[addresses[i]] into rows[positions[i]]; False if the extension is not there.

    `rows`: shape (number, bytes of a row), C-contiguous. Raises IndexError.
    """
    if convert is None:
        return False
    places = np.ascontiguousarray(addresses), np.ascontiguousarray(positions)
    convert(memory, *places, rows, None, None, None, rows.nbytes >= _STREAMED_COPY_BYTES)
    return True


def _is_plain(stored: np.dtype[np.generic], out: AnyArray) -> bool:
    """Return true if the extension can convert values of the type `stored` into `out`.

    False for floats of other sizes: NumPy notices if a float64 is beyond float32.
    """
    return (
        convert is not None
        and out.dtype == np.float32
        and out.flags.c_contiguous
        and out.flags.aligned
        and stored.isnative
        and (stored.kind in "iu" or stored == np.float32)
    )


def _cast(values: AnyArray, out: AnyArray) -> None:
    """Raises FloatingPointError if a value gets infinite: the processor notes it by the way, so the check is free."""
    if values.dtype.kind != "f" or values.itemsize <= out.itemsize:
        np.copyto(out, values, casting="same_kind")
        return
    with np.errstate(over="raise"):
        np.copyto(out, values, casting="same_kind")


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Cuts `shape` into blocks of at most `BLOCK_ITEMS` items, contiguous where the array is."""
    items = math.prod(shape[1:])
    step = max(1, BLOCK_ITEMS // max(1, items))
    for first in range(0, shape[0], step):
        here = slice(first, first + step)
        if items <= BLOCK_ITEMS:
            yield (here,)
        else:
            yield from ((here, *inner) for inner in _blocks(shape[1:]))
