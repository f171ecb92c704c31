"""The conversion of a batch as compiled loops, where Numba is installed: every item is read once and written once.

The values are those of the NumPy way to the bit: the same two operations in float32, and no contraction into one.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...workers.api import AnyArray, Gather, IndexArray

_WORTH_COMPILING = 1 << 30
"""Loading Numba and compiling takes about a second, once. NumPy converts so many items in about half of one: who has
had so many converted will have many more."""

FEWEST_ITEMS = 1 << 20
"""The smallest batch for compiled loops. Below it, they save microseconds: it takes 80,000 batches of 28×28 to make up
for the second in which the trainer stands still. So a conversion compares with this first."""

_items = 0
"""Converted so far in this process."""


def converting_into(
    out: AnyArray, stored: np.dtype[Any], mean: NDArray[np.float32], scale: float | NDArray[np.float32]
) -> Gather | None:
    """Return a function that puts `(value - mean) * scale` into `out`; None without Numba, or for little data.

    `out`: shape (rows, *sample shape). `stored`: the type of the samples' values. `mean`: shape (), or that of a
    sample, its axes of length 1 broadcast. `scale`: one number, or shape (channels, 1, …). Numbers along the last axis
    are left to NumPy.
    """
    if not _fits(stored, out):
        return None
    means, scales = mean.reshape(-1), np.float32(scale).reshape(-1)
    if _is_by_channel(mean) and _is_by_channel(scale):
        loop, cut = _compiled(_by_plane), [max(means.size, scales.size), -1]
    elif scales.size == 1 and mean.shape == out.shape[1:]:
        loop, cut = _compiled(_by_item), [-1]
    else:
        return None
    if loop is None:
        return None
    rows = out.reshape([len(out), *cut])
    return lambda values, begins, positions: loop(values, begins, positions, rows, means, scales)


def convert_compiled(
    rows: AnyArray, out: AnyArray, mean: NDArray[np.float32], scale: float | NDArray[np.float32]
) -> bool:
    """`(rows - mean) * scale` into `out`, both of shape (rows, *sample shape); False if it was not done."""
    if not rows.flags.c_contiguous or (gather := converting_into(out, rows.dtype, mean, scale)) is None:
        return False
    positions = np.arange(len(rows))
    gather(rows.reshape(-1), positions * math.prod(rows.shape[1:]), positions)
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
    if not rows.flags.c_contiguous or not _is_by_channel(scale) or not _fits(rows.dtype, out):
        return False
    if (loop := _compiled(_by_crop)) is None:
        return False
    loop(rows, out, means, corners, np.float32(scale).reshape(-1))
    return True


def _is_by_channel(numbers: float | NDArray[np.float32]) -> bool:
    return all(extent == 1 for extent in np.shape(numbers)[1:])


def _fits(stored: np.dtype[Any], out: AnyArray) -> bool:
    """Return true if compiled loops can do it, and enough was converted by now.

    False for floats of other sizes: NumPy notices if a float64 is beyond float32, and Numba knows no float16.
    """
    global _items  # noqa: PLW0603 - of this process
    if out.dtype != np.float32 or not out.flags.c_contiguous or not stored.isnative:
        return False
    if stored.kind not in "iu" and stored != np.float32:
        return False
    _items += out.size
    return _items > _WORTH_COMPILING


@functools.cache
def _compiled(loop: Callable[..., None]) -> Callable[..., None] | None:
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    compiled: Callable[..., None] = numba.njit(loop, nogil=True)
    return compiled


def _by_plane(values: Any, begins: Any, positions: Any, out: Any, mean: Any, scale: Any) -> None:
    """Sample i, which begins at values[begins[i]], into row positions[i] of out, shape (rows, planes, items): planes of
    one mean and one scale each, taken in turn.
    """
    planes, items = out.shape[1:]
    for sample in range(len(begins)):
        for plane in range(planes):
            own, factor = mean[plane % len(mean)], scale[plane % len(scale)]
            begin = begins[sample] + plane * items
            line, target = values[begin : begin + items], out[positions[sample], plane]
            for item in range(items):
                target[item] = (np.float32(line[item]) - own) * factor


def _by_item(values: Any, begins: Any, positions: Any, out: Any, mean: Any, scale: Any) -> None:
    """The same with a mean for each item; out of shape (rows, items)."""
    items = out.shape[1]
    for sample in range(len(begins)):
        line, target = values[begins[sample] : begins[sample] + items], out[positions[sample]]
        for item in range(items):
            target[item] = (np.float32(line[item]) - mean[item]) * scale[0]


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
