"""A local file as it was examined, and its bytes at offsets. At the end: which of the wanted indices or bytes follow
each other, belong together, or are out of range.

Rows below half a megabyte come from a map (stored/store.py), which is faster (docs/sources_hdf5.md has the figures),
and larger ones by preadv. For these it costs nothing more, and it has two advantages: a failing disk or a file cut
short is an OSError there and SIGBUS in a map, and no page cache is counted as the process's memory. On a network file
system, which fails more often than a disk, rows of any size are read by preadv: SIGBUS would end the trainer without a
word, if it reads itself. (An array in one piece whose samples are counted by another axis than the first has no rows;
it is always mapped.)
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...workers.api import AnyArray, IndexArray
from ...workers.base import SourceError, another_host
from ...workers.loading import gather

Bytes = NDArray[np.uint8]
Locking = bool | Literal["best-effort"] | None
"""The locking of a file by the HDF5 library while it is open."""

_MAP_BELOW_BYTES = 1 << 19
_SEQUENTIAL_BYTES = 4 << 20
FANCY_BELOW_BYTES = 2048
"""Rows of fewer bytes are gathered by NumPy's indexing, larger ones each by a copy of its own."""

MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = re.compile(r"nfs4?|cifs|smb3|smbfs|9p|ceph|lustre|gpfs|beegfs|afs|orangefs|glusterfs|autofs|fuse(\..*)?")
"""The types of network file systems, and of those that are programs and often lead to a network."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as it was when it was examined; each reader compares.

    Times of writing can be set at will, the time of the last change to the inode cannot. What `repr` shows is all that
    caches and saved states go by: the rest may be another after a restart of the machine, for the same content.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int = field(repr=False)
    device: int = field(repr=False)
    inode: int = field(repr=False)

    def __reduce__(self) -> tuple[Callable[..., FileStamp], tuple[object, ...]]:
        return _unpickled, (self.path, self.size, self.mtime_ns, self.ctime_ns, self.device, self.inode)

    @classmethod
    def of(cls, path: str) -> FileStamp:
        now = Path(path).stat()
        return cls(path, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_dev, now.st_ino)

    def require_unchanged(self, descriptor: int | None = None) -> None:
        """Raises SourceError if the file, open as `descriptor` if that is given, is gone or was changed."""
        try:
            now = os.stat(self.path if descriptor is None else descriptor)  # noqa: PTH116 - once a task: a Path costs more
        except OSError as error:
            raise SourceError(f"{self.path}: it was there when training started, and now: {error.strerror}") from error
        # Not as a stamp: to make one takes longer than all the rest.
        then = self.ctime_ns, self.mtime_ns, self.size, self.inode, self.device
        if (now.st_ctime_ns, now.st_mtime_ns, now.st_size, now.st_ino, now.st_dev) != then:
            sizes = f"{self.size} bytes then, {now.st_size} now"
            raise SourceError(
                f"{self.path}: it was changed since it was examined "
                f"({sizes if now.st_size != self.size else 'its time of change differs'}); "
                "start the training again, on files that no program writes to, renames or removes"
            )

    @property
    def exact(self) -> tuple[object, ...]:
        """All that tells the file from others on this host; the device's number may be another after a restart."""
        return self.path, self.size, self.mtime_ns, self.ctime_ns, self.inode

    @property
    def on_network(self) -> bool:
        """True if it lies on a network file system."""
        return is_network(self.device)


def are_small(row_bytes: int) -> bool:
    """Return true if rows of this size are taken from a map rather than read."""
    return row_bytes < _MAP_BELOW_BYTES


