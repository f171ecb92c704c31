"""The conversion of a batch as compiled loops, where Numba is installed: every item is read once and written once.

The values are those of the NumPy way to the bit: the same two operations in float32, and no contraction into one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...workers.base.specs import AnyArray, IndexArray

_WORTH_COMPILING = 1 << 30
"""Loading Numba and compiling takes about a second, once. NumPy converts so many items in about half of one: who has
had so many converted will have many more."""

FEWEST_ITEMS = 1 << 20
"""In a batch. Below, a compiled loop saves microseconds: with batches of 28×28 it takes 80,000 of them to make up for
the second in which the trainer stands still. So whoever converts looks here first."""

_items = 0
"""Converted so far in this process."""

_Loops = tuple[Callable[..., None], Callable[..., None], Callable[..., None], Callable[..., None]]


def convert_compiled(
    rows: AnyArray, out: AnyArray, mean: NDArray[np.float32], scale: float | NDArray[np.float32]
) -> bool:
    """`(rows - mean) * scale` into `out`; False where it was not done: no Numba, or no plain memory.

    `rows`, `out`: shape (rows, *sample shape). `mean`: shape (), or that of a sample, its axes of length 1 broadcast.
    `scale`: one number, or shape (channels, 1, …).
    """
    if not _fits(rows, out) or (loops := _loops()) is None:
        return False
    by_plane, by_item, _, _ = loops
    scales = np.float32(scale).reshape(-1)
    if mean.size in (1, *rows.shape[1:2]) and mean.shape[1:] == (1,) * (mean.ndim - 1):
        planes = (rows.shape[0] * max(mean.size, scales.size), -1)
        by_plane(rows.reshape(planes), out.reshape(planes), mean.reshape(-1), scales)
    elif scales.size > 1:
        return False
    else:
        items = (rows.shape[0], -1)
        by_item(rows.reshape(items), out.reshape(items), mean.reshape(-1), scales[0])
    return True


def cast_compiled(rows: AnyArray, out: AnyArray) -> bool:
    """`rows` into `out` as they are; False where it was not done."""
    if rows.dtype == out.dtype or not _fits(rows, out) or (loops := _loops()) is None:
        return False
    loops[3](rows.reshape(-1), out.reshape(-1))
    return True


def convert_cropped(
    rows: AnyArray,
    out: AnyArray,
    means: NDArray[np.float32],
    corners: IndexArray,
    scale: float | NDArray[np.float32],
) -> bool:
    """The same with a part of a larger mean for each row; False where it was not done.

    `means`: shape (means, channels, height, width). `corners`: shape (rows, 3), which mean, its part's top and left.
    """
    if not _fits(rows, out) or (loops := _loops()) is None:
        return False
    loops[2](rows, out, means, corners, np.float32(scale).reshape(-1))
    return True


def _fits(rows: AnyArray, out: AnyArray) -> bool:
    """Whether compiled loops can do it, and are worth it by now."""
    global _items  # noqa: PLW0603 - of this process
    if out.dtype != np.float32 or not _is_plain(rows) or not _is_plain(out):
        return False
    _items += rows.size
    return _items > _WORTH_COMPILING


def _is_plain(array: AnyArray) -> bool:
    """Without floats of other sizes: NumPy notices if a float64 is beyond float32, and Numba knows no float16."""
    kind = array.dtype.kind
    return array.flags.c_contiguous and array.dtype.isnative and (kind in "iu" or array.dtype == np.float32)


@functools.cache
def _loops() -> _Loops | None:
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    compiled = numba.njit(nogil=True)
    return compiled(_by_plane), compiled(_by_item), compiled(_by_crop), compiled(_cast)


def _cast(rows: Any, out: Any) -> None:
    """Both of shape (items,)."""
    for item in range(len(rows)):
        out[item] = np.float32(rows[item])


def _by_plane(rows: Any, out: Any, mean: Any, scale: Any) -> None:
    """Planes of one mean and one scale each, taken in turn; rows and out of shape (planes, items)."""
    for plane in range(rows.shape[0]):
        own, factor = mean[plane % len(mean)], scale[plane % len(scale)]
        for item in range(rows.shape[1]):
            out[plane, item] = (np.float32(rows[plane, item]) - own) * factor


def _by_item(rows: Any, out: Any, mean: Any, scale: Any) -> None:
    """A mean for each item; rows and out of shape (rows, items)."""
    for row in range(rows.shape[0]):
        for item in range(rows.shape[1]):
            out[row, item] = (np.float32(rows[row, item]) - mean[item]) * scale


def _by_crop(rows: Any, out: Any, means: Any, corners: Any, scale: Any) -> None:
    """A part of a mean for each row; rows and out of shape (rows, channels, height, width).

    Line by line: an index into four axes is checked anew for every item, which takes twice the time.
    """
    width = rows.shape[3]
    for row in range(rows.shape[0]):
        mean, top, left = corners[row]
        for channel in range(rows.shape[1]):
            factor = scale[channel % len(scale)]
            for y in range(rows.shape[2]):
                line, target = rows[row, channel, y], out[row, channel, y]
                own = means[mean, channel, top + y, left : left + width]
                for x in range(width):
                    target[x] = (np.float32(line[x]) - own[x]) * factor
