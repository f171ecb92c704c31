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

_FEWEST_ITEMS = 1 << 20
"""Below a million items NumPy takes less than half a millisecond; loading and compiling takes about a second, once."""

_Loops = tuple[Callable[..., None], Callable[..., None], Callable[..., None]]


def convert_compiled(rows: AnyArray, out: AnyArray, mean: NDArray[np.float32], scale: float) -> bool:
    """`(rows - mean) * scale` into `out`; False where it was not done: no Numba, few items, or no plain memory.

    `rows`, `out`: shape (rows, *sample shape). `mean`: shape (), or that of a sample, its axes of length 1 broadcast.
    """
    if not _fits(rows, out) or (loops := _loops()) is None:
        return False
    by_plane, by_item, _ = loops
    if mean.size in (1, rows.shape[1]) and mean.shape[1:] == (1,) * (mean.ndim - 1):
        planes = (rows.shape[0] * mean.size, -1)
        by_plane(rows.reshape(planes), out.reshape(planes), mean.reshape(-1), np.float32(scale))
    else:
        items = (rows.shape[0], -1)
        by_item(rows.reshape(items), out.reshape(items), mean.reshape(-1), np.float32(scale))
    return True


def convert_cropped(
    rows: AnyArray, out: AnyArray, means: NDArray[np.float32], corners: IndexArray, scale: float
) -> bool:
    """The same with a part of a larger mean for each row; False where it was not done.

    `means`: shape (means, channels, height, width). `corners`: shape (rows, 3), which mean, its part's top and left.
    """
    if not _fits(rows, out) or (loops := _loops()) is None:
        return False
    loops[2](rows, out, means, corners, np.float32(scale))
    return True


def _fits(rows: AnyArray, out: AnyArray) -> bool:
    return rows.size >= _FEWEST_ITEMS and out.dtype == np.float32 and _is_plain(rows) and _is_plain(out)


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
    return compiled(_by_plane), compiled(_by_item), compiled(_by_crop)


def _by_plane(rows: Any, out: Any, mean: Any, scale: Any) -> None:
    """Planes of one mean each, taken in turn; rows and out of shape (planes, items)."""
    for plane in range(rows.shape[0]):
        own = mean[plane % len(mean)]
        for item in range(rows.shape[1]):
            out[plane, item] = (np.float32(rows[plane, item]) - own) * scale


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
            for y in range(rows.shape[2]):
                line, target = rows[row, channel, y], out[row, channel, y]
                own = means[mean, channel, top + y, left : left + width]
                for x in range(width):
                    target[x] = (np.float32(line[x]) - own[x]) * scale