@cache
def is_network(device: int) -> bool:
    """Return true if the file system of this number is a network's."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_bytes().split(b"\n")[:-1]  # in a name any other character that ends a line may stand
    except OSError:
        return False
    mounts = (line.decode(errors="replace").partition(" - ") for line in lines)
    return any(
        before.split(" ")[2] == number and _NETWORK.fullmatch(after.split(" ")[0]) for before, _, after in mounts
    )


def _unpickled(path: str, size: int, mtime_ns: int, ctime_ns: int, device: int, inode: int) -> FileStamp:
    """On the trainer's host the same stamp.

    Elsewhere devices and inodes have other numbers: there the file counts as it is found, if it is the same or a copy.
    """
    if (host := another_host()) is None:
        return FileStamp(path, size, mtime_ns, ctime_ns, device, inode)
    here = host.path(path)
    try:
        found = FileStamp.of(here)
    except OSError as error:
        raise SourceError(f"{here}: the trainer's host has this file, and this one: {error.strerror}") from error
    # What was shipped has lost its times on the way.
    if found.size != size or not (_same_time(found.mtime_ns, mtime_ns) or host.was_shipped(path)):
        raise SourceError(
            f"{here}: another file than the trainer's host has: {found.size} bytes, written at {found.mtime_ns} ns, "
            f"there {size} bytes, {mtime_ns} ns; copy it with its times, as rsync -a does"
        )
    return found


def _same_time(one_ns: int, other_ns: int) -> bool:
    """Copies by tar and scp, and in the layers of containers, keep whole seconds."""
    (one_s, one_rest), (other_s, other_rest) = divmod(one_ns, 10**9), divmod(other_ns, 10**9)
    return one_s == other_s and (one_rest == other_rest or 0 in (one_rest, other_rest))


class RawFile:
    """An open file whose bytes are read at offsets; raises SourceError if it is not what was examined."""

    def __init__(self, stamp: FileStamp) -> None:
        self.stamp = stamp
        self.descriptor = -1
        self.advise_map: Callable[[int], None] = lambda _: None
        """Called with what the kernel is to expect of the file's map; the owner of a map sets it."""
        self._scattered = False
        self._announced_to = 0
        try:
            # O_NONBLOCK: what is no regular file by now must not hold up the process that opens it.
            self.descriptor = os.open(stamp.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SourceError(f"{stamp.path}: it was there when training started, and now: {error.strerror}") from error
        stamp.require_unchanged(self.descriptor)

    def close(self) -> None:
        """Close the file; a map of it stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # Bound here: at the end of a process the names of a module are gone before the last of its objects.
        if self.descriptor >= 0:
            _close(self.descriptor)

    def expect(self, *, scattered: bool) -> None:
        """Have the kernel read ahead of what is asked for, which is up to 8 MB on some disks, or not a byte more."""
        if scattered != self._scattered:
            self._scattered = scattered
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM if scattered else os.POSIX_FADV_NORMAL)
            self.advise_map(mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)

    def require_intact(self) -> None:
        """Raises SourceError if the file has been cut short: touching the map beyond its end would be SIGBUS.

        The file may still be cut while rows are copied out of the map. Then the process that copies dies by SIGBUS: a
        loader's death the pool notices and reports, a trainer that reads itself ends. Closing this gap would cost a
        system call for each row.
        """
        size = os.lseek(self.descriptor, 0, os.SEEK_END)  # a quarter of the time that fstat takes
        if size < self.stamp.size:
            raise SourceError(
                f"{self.stamp.path}: it was cut short while training ran, from {self.stamp.size} to {size} bytes"
            )

    def read(self, offset: int, size: int) -> Bytes:
        """`size` bytes from `offset` on; raises SourceError if the file ends before."""
        data = np.empty(size, np.uint8)
        self.read_into(offset, data.data)
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset` on; raises SourceError if the file ends before."""
        filled = 0
        while filled < len(buffer):
            got = os.preadv(self.descriptor, (buffer[filled:] if filled else buffer,), offset + filled)
            if not got:
                raise SourceError(
                    f"{self.stamp.path}: it ends at byte {offset + filled}, {len(buffer) - filled} bytes short of what "
                    "was there when it was examined"
                )
            filled += got

    def gather_at(self, offsets: IndexArray, positions: IndexArray, rows: Bytes) -> None:
        """Put the bytes at offsets[i] into rows[positions[i]]; `rows`: shape (number, bytes of a row), C-contiguous."""
        row_bytes, target = rows.shape[1], rows.data.cast("B")
        for first, stop in stretches(offsets, positions, row_bytes):
            to = int(positions[first]) * row_bytes
            self.read_into(int(offsets[first]), target[to : to + (stop - first) * row_bytes])

    def will_need(self, offsets: IndexArray, sizes: IndexArray | int, *, now: bool = False) -> bool:
        """Have the kernel start reading these bytes, unless they are read `now`; true if all were in memory already.

        Whole pages, since the kernel reads no less, and rows that share one are announced once. After rows that lie
        apart the kernel no longer reads ahead by itself, in the map and by the descriptor, until rows are neighbours.
        """
        if now or not len(offsets):
            return True
        ranges = list(merge_ranges(*whole_pages(offsets, sizes)))
        self.expect(scattered=not self._follow(offsets, offsets + sizes))
        if in_memory(self.descriptor, self.stamp.size, ranges):
            return True
        for offset, size in ranges:
            ahead = size if self._scattered else max(size, _SEQUENTIAL_BYTES)
            os.posix_fadvise(self.descriptor, offset, ahead, os.POSIX_FADV_WILLNEED)
        return False

    def _follow(self, begins: IndexArray, ends: IndexArray) -> bool:
        """Return true if these rows lie one behind the other; a single one, behind the last that was announced.

        Shuffled labels do not, though they may share so few pages that these do.
        """
        gaps = begins[1:] - ends[:-1] if len(begins) > 1 else begins - self._announced_to
        self._announced_to = int(ends[-1])
        return bool(((gaps >= 0) & (gaps <= mmap.PAGESIZE)).all())


def whole_pages(offsets: IndexArray, sizes: IndexArray | int) -> tuple[IndexArray, IndexArray]:
    """The pages that hold these bytes, as offsets and sizes."""
    starts = offsets & -mmap.PAGESIZE
    ends = (offsets + sizes + (mmap.PAGESIZE - 1)) & -mmap.PAGESIZE
    return starts, ends - starts


def in_memory(descriptor: int, size: int, ranges: Iterable[tuple[int, int]]) -> bool:
    """Return true if the page cache holds the ends of each range (offset, bytes) of a file of `size` bytes.

    mincore would tell of every page, but of a file that the caller may not write to it says that all of it is there
    (Linux 5.2 and later), and data sets are often somebody else's. It takes twice as long as well, called by ctypes.
    """
    probe = (bytearray(1),)
    try:
        for offset, length in ranges:
            os.preadv(descriptor, probe, offset, os.RWF_NOWAIT)
            if length > mmap.PAGESIZE:
                os.preadv(descriptor, probe, min(offset + length, size) - 1, os.RWF_NOWAIT)
    except (OSError, AttributeError):
        # EAGAIN: it would have to wait for the disk. EOPNOTSUPP: the file system (a network's) cannot say. Anything
        # else will be met by the read that follows. AttributeError: this Python is as transport/linux.py says.
        return False
    return True


def as_bytes(rows: AnyArray) -> Bytes:
    """The rows, C-contiguous, as bytes, shape (rows, bytes of a row)."""
    return np.ndarray((len(rows), math.prod(rows.shape[1:]) * rows.itemsize), np.uint8, rows)


def gather_rows(memory: Bytes, addresses: IndexArray, positions: IndexArray, rows: Bytes) -> None:
    """Put the bytes at memory[addresses[i]] into rows[positions[i]]; they may overlap.

    `rows`: shape (number, bytes of a row), C-contiguous.
    """
    row_bytes = rows.shape[1]
    if gather(memory, addresses, positions, rows):
        return
    if row_bytes < FANCY_BELOW_BYTES:
        # An array with an item at every address, each as long as a row: 10 ns a row, a tenth of the loop below. For
        # large rows it is slower, since they go through an array in between.
        item = np.dtype((np.void, row_bytes))
        items = np.ndarray((len(memory) - row_bytes + 1,), item, memory.data, strides=(1,))
        targets = rows.view(item)[:, 0]
        if len(positions) == len(targets):
            targets[:] = items[addresses]
        else:
            targets[positions] = items[addresses]
    elif len(positions):
        # Slices of memoryviews cost half of what rows[i] = … costs in NumPy.
        source, target = memory.data, rows.data.cast("B")
        for start, to in zip(addresses.tolist(), (positions * row_bytes).tolist(), strict=True):
            target[to : to + row_bytes] = source[start : start + row_bytes]


def require_in_range(indices: IndexArray, samples: int) -> None:
    """Raises IndexError if an index is below 0 or not below `samples`."""
    # Seen as unsigned a negative index is huge: one pass finds both. `max` would take twice as long for a batch.
    unsigned = indices.view(np.uint64)
    if len(indices) and unsigned.item(unsigned.argmax()) >= samples:
        bad = indices[(indices < 0) | (indices >= samples)]
        raise IndexError(f"sample index {int(bad[0])} is not in 0 … {samples - 1}")


def copy_runs(samples: AnyArray, indices: IndexArray, positions: IndexArray, rows: AnyArray) -> None:
    """rows[positions[i]] = samples[indices[i]], a run of neighbours at a time, with no array in between."""
    for start, stop in stretches(indices, positions, 1):
        index, to = int(indices[start]), int(positions[start])
        rows[to : to + stop - start] = samples[index : index + stop - start]


def stretches(indices: IndexArray, positions: IndexArray, step: int) -> Iterator[tuple[int, int]]:
    """The stretches [start, stop) over which `indices` go up by `step` while `positions` go up by one."""
    if not len(indices):
        return
    breaks = np.flatnonzero((indices[1:] - indices[:-1] != step) | (positions[1:] - positions[:-1] != 1)) + 1
    yield from pairwise([0, *breaks.tolist(), len(indices)])


def merge_ranges(offsets: IndexArray, sizes: IndexArray | int) -> Iterator[tuple[int, int]]:
    """The byte ranges [offset, offset + size), sorted, those that touch or overlap made one, as (offset, size)."""
    order = np.argsort(offsets, kind="stable")
    starts, ends = offsets[order], np.maximum.accumulate((offsets + sizes)[order])
    breaks = np.flatnonzero(starts[1:] > ends[:-1]) + 1
    for start, stop in pairwise([0, *breaks.tolist(), len(starts)]):
        yield int(starts[start]), int(ends[stop - 1] - starts[start])


def distinct(numbers: IndexArray) -> IndexArray:
    """Return the numbers that there are, in ascending order; `np.unique` imports numpy.ma, 8 ms in each loader."""
    ordered = np.sort(numbers, axis=None)
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def by_group(groups: IndexArray) -> Iterator[tuple[int, IndexArray]]:
    """Each number that occurs in `groups`, in order, with the positions at which it stands (ascending)."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    for group, (start, stop) in zip(ordered[edges[:-1]].tolist(), pairwise(edges), strict=True):
        yield group, order[start:stop]


def split_by_part(starts: IndexArray, indices: IndexArray) -> Iterator[tuple[int, IndexArray, IndexArray]]:
    """For parts put end to end, part k holding indices from starts[k] up to starts[k + 1]: which of them are wanted.

    For each: its number, the indices counted from its own start, and their positions in `indices` (ascending).
    """
    if not len(indices):
        return
    if len(starts) == 2:
        yield 0, indices, np.arange(len(indices))
        return
    for number, positions in by_group(np.searchsorted(starts, indices, side="right") - 1):
        yield number, indices[positions] - starts[number], positions


def locate_part(starts: IndexArray, index: int) -> tuple[int, int]:
    """The number of the part that holds `index`, and the index counted from that part's start."""
    number = int(starts.searchsorted(index, "right")) - 1
    return number, index - int(starts[number])
