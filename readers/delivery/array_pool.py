"""Memory for batches that a user may keep: what the user has let go is used again."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...workers.api import AnyArray


class ArrayPool:
    """Uninitialised arrays, each its holder's own for as long as anything refers to it.

    The allocator gives large blocks back to the kernel when they are freed, and gets them anew page by page: for a
    batch of 38 MB that made a copy 3.6 times as long as one into memory that is already there. So the pool keeps its
    blocks, and one is free when only the pool refers to it. Views, slices, `torch.from_numpy` and DLPack
    all hold a reference to the block, so a block in use is never taken; what is kept in a list simply stays out of it.
    """

    def __init__(self, blocks: int = 4) -> None:
        """`blocks`: blocks kept at most; where all are in use, arrays are allocated as NumPy does."""
        self._limit = blocks
        self._blocks: list[NDArray[np.uint8]] = []

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> AnyArray:
        """An array of `shape`, C-contiguous, holding anything."""
        dtype = np.dtype(dtype)
        return np.ndarray(shape, dtype, self._block(math.prod(shape) * dtype.itemsize))

    def _block(self, nbytes: int) -> NDArray[np.uint8]:
        free = [at for at in range(len(self._blocks)) if _references(self._blocks, at) == _UNUSED]
        for at in free:
            if len(self._blocks[at]) >= nbytes:
                return self._blocks[at]
        block = np.empty(nbytes, np.uint8)
        if free:  # too small for this batch, so it will not fit the next one either
            self._blocks[free[0]] = block
        elif len(self._blocks) < self._limit:
            self._blocks.append(block)
        return block


def _references(blocks: list[NDArray[np.uint8]], position: int) -> int:
    return sys.getrefcount(blocks[position])


_UNUSED = _references([np.empty(0, np.uint8)], 0)
"""The count of a block that only a list refers to: measured, since it depends on how the interpreter counts."""
