"""Converts a batch's values on their way from the slot into the top: type, mean and scale, in one pass.

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

from ...workers.api import AnyArray, Gather, IndexArray, channels_first_hint, exact_up_to
from ...workers.base import InexactValueError, ParameterError
from .mean_images import Mean, MeanImage

try:
    from ._convert import convert
except ImportError:  # installed without a compiler
    convert = None  # type: ignore[assignment]

_BLOCK_ITEMS = 1 << 18
"""A megabyte of float32: most of a block is still in the second-level cache when the next operation comes to it."""

_ROW_ITEMS = 1 << 14
"""Samples of fewer are gathered before they are converted: Python around each takes longer than a pass over them."""

_STREAMED_BYTES = 1 << 24
"""Results from here on go past the caches: with others' data they are larger than these anyway."""

_NO_MEAN: Mean = np.zeros((), np.float32)


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

    def gather_into(self, out: AnyArray, stored: np.dtype[np.generic]) -> Gather | None:
        """Return a function that converts samples of the type `stored` into `out`; None if `put` has to do it.

        Only for a type of which float32 holds every value: nothing is checked.
        """
        if _is_plain(stored, out):
            return partial(self._put_compiled, out)
        is_large = _ROW_ITEMS <= math.prod(out.shape[1:]) <= _BLOCK_ITEMS
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
    """Cuts `shape` into blocks of at most `_BLOCK_ITEMS` items, contiguous where the array is."""
    items = math.prod(shape[1:])
    step = max(1, _BLOCK_ITEMS // max(1, items))
    for first in range(0, shape[0], step):
        here = slice(first, first + step)
        if items <= _BLOCK_ITEMS:
            yield (here,)
        else:
            yield from ((here, *inner) for inner in _blocks(shape[1:]))


def mean_of(
    values: tuple[float, ...], shape: tuple[int, ...], top: str, parameter: str = "mean_value", axis: int = 0
) -> Mean:
    """`mean_value`, or `scale`, for samples of `shape`: one number, or one for each entry of `axis`, 0 or -1."""
    entries = shape[axis] if shape else 1
    if len(values) not in (1, entries):
        of_last = "; for the last axis, such as the features of a window, say axis: last"
        hint = "" if axis else of_last if shape[-1:] == (len(values),) else channels_first_hint(shape)
        each = "channels" if axis == 0 else "entries of the last axis"
        raise ParameterError(
            f"parameter 'transform.{parameter}' has {len(values)} values, and the samples of top {top!r} have the "
            f"shape {shape}: expected one value, or one for each of the {entries} {each}{hint}"
        )
    others = [1] * (len(shape) - 1)
    return np.array(values, np.float32).reshape(([-1, *others] if axis == 0 else [*others, -1]) if shape else [])


def check_types(stored: np.dtype[np.generic], into: np.dtype[np.generic], conversion: Conversion, top: str) -> None:
    """Raises ParameterError where values of the one type are not meant for memory of the other, whatever they are."""
    if conversion.changes_values and into.kind != "f":
        raise ParameterError(
            f"top {top!r} has a mean or a scale, and is to be put into {into.name} memory, which would cut the result "
            "to whole numbers: give it memory of a floating-point type, or leave out 'transform.scale' and the mean"
        )
    if not np.can_cast(stored, into, "same_kind"):
        raise ParameterError(
            f"top {top!r} has values of type {stored.name}, and is to be put into {into.name} memory, which cannot "
            "hold them: make another type of them in decode, or leave the top out of 'tops'"
        )


def check_whole_numbers(rows: AnyArray, into: np.dtype[np.generic], top: str) -> None:
    """Raises InexactValueError where `rows` has integers that the type `into` cannot hold exactly."""
    bounds = _bounds(rows.dtype, into)
    if bounds is None or not rows.size:
        return
    lowest, highest = bounds
    for value in (int(rows.max()), int(rows.min())):
        if not lowest <= value <= highest:
            raise InexactValueError(
                f"top {top!r} got the {rows.dtype.name} value {value}, and {into.name} holds whole numbers exactly "
                f"only from {lowest} to {highest}: store or decode it as a float if rounding is meant, split it "
                "into two tops, or read it with a BatchReader, whose tensors keep the type"
            )


@functools.cache
def _bounds(stored: np.dtype[np.generic], into: np.dtype[np.generic]) -> tuple[int, int] | None:
    """Return the lowest and the highest whole number that `into` holds exactly.

    None if it holds all of `stored`, or `stored` has no integers.
    """
    if stored.kind not in "iu" or into.kind not in "iuf":
        return None
    (lowest, highest), (least, most) = whole_numbers(into), whole_numbers(stored)
    return None if lowest <= least and most <= highest else (lowest, highest)


def whole_numbers(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """The lowest and the highest of the whole numbers that a type holds without a gap."""
    if dtype.kind == "f":
        limit = exact_up_to(dtype)
        return -limit, limit
    if dtype.kind == "b":
        return 0, 1
    return int(np.iinfo(dtype.name).min), int(np.iinfo(dtype.name).max)


def check_range(
    rows: AnyArray, into: np.dtype[np.generic], conversion: Conversion, top: str, corners: IndexArray | None = None
) -> None:
    """Raises InexactValueError where a value gets infinite in the type `into`, as `Conversion.put` would.

    Needed only for memory on a device: in host memory `Conversion.put` raises FloatingPointError itself, at no cost.
    `corners`: as there.
    """
    if _stays_within(rows, into, conversion):
        return
    step = max(1, _BLOCK_ITEMS // max(1, math.prod(rows.shape[1:])))
    for first in range(0, len(rows), step):
        here = slice(first, first + step)
        try:
            conversion.put(rows[here], np.empty(rows[here].shape, into), None if corners is None else corners[here])
        except FloatingPointError:
            raise out_of_range(rows, into, conversion, top) from None


def _stays_within(rows: AnyArray, into: np.dtype[np.generic], conversion: Conversion) -> bool:
    """Return true if no value can leave the range, which types and mean alone may show."""
    kind, computed_in = rows.dtype.kind, conversion.computed_in(into)
    if into.kind != "f" or kind not in "biuf" or not rows.size:
        return True
    if kind == "f" and computed_in.itemsize < rows.itemsize:
        return False
    if computed_in == into:
        return True
    ends = (rows.min(), rows.max()) if kind == "f" or rows.itemsize > 1 else whole_numbers(rows.dtype)
    mean = conversion.mean if conversion.image is None else conversion.image.both
    largest = max(abs(float(end)) for end in ends) + (0.0 if mean is None else float(np.abs(mean).max()))
    return bool(largest * np.abs(conversion.scale).max() < np.finfo(into.name).max)


def out_of_range(rows: AnyArray, into: np.dtype[np.generic], conversion: Conversion, top: str) -> InexactValueError:
    """The error for `rows`, of which one value is finite and gets infinite on its way into the type `into`."""
    finite = rows[np.isfinite(rows)]
    value = finite[np.abs(finite.astype(np.float64)).argmax()]
    changed = ", from which 'transform' subtracts and which it scales" if conversion.changes_values else ""
    return InexactValueError(
        f"top {top!r} got the {rows.dtype.name} value {value:g}{changed}, and {into.name} holds none beyond "
        f"{float(np.finfo(into.name).max):g}: bring the values into that range in decode, or read them with a "
        "BatchReader, whose arrays keep the type"
    )
