"""Slots that grow in place: each holds one batch of any size, as bytes. The trainer's requests lie behind them.

A slot is a large range of one memory file that has no pages at first. Who has the slot allocates pages before it writes
there, checked against the memory that is available; the range of addresses never moves. So a larger batch needs no
message and no new file, and what was written stays where it is.

    page 0    used, allocated        two numbers; who has the slot is the only one that writes them
    page 1 …  the batch              its layout is the business of who writes and reads it
"""

from __future__ import annotations

import os
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..workers.base import RingAllocationError, allocate
from ..workers.transport import (
    HUGE_PAGE,
    RowsLayout,
    SharedMap,
    available_memory,
    linux,
    punch_hole,
    round_up,
    shortage,
)

_STRIDE = 1 << 40
"""The addresses of a slot in the file: no batch is larger."""

_HEAD = 4096
_FIRST = 64 << 10
"""The bytes that each slot has from the start: an error must find room even if there is no memory for a batch."""

_USED, _ALLOCATED = 0, 1
_LENGTH = struct.Struct("=q")
_READ_AT_ONCE = 1 << 14


class Requests:
    """The trainer's requests, behind the slots in the file: one place for each of the last batches."""

    def __init__(self, descriptor: int, slots: int) -> None:
        self._descriptor, self._slots = descriptor, slots

    def put(self, batch: int, request: bytes) -> None:
        """Put the trainer's request for `batch` where loaders find it, until that of a later batch takes its place."""
        os.pwrite(self._descriptor, _LENGTH.pack(len(request)) + request, self._place(batch))

    def withdraw(self, batch: int) -> None:
        """Make the request empty: who has not read it yet need not make the batch."""
        os.pwrite(self._descriptor, _LENGTH.pack(0), self._place(batch))

    def of(self, batch: int) -> bytes:
        """Return the request for `batch`; empty if it was withdrawn."""
        place = self._place(batch)
        data = os.pread(self._descriptor, _READ_AT_ONCE, place)
        (length,) = _LENGTH.unpack_from(data)
        while len(data) < _LENGTH.size + length:
            data += os.pread(self._descriptor, _LENGTH.size + length - len(data), place + len(data))
        return data[_LENGTH.size : _LENGTH.size + length]

    def _place(self, batch: int) -> int:
        return (self._slots + batch % self._slots) * _STRIDE


class GrowingSlot:
    """One slot, mapped into this process as far as it was used here."""

    def __init__(self, descriptor: int, number: int, requests: Requests) -> None:
        self.requests = requests
        self._descriptor, self._offset = descriptor, number * _STRIDE
        self.memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        """The mapped bytes of the batch, shape (bytes,). A longer map takes its place; arrays on it stay valid."""

    def _map(self, size: int) -> None:
        whole = SharedMap(self._descriptor, _HEAD + size, self._offset).array()
        self._head, self.memory = whole[:_HEAD].view(np.int64), whole[_HEAD:]

    def allocate_first(self) -> None:
        """Allocate what every slot has; raises OSError."""
        allocate(self._descriptor, _HEAD + _FIRST, self._offset)
        self._map(_FIRST)
        self._head[_ALLOCATED] = _FIRST

    def reserve(self, size: int) -> None:
        """Make `memory` at least `size` bytes that may be written to; raises RingAllocationError."""
        if not len(self.memory):
            self._map(_FIRST)
        allocated = int(self._head[_ALLOCATED])
        if size > allocated:
            have, wanted = available_memory(), round_up(2 * size, _HEAD)  # batches vary
            if size > HUGE_PAGE:
                wanted = round_up(size * 9 // 8, HUGE_PAGE)
            if wanted - allocated > have:
                wanted = round_up(size, _HEAD)
            try:
                if wanted - allocated > have:
                    raise MemoryError
                allocate(self._descriptor, wanted - allocated, self._offset + _HEAD + allocated)
            except (OSError, MemoryError) as error:
                lower = "lower batch_size, num_workers or prefetch_factor"
                raise shortage(f"a batch in a slot of {allocated:,} bytes", size, have, lower) from error
            self._head[_ALLOCATED] = allocated = wanted
        if size > len(self.memory):
            self._map(max(size, allocated))

    @property
    def used(self) -> int:
        """The bytes of the batch; to be set by who has made it."""
        return int(self._head[_USED])

    @used.setter
    def used(self, size: int) -> None:
        self._head[_USED] = size

    def open(self) -> NDArray[np.uint8]:
        """Return the bytes of the batch that lies here, a view."""
        if not len(self.memory):
            self._map(_FIRST)
        if (used := self.used) > len(self.memory):
            self._map(max(used, int(self._head[_ALLOCATED])))
        return self.memory[:used]

    def shrink(self, size: int) -> None:
        """Give back what is beyond `size` bytes, if that is most of it; no array may lie on the slot any more."""
        allocated, size = int(self._head[_ALLOCATED]), max(_FIRST, round_up(size, _HEAD))
        if allocated > 4 * size:
            self._head[_ALLOCATED] = size
            punch_hole(self._descriptor, self._offset + _HEAD + size, allocated - size)


class GrowingSlots:
    """`slots` slots and as many requests in one memory file; the face of a Ring. Who creates it closes it."""

    def __init__(self, descriptor: int, slots: int) -> None:
        self.descriptor, self.slots = descriptor, slots
        self.layout = RowsLayout({}, 1)
        self.requests = Requests(descriptor, slots)
        self.rows: Any = [GrowingSlot(descriptor, number, self.requests) for number in range(slots)]

    @classmethod
    def create(cls, slots: int) -> GrowingSlots:
        """Make the file, without its pages; raises OSError, if a limit on the size of files is in the way."""
        descriptor = linux.memfd_create("blobfeed-ring", linux.MFD_CLOEXEC | linux.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, 2 * slots * _STRIDE)
        except OSError as error:
            os.close(descriptor)
            raise RingAllocationError(
                f"the memory file of {slots} batch slots cannot be made: {error.strerror}; it is sparse, and a limit "
                "on the size of files (ulimit -f) refuses its range: raise that limit"
            ) from error
        return cls(descriptor, slots)

    def allocate(self) -> None:
        """Allocate what each slot has from the start, and let nobody change the file's size."""
        for slot in self.rows:
            slot.allocate_first()
        linux.seal(self.descriptor)

    def populate(self) -> None:
        """Do nothing: how large batches are is known when they come."""

    def close(self) -> None:
        """Give the memory back once the last array on it is gone."""
        self.rows = []
        os.close(self.descriptor)
