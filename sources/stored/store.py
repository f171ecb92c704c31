"""The bytes of a source's files, as one process has them open. Each byte has an address: the files lie in a row.

A task is then an array of addresses, whether its rows lie in one file or in a thousand: going through the files one
after the other, Python takes 13 µs for each. Local files are mapped side by side in the same order, each as a whole, so
that one call gathers rows of all of them.
"""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from ...workers.api import IndexArray
from ...workers.base import SourceError
from ...workers.transport import HUGE_PAGE, AddressRange
from ..files import (
    Bytes,
    ChunkCache,
    FileStamp,
    Locking,
    RawFile,
    RemoteFile,
    RemoteStamp,
    Stamp,
    Store,
    are_small,
    gather_rows,
    locate_part,
    split_by_part,
)
from .layout import Chunked, ChunkObjects, StoredArray
from .rows import ChunkedRows, StoredRows

if TYPE_CHECKING:
    from .hdf5_library import h5py

_PAGE = mmap.PAGESIZE
_FEW_FILES = 16
_MANY_DESCRIPTORS = 1 << 14
_MOST_MAPS = 1 << 14  # a process may have 65,530 by default
_MOST_BYTES = 1 << 44  # of 2⁴⁷ that there are
_NOTHING: Bytes = np.empty(0, np.uint8)
_CHANGED_NS = attrgetter("st_ctime_ns")


