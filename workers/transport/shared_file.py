"""A memory file that several processes read and write by position: the indices of drawn epochs.

Read and not mapped: a part that was given back reads as zeros, if anybody still asks for it, and is no SIGBUS. A read
of a task's indices takes about a microsecond.
"""

from __future__ import annotations

import ctypes
import os
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .linux import last_error, libc, memfd_create
from .memory import available_memory

_KEEP_SIZE, _PUNCH_HOLE = 1, 2

libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def punch_hole(descriptor: int, offset: int, size: int) -> None:
    """Give the memory of `size` bytes of the memory file back; they read as zeros. Raises OSError."""
    if libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, size):
        raise last_error("fallocate")


_Number = TypeVar("_Number", np.int64, np.float64, np.uint8)


class SharedFile:
    """A memory file by its inherited `descriptor`; the process that created it closes it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls, name: str) -> SharedFile:
        return cls(memfd_create(name))

    def write(self, offset: int, numbers: NDArray[_Number]) -> int:
        """Put `numbers`, shape (count,), at `offset` bytes; returns where they end. Raises MemoryError, OSError."""
        if numbers.nbytes > (have := available_memory()):
            raise MemoryError(
                f"{len(numbers):,} numbers need {numbers.nbytes:,} bytes of shared memory, and {have:,} are available"
            )
        data = np.ascontiguousarray(numbers).view(np.uint8).data
        while data:  # the kernel takes 2 GiB at a time
            done = os.pwrite(self.descriptor, data, offset)
            data, offset = data[done:], offset + done
        return offset

    def read(self, offset: int, count: int, kind: type[_Number]) -> NDArray[_Number]:
        """`count` numbers from `offset` on, shape (count,), the caller's own."""
        numbers = np.zeros(count, kind)
        data, done = numbers.view(np.uint8).data, 0
        while done < len(data) and (read := os.preadv(self.descriptor, [data[done:]], offset + done)):
            done += read
        return numbers

    def free(self, offset: int, size: int) -> None:
        """Give the memory of `size` bytes back."""
        if size:
            punch_hole(self.descriptor, offset, size)

    def close(self) -> None:
        os.close(self.descriptor)
