"""The memory format of a sampler's draws: one int64 holds a sample index and the count of its earlier draws.

Each draw has its own random numbers: otherwise all copies of a rare class would be augmented in the same way. A
sample's first draw equals its index.
"""

from __future__ import annotations

import numpy as np

from ..base.specs import IndexArray

_INDEX_BITS = 48

MOST_SAMPLES = 1 << _INDEX_BITS

_MOST_TIMES = (1 << 63 - _INDEX_BITS) - 1
"""The largest count of earlier draws. Draws beyond it share their random numbers."""


def draws_of(indices: IndexArray) -> IndexArray:
    """Return the draws of an epoch with these sample indices, in order; both have the shape (samples,)."""
    order = np.argsort(indices, kind="stable")
    is_first = np.diff(indices[order], prepend=-1) != 0
    if is_first.all():
        return indices
    times = np.arange(len(indices))
    times -= np.maximum.accumulate(np.where(is_first, times, 0))
    draws = np.empty_like(indices)
    draws[order] = np.minimum(times, _MOST_TIMES) << _INDEX_BITS
    draws += indices
    return draws


def samples_in(draws: IndexArray) -> IndexArray:
    """Return the sample indices of `draws`, in the same shape."""
    return draws & (MOST_SAMPLES - 1)