class FileStore(Store[tuple[int, int]]):
    """The files of a source. File k has the addresses from starts[k] on, and a page behind it belongs to none.

    `open_files`: how many to keep open; None for a quarter of the descriptors that the process may have, from 16 to
    4,096. `chunk_cache_bytes`: decoded chunks to keep. Each process opens files of its own: a pickled or forked copy
    begins with none. A place is an address and a size.
    """

    def __init__(
        self,
        stamps: Iterable[Stamp],
        locking: Locking = None,
        open_files: int | None = None,
        chunk_cache_bytes: int = 0,
    ) -> None:
        self.stamps = tuple({stamp.path: stamp for stamp in stamps}.values())
        self._options = locking, open_files, chunk_cache_bytes
        self._numbers = {stamp.path: number for number, stamp in enumerate(self.stamps)}
        self._sizes = [stamp.size for stamp in self.stamps]
        self._changed_ns = [stamp.ctime_ns if isinstance(stamp, FileStamp) else 0 for stamp in self.stamps]
        # The kernel can map large files by huge pages where they begin with one: rows of 150 KB are read 10 % faster.
        grain = HUGE_PAGE if max(self._sizes, default=0) >= HUGE_PAGE else _PAGE
        self.starts = np.cumsum([0, *(-(-(size + _PAGE) // grain) * grain for size in self._sizes)], dtype=np.int64)
        self.is_remote = any(isinstance(stamp, RemoteStamp) for stamp in self.stamps)
        self._process = 0

    def __reduce__(self) -> tuple[type[FileStore], tuple[object, ...]]:
        return FileStore, (self.stamps, *self._options)

    def number(self, stamp: Stamp) -> int:
        """Return the number of the file at this path."""
        return self._numbers[stamp.path]

    def begin(self) -> None:
        self._prepare()
        self._used.clear()

    def _prepare(self) -> None:
        """Begin with nothing open, in a process that has not begun: in a forked copy, too."""
        if os.getpid() == self._process:
            return
        self._process = os.getpid()
        self._locking, open_files, chunk_cache_bytes = self._options
        self._chunks = ChunkCache(chunk_cache_bytes)
        allowed = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MANY_DESCRIPTORS) // 4
        self._most = open_files or max(_FEW_FILES, allowed)
        self._opened: dict[int, OpenFile] = {}  # the last used one at the end
        self._used: set[int] = set()
        self._stay_open = not self.is_remote and len(self.stamps) <= self._most
        self._descriptors = [-1] * len(self.stamps)
        self._range, self._mapped = self._reserve(), np.zeros(len(self.stamps), np.bool_)
        self._memory = self._range.array() if self._range else _NOTHING

    def _reserve(self) -> AddressRange | None:
        """Addresses for the maps of all files; None if some are not to be mapped, or there are too many."""
        size = int(self.starts[-1])
        if len(self.stamps) <= _MOST_MAPS and size <= _MOST_BYTES and not any(each.on_network for each in self.stamps):
            with suppress(OSError):  # there is a limit to the address space
                return AddressRange(size)
        return None

    def open(self, number: int) -> OpenFile:
        """Return the file, opened now if it is not open; it may be closed again when another one is asked for."""
        self._prepare()
        file = self._opened.pop(number, None)
        if file is None:
            file = self._open(number)
        self._opened[number] = file
        if len(self._opened) > self._most:
            self._close(next(iter(self._opened)))
        return file

    def _open(self, number: int) -> OpenFile:
        stamp, memory = self.stamps[number], None
        if isinstance(stamp, RemoteStamp):
            return OpenFile(stamp, RemoteFile(stamp), self._locking, self._chunks)
        raw = RawFile(stamp)
        self._descriptors[number] = raw.descriptor
        if self._range is not None:
            start, size = int(self.starts[number]), stamp.size
            if size and not self._mapped[number]:
                try:
                    self._range.map_file(start, raw.descriptor, 0, size)
                except OSError as error:
                    raise SourceError(f"{stamp.path}: it cannot be mapped: {error.strerror}") from error
                self._mapped[number] = True
            raw.advise_map = partial(self._range.advise, start, size)
            raw.expect(scattered=len(self.stamps) > 1)
            memory = self._memory[start : start + size]
        return OpenFile(stamp, raw, self._locking, self._chunks, memory)

    def _close(self, number: int) -> None:
        self._descriptors[number] = -1
        self._opened.pop(number).close()

    def close(self) -> None:
        """Close all files. The next one that is opened begins anew: setup reads a sample again and again, and that says
        nothing about the rows of the run.
        """
        if os.getpid() == self._process:
            for number in list(self._opened):
                self._close(number)
        self._process = 0
        self._range, self._memory = None, _NOTHING

    # ---- a task: before it files must not be cut short, since touching a map would be SIGBUS; after it they must not
    # have been changed at all. Only then is it certain that what was read is what was examined.

    def use(self, numbers: Sequence[int]) -> None:
        """Open these files, each named once, if they are to be read; raises SourceError if one was cut short."""
        self._prepare()
        new = [number for number in numbers if number not in self._used] if self._used else numbers
        self._used.update(new)
        # For 1,000 files with as little Python for each of them as can be, here and below: it took a third of the time.
        if self._stay_open:
            descriptors = [*map(self._descriptors.__getitem__, new)]
            if -1 in descriptors:
                descriptors = [self.open(number).raw.descriptor for number in new]
            sizes = [*map(os.lseek, descriptors, repeat(0), repeat(os.SEEK_END))]
            if sizes == [*map(self._sizes.__getitem__, new)]:
                return
        for number in new:
            self.open(number).raw.require_intact()

    def watch(self, numbers: Iterable[int]) -> None:
        """Note files that are read by a library, through another file."""
        self._used.update(numbers)

    def finish(self) -> None:
        if self._stay_open:
            # Whatever changes in an open file, the time of its inode's last change does too.
            try:
                now = [*map(_CHANGED_NS, map(os.fstat, map(self._descriptors.__getitem__, self._used)))]
            except OSError:  # a file that is only watched has no descriptor
                now = []
            if now == [*map(self._changed_ns.__getitem__, self._used)]:
                return
        for number in self._used:
            descriptor = self._descriptors[number]
            self.stamps[number].require_unchanged(descriptor if descriptor >= 0 else None)

    # ---- bytes at addresses

    def memory(self, row_bytes: int) -> Bytes | None:
        """Return all bytes, at their addresses, if rows of this size are taken from maps; those of used files exist."""
        return self._memory if self._range is not None and are_small(row_bytes) else None

    def gather(self, addresses: IndexArray, positions: IndexArray, rows: Bytes) -> None:
        """Put the bytes at addresses[i] into rows[positions[i]]; `rows`: shape (number, bytes of a row), C-contiguous.

        The files must be in use.
        """
        memory = self.memory(rows.shape[1])
        if memory is not None:
            gather_rows(memory, addresses, positions, rows)
            return
        for number, offsets, members in split_by_part(self.starts, addresses):
            self.open(number).raw.gather_at(offsets, positions[members], rows)

    def read(self, place: tuple[int, int]) -> bytes:
        address, size = place
        number, offset = locate_part(self.starts, address)
        if number not in self._used:
            self.use((number,))
        return self.open(number).raw.read(offset, size).tobytes()

    def copy_into(self, address: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `address` on; the file must be in use."""
        if (memory := self.memory(len(buffer))) is not None:
            buffer[:] = memory.data[address : address + len(buffer)]
        else:
            number, offset = locate_part(self.starts, address)
            self.open(number).raw.read_into(offset, buffer)

    def will_need_at(self, addresses: IndexArray, sizes: IndexArray | int, *, now: bool = False) -> bool:
        """Have these bytes read ahead, as Column.will_need; returns true if all of them were in memory already."""
        found = [
            self.open(number).raw.will_need(offsets, sizes if isinstance(sizes, int) else sizes[members], now=now)
            for number, offsets, members in split_by_part(self.starts, addresses)
        ]
        return all(found)

    def reader(self, array: StoredArray) -> ChunkedRows:
        """Return what reads samples of `array` that do not lie in rows."""
        return self.open(self.number(array.file)).reader(array)


class OpenFile:
    """One file that is open for its bytes, through the HDF5 library, or both, as its arrays' layouts demand.

    `memory`: the whole file, if it is mapped already.
    """

    def __init__(
        self,
        stamp: Stamp,
        raw: RawFile | RemoteFile,
        locking: Locking,
        chunks: ChunkCache,
        memory: Bytes | None = None,
    ) -> None:
        self.raw = raw
        self._stamp = stamp
        self._locking = locking
        self._chunks = chunks
        self._memory = memory
        self._readers: dict[tuple[str, int], ChunkedRows] = {}

    def mapped(self) -> Bytes:
        """Return the whole file as read-only memory."""
        if self._memory is None:
            # Private: some file systems (FUSE with direct_io) have no other, and nothing writes here.
            held = mmap.mmap(self.raw.descriptor, self._stamp.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
            self._memory = np.frombuffer(held, np.uint8)
        return self._memory

    @cached_property
    def library(self) -> h5py.File:
        """The file through the HDF5 library, which takes 0.1 s to import and so is imported only if it is needed."""
        from .hdf5_library import open_file

        return open_file(self._stamp, self._locking)

    def reader(self, array: StoredArray) -> ChunkedRows:
        """Return what reads samples of `array` that do not lie in rows; it is kept."""
        key = (array.name, array.arrangement.sample_axis)
        if key not in self._readers:
            self._readers[key] = self._make_reader(array)
        return self._readers[key]

    def _make_reader(self, array: StoredArray) -> ChunkedRows:
        if isinstance(array.layout, Chunked):
            return StoredRows(self.raw, array, array.layout, self._chunks, self.mapped)
        if isinstance(array.layout, ChunkObjects):
            from .object_rows import ObjectRows

            return ObjectRows(array, array.layout, self._chunks)
        from .library_rows import LibraryRows

        return LibraryRows(self.library, array, self._chunks)

    def close(self) -> None:
        self._readers.clear()
        self.raw.close()
        if "library" in self.__dict__:
            self.__dict__.pop("library").close()
