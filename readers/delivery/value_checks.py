"""Refuses values that do not fit the memory that they are converted into: their types, whole numbers, their range."""

from __future__ import annotations

import functools
import math

import numpy as np

from ...workers.api import AnyArray, IndexArray, exact_up_to
from ...workers.base import InexactValueError, ParameterError
from ...workers.loading import BLOCK_ITEMS, Conversion


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
    step = max(1, BLOCK_ITEMS // max(1, math.prod(rows.shape[1:])))
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
