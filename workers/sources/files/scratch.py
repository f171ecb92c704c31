"""Memory that one source uses again and again."""

from __future__ import annotations

import math
import threading

import numpy as np
from numpy.typing import NDArray

_LARGEST_KEPT_BYTES = 64 << 20


class Scratch(threading.local):
    """Memory for one picture, or one stored chunk, kept for the next one of the same size or less; each thread its own.

    What the kernel gives anew it clears page by page: for a chunk of 800 KB that took as long as reading it.
    """

    memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Memory of this shape, holding anything, until the next call."""
        size = math.prod(shape)
        if size > _LARGEST_KEPT_BYTES:
            return np.empty(shape, np.uint8)
        if size > self.memory.size:
            self.memory = np.empty(size, np.uint8)
        return self.memory[:size].reshape(shape)
