"""The ring: one anonymous memory file that holds every slot, each of which holds a batch.

Each top has its rows of all slots in a row. So batches in slots that lie side by side adjoin there, and a source reads
several small ones at once.

Who creates, attaches and closes: the trainer creates it at start (`Ring.create`) and hands its descriptor down; each
loader attaches to the same descriptor (`Ring(…)`); each process closes its own map and descriptor. The file has no
name, so nothing is left behind however the processes end, and /dev/shm's size does not matter. The trainer allocates
all pages while the assembler's interpreter starts, which takes longer, and before a loader does: a shortage is an error
then, and not a SIGBUS at some later batch.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import resource
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..api import AnyArray, ArraySpec, RaggedRows, Rows
from ..base import RingAllocationError, allocate
from . import linux
from .memory import available_memory, shortage
from .shared_map import SharedMap, round_up

_ALIGNMENT = 64
"""Bytes: a cache line, and what vector instructions like best; every top's rows start at a multiple of it."""

_PAGE = mmap.PAGESIZE


class RowsLayout:
    """The place of `rows` rows of every top in a memory; for tops of varying shape the rows' shapes follow them."""

    def __init__(self, specs: Mapping[str, ArraySpec], rows: int) -> None:
        self.specs = dict(specs)
        self.rows = rows
        self._parts: dict[str, list[tuple[int, int]]] = {}
        """By top, where its rows begin and the bytes of each; behind that the same of the rows' shapes."""
        end = 0
        for name, spec in self.specs.items():
            self._parts[name] = []
            for size in (spec.nbytes, 4 * len(spec.shape)) if spec.varies else (spec.nbytes,):
                self._parts[name].append((end, size))
                end = round_up(end + rows * size, _ALIGNMENT)
        self.used_bytes = end  # the same on every machine; pages are not
        self.nbytes = max(_PAGE, round_up(end, _PAGE))

    def times(self, slots: int) -> RowsLayout:
        """Return the layout of as many rows as `slots` times these."""
        return RowsLayout(self.specs, slots * self.rows)

    def ranges(self, first: int, rows: int) -> list[slice]:
        """Return where rows first … first+rows-1 of every top lie, as slices of the memory's bytes."""
        every = itertools.chain.from_iterable(self._parts.values())
        return [slice(start + first * size, start + (first + rows) * size) for start, size in every]

    def view(self, memory: NDArray[np.uint8]) -> dict[str, Rows]:
        """Return all the rows, by name, as views on `memory`, shape (nbytes,)."""
        return {name: self._rows(memory, name, spec) for name, spec in self.specs.items()}

    def _rows(self, memory: NDArray[np.uint8], name: str, spec: ArraySpec) -> Rows:
        parts = [memory[start : start + self.rows * size] for start, size in self._parts[name]]
        flat: AnyArray = parts[0].view(spec.dtype)
        if not spec.varies:
            return flat.reshape((self.rows, *spec.shape))
        shapes = parts[1].view(np.int32)
        return RaggedRows(spec, flat.reshape(self.rows, spec.items), shapes.reshape(self.rows, len(spec.shape)))


class Ring:
    """`slots` slots, each with the rows of a batch, mapped into this process.

    `layout`: that of all slots. `rows`: all their rows by name; slot s has rows s * batch_size … of every top.
    """

    def __init__(self, descriptor: int, batch: RowsLayout, slots: int) -> None:
        self.descriptor = descriptor
        self.slots = slots
        self.layout = batch.times(slots)
        self._map: SharedMap | None = SharedMap(descriptor, self.layout.nbytes)
        self.memory: NDArray[np.uint8] = self._map.array()
        self.rows = self.layout.view(self.memory)

    @classmethod
    def create(cls, batch: RowsLayout, slots: int) -> Ring:
        """Make the file, without its pages; raises RingAllocationError that says what is needed and what is there."""
        need = batch.times(slots).nbytes
        have = available_memory()
        if need > have:
            raise shortage(f"the ring of {slots} batch slots", need, have)
        descriptor = linux.memfd_create("blobfeed-ring", linux.MFD_CLOEXEC | linux.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, need)
            return cls(descriptor, batch, slots)
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EFBIG and need > (limit := resource.getrlimit(resource.RLIMIT_FSIZE)[0]) >= 0:
                raise RingAllocationError(
                    f"the ring of {slots} batch slots needs {need:,} bytes, and a file of this process, so "
                    f"its memory file too, may have {limit:,} (ulimit -f): raise that limit, or lower batch_size or "
                    "prefetch_batches"
                ) from error
            if error.errno in (errno.ENOMEM, errno.EFBIG):
                raise shortage(f"the ring of {slots} batch slots", need, have) from error
            raise

    def allocate(self) -> None:
        """Allocate every page, and let nobody change the file's size; raises RingAllocationError as `create` does."""
        need, have = self.layout.nbytes, available_memory()
        if self._map is not None:
            self._map.allocate_huge()
        try:
            allocate(self.descriptor, need)
            linux.seal(self.descriptor)
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.ENOSPC):
                raise shortage(f"the ring of {self.slots} batch slots", need, have) from error
            raise

    def populate(self) -> None:
        """Map all pages into this process now, small ones in 0.25 ms a megabyte; else each when it is first touched."""
        if self._map is not None:
            self._map.populate()

    def close(self) -> None:
        """Give the memory back once the last view on it is gone: a view that a user still holds stays readable."""
        self.rows = {}
        self.memory = np.empty(0, np.uint8)
        self._map = None
        os.close(self.descriptor)
