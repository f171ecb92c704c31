"""Is it uniform? A chi-square test, with what it takes to write it without SciPy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def deviation(counts: ArrayLike) -> float:
    """How far counts of equally likely cells are from equal, in standard deviations: above 4 by one chance in 30,000.

    The chi-square statistic, brought to a normal one by the cube root of Wilson and Hilferty (1931).
    """
    cells = np.asarray(counts, np.float64).ravel()
    expected = cells.sum() / cells.size
    if expected < 5:
        raise ValueError(f"{expected:.2g} expected in each cell: the chi-square distribution needs at least 5")
    freedom = cells.size - 1
    statistic = float(((cells - expected) ** 2).sum() / expected)
    spread = 2 / (9 * freedom)
    return (math.cbrt(statistic / freedom) - (1 - spread)) / math.sqrt(spread)


def joint_counts(first: ArrayLike, second: ArrayLike, n: int, parts: int = 16) -> NDArray[np.int64]:
    """How often numbers of [0, n) fall into each pair of `parts` equal ranges; shape (parts, parts).

    If n is no multiple of `parts`, n has to be so large that the ranges are equal for all that can be counted.
    """
    cells = [np.asarray(numbers, np.float64) * (parts / n) for numbers in (first, second)]
    flat = cells[0].astype(np.int64) * parts + cells[1].astype(np.int64)
    return np.bincount(flat, minlength=parts * parts).reshape(parts, parts)
