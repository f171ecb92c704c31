"""Arrays in a memory file: written once, then mapped by every process that needs them, and copied to none."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.files import another_host
from ..base.specs import AnyArray
from .linux import memfd_create

_ALIGNMENT = 64
_BLOCK_BYTES = 64 << 20


class SharedArrays:
    """The arrays by name, not to be written to.

    A pickled copy needs `descriptor` under the same number, or what another host was sent of it; else it `is_lost`.
    The process that made it closes the file when it is gone; maps stay valid.
    """

    def __init__(self, name: str, arrays: Mapping[str, AnyArray]) -> None:
        self.descriptor = memfd_create(f"blobfeed-{name}")
        weakref.finalize(self, os.close, self.descriptor)
        self._file = _identity(self.descriptor)
        self.is_lost = False
        offsets = write_arrays(self.descriptor, arrays)
        self._layout = {key: (array.dtype.str, array.shape, offsets[key]) for key, array in arrays.items()}
        # An array without elements begins behind the last one.
        os.truncate(self.descriptor, os.fstat(self.descriptor).st_size + _ALIGNMENT)
        self._map()

    def __getitem__(self, key: str) -> AnyArray:
        return self._arrays[key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_arrays"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if host := another_host():
            self.descriptor = host.memory[self.descriptor]
            self._file = _identity(self.descriptor)
        self.is_lost = _identity(self.descriptor) != self._file
        if not self.is_lost:
            self._map()

    def _map(self) -> None:
        memory = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size, prot=mmap.PROT_READ)
        self._arrays: dict[str, AnyArray] = {
            key: np.ndarray(shape, dtype, memory, offset) for key, (dtype, shape, offset) in self._layout.items()
        }


def write_arrays(descriptor: int, arrays: Mapping[str, AnyArray]) -> dict[str, int]:
    """Put the arrays into the empty file in C order, some rows at a time; returns where each begins."""
    offsets = {}
    with os.fdopen(os.dup(descriptor), "wb") as file:
        for key, array in arrays.items():
            offsets[key] = file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
            step = max(1, _BLOCK_BYTES * len(array) // max(1, array.nbytes))
            for block in (array[first : first + step] for first in range(0, len(array), step)):  # it may be strided
                file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    return offsets


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
