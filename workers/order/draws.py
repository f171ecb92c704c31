"""What a sampler has drawn, as it lies in memory: a sample, and how often it came before in the epoch, in one int64.

Random numbers belong to the draw: else all copies of a rare class would be augmented in the same way. A sample's first
draw is its index.
"""

from __future__ import annotations

import numpy as np

from ..base.specs import IndexArray

_INDEX_BITS = 48

MOST_SAMPLES = 1 << _INDEX_BITS

_MOST_TIMES = (1 << 63 - _INDEX_BITS) - 1
"""Later draws of one sample get the same random numbers."""


def draws_of(indices: IndexArray) -> IndexArray:
    """The draws of an epoch that has these samples, in order, both of shape (samples,)."""
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
    """The samples' indices, of the shape of `draws`."""
    return draws & (MOST_SAMPLES - 1)
