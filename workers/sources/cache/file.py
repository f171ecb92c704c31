"""The file of the decoded cache: made once, mapped by every process that reads it, written sample by sample.

    1. prepare   in the trainer: attach to a file that holds this very content, or put an empty one in its place
    2. attach    in each process that reads samples
    3. store     write the sample's bytes and checksum, then its state: a process that dies in between publishes nothing
    4. take      gather published samples from the map, and say which of them their checksums do not fit

Samples are written with pwrite and read through a read-only map; both use one page cache. So a full disk is an error of
that call; a store into the map would be a SIGBUS. Two processes that store the same sample write the same bytes to the
same offset. Replacing a file gives it a new inode, so a process that uses the old one keeps it. After a power failure
some of the newest samples' bytes may be missing, which their checksums tell.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import mmap
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...api import AnyArray, IndexArray, NamedRows, RaggedRows
from ...base import ParameterError, SourceError, allocate
from ..files import in_memory
from .checksums import SUM_BYTES, Varying, checksums, is_small
from .layout import IDENTITY_BYTES, MAGIC, STATES_AT, Layout

_PUBLISHED = 1
_LOCK_PATIENCE_S = 60.0
_LOCK_PAUSE_S = 0.02
_MB = 1e6
_PROBES = 4

_log = logging.getLogger("blobfeed")


def prepare(path: Path, layout: Layout, size_limit: int) -> None:
    """Make sure that a file of this layout lies at `path`, whatever lay there before.

    Raises ParameterError if `size_limit` (bytes) is too small for it, or if something lies at `path` that is no cache;
    SourceError if the disk has too little space, or the folder cannot be written.
    """
    if not path.parent.is_dir():
        raise ParameterError(f"cache: the folder of path {path} does not exist: create it, or choose another path")
    if layout.sparse_at > size_limit:
        raise ParameterError(
            f"cache: {layout.samples} samples need {_megabytes(layout.sparse_at)}, more than size_limit allows "
            f"({size_limit} bytes, {_megabytes(size_limit)}): raise it to {layout.sparse_at}, or leave out the cache"
        )
    try:
        with _locked(path.parent):
            if not _holds(path, layout):
                if path.exists():
                    _log.warning("cache %s is not of this source as it is now: it is made anew", path)
                path.unlink(missing_ok=True)
                _create(path, layout, size_limit)
            CacheFile(path, layout, size_limit).close()  # a file that cannot be written or mapped is an error here
    except OSError as error:
        raise SourceError(f"cache {path} cannot be made: {error}; it needs a folder on a local disk") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time looks at and makes the caches of `folder`; its death sets the lock free."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SourceError(
                        f"cache folder {folder} has been locked by another process for {_LOCK_PATIENCE_S:.0f} s: "
                        "end that process, or put the cache elsewhere"
                    ) from None
            time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _holds(path: Path, layout: Layout) -> bool:
    """Return true if a whole file of this layout lies at `path`; raises ParameterError if it is no cache at all."""
    if path.exists() and not path.is_file():  # to open a named pipe would never end
        raise ParameterError(f"cache: path {path} is not a regular file: it is left alone, choose another path")
    try:
        with path.open("rb") as file:
            identity = file.read(IDENTITY_BYTES)
            size = os.fstat(file.fileno()).st_size
            states = np.fromfile(file, np.uint8, layout.samples)
    except FileNotFoundError:
        return False
    if identity and not identity.startswith(MAGIC):
        raise ParameterError(
            f"cache: path {path} is a file, but no sample cache: it is left alone, choose another path"
        )
    whole = identity == layout.identity and size == layout.size
    return whole and len(states) == layout.samples and bool((states <= _PUBLISHED).all())


def _create(path: Path, layout: Layout, size_limit: int) -> None:
    need, free = min(layout.size, size_limit), shutil.disk_usage(path.parent).free
    if need > free:
        raise SourceError(
            f"cache {path}: {layout.samples} samples need {'up to ' if layout.varies else ''}{_megabytes(need)} "
            f"(size_limit {_megabytes(size_limit)}), but its disk has {_megabytes(free)} free: free some, choose "
            f"another path{', lower size_limit' if layout.varies else ''}, or leave out the cache"
        )
    for abandoned in path.parent.glob(f".{path.name}.*.new"):  # by a process that died here: we hold the lock
        abandoned.unlink()
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        allocate(descriptor, layout.sparse_at)
        os.truncate(descriptor, layout.size)
        _write(descriptor, layout.identity, 0)
        os.fsync(descriptor)  # or a power failure could leave a file of this name that does not say that it is a cache
        new.rename(path)
    finally:
        os.close(descriptor)
        new.unlink(missing_ok=True)


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _megabytes(size: int) -> str:
    return f"{size / _MB:,.1f} MB"


def attach(path: Path, layout: Layout, size_limit: int) -> CacheFile | None:
    """Return the file at `path`; None if another run has replaced it, or if it is gone or cannot be opened."""
    try:
        return CacheFile(path, layout, size_limit) if _holds(path, layout) else None
    except (ParameterError, OSError):
        return None


class CacheFile:
    """A cache file that is open and mapped. `states`: shape (samples,), not zero for the samples that it holds."""

    def __init__(self, path: Path, layout: Layout, size_limit: int) -> None:
        self._layout = layout
        self._size_limit = size_limit
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self.descriptor, layout.size, prot=mmap.PROT_READ)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.states: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, layout.samples, STATES_AT)
        self._sums: NDArray[np.uint64] = np.frombuffer(self._map, np.uint64, layout.samples, layout.sums_at)
        self._rows: dict[str, AnyArray] = {}
        self._shapes: dict[str, NDArray[np.int32]] = {}
        for name, region in layout.regions.items():
            spec, samples = region.spec, layout.samples
            row, dtype = ((region.stride,), np.dtype(np.uint8)) if spec.varies else (spec.shape, spec.dtype)
            self._rows[name] = np.ndarray((samples, *row), dtype, self._map, region.at)
            if spec.varies:
                self._shapes[name] = np.ndarray((samples, len(spec.shape)), np.int32, self._map, region.shapes_at)

    def close(self) -> None:
        """Close file and map; nothing of this object may be used from then on."""
        os.close(self.descriptor)
        self.states, self._sums = np.empty(0, np.uint8), np.empty(0, np.uint64)
        self._rows, self._shapes = {}, {}
        self._map.close()

    def take(self, indices: IndexArray, out: NamedRows) -> list[int]:
        """Copy samples `indices`, all of them published, into the rows of `out`; which rows are damaged."""
        varying = self._varying(indices)
        copies: dict[str, AnyArray] = {}
        for name, rows in out.items():
            if isinstance(rows, RaggedRows):
                for row, sample in enumerate(varying):
                    if sample is not None:
                        rows.put(row, sample[name])
            else:
                # "raise" would copy it once more.
                copies[name] = np.take(self._rows[name], indices, axis=0, out=rows, mode="clip")
        return self._damaged(indices, copies, varying)

    def lend(self, indices: IndexArray) -> list[dict[str, AnyArray]] | None:
        """Samples `indices`, all of them published, as they lie in the map, read-only; None if one is damaged."""
        varying = self._varying(indices)
        if self._damaged(indices, {}, varying):
            return None
        samples = [{name: rows[index] for name, rows in self._rows.items()} for index in indices.tolist()]
        for sample, views in zip(samples, varying, strict=False):
            sample.update(views or {})
        return samples

    def _damaged(self, indices: IndexArray, copies: Mapping[str, AnyArray], varying: Sequence[Varying]) -> list[int]:
        """Return the rows that have another checksum than their samples were stored with."""
        sums, wanted = self._checksums(indices, copies, varying), self._sums[indices].tolist()
        return [] if sums == wanted else [row for row, checksum in enumerate(sums) if checksum != wanted[row]]

    def _checksums(self, indices: IndexArray, copies: Mapping[str, AnyArray], varying: Sequence[Varying]) -> list[int]:
        """Return the checksums of samples `indices`, of which `varying` holds the arrays that vary in size.

        Rows in `copies` are looked at in place of those in the map: they are in the processor's cache, or not stored.
        """
        small: list[AnyArray] = []
        large: list[list[memoryview]] = []
        for name, region in self._layout.regions.items():
            if region.spec.varies:
                continue
            if is_small(region.stride):
                small.append(copies[name] if name in copies else self._rows[name][indices])
            elif name in copies:
                large.append(_cut(_bytes_of(copies[name]), region.stride, range(len(indices))))
            else:
                large.append(_cut(memoryview(self._map)[region.at :], region.stride, indices.tolist()))
        return checksums(indices, small, large, varying)

    def _varying(self, indices: IndexArray) -> list[Varying]:
        """Return the arrays of each sample that vary in size; an empty list if none does."""
        return [self._views(index) for index in indices.tolist()] if self._shapes else []

    def _views(self, index: int) -> Varying:
        """None if a shape that is noted cannot be right."""
        views: dict[str, AnyArray] = {}
        for name, shapes in self._shapes.items():
            spec, shape = self._layout.regions[name].spec, tuple(shapes[index].tolist())
            if not all(0 <= extent <= largest for extent, largest in zip(shape, spec.shape, strict=True)):
                return None
            used = self._rows[name][index][: math.prod(shape) * spec.dtype.itemsize]
            views[name] = used.view(spec.dtype).reshape(shape)
        return views

    def store(self, index: int, sample: Mapping[str, AnyArray]) -> None:
        """Write `sample`, and publish it; raises OSError if it cannot.

        `sample`: for each name a row, shape (1, …), or if it varies an array of its own shape.
        """
        if self._layout.varies:
            used = os.fstat(self.descriptor).st_blocks * 512
            if used + sum(array.nbytes for array in sample.values()) > self._size_limit:
                raise OSError(errno.EFBIG, f"size_limit of {_megabytes(self._size_limit)} is reached")
        for name, array in sample.items():
            region = self._layout.regions[name]
            _write(self.descriptor, _bytes_of(array), region.row_at(index))
            if region.spec.varies:
                _write(self.descriptor, _bytes_of(np.array(array.shape, np.int32)), region.shape_at(index))
        varying = {name: sample[name] for name in self._shapes}
        (checksum,) = self._checksums(np.array([index]), sample, [varying] if varying else [])
        _write(self.descriptor, checksum.to_bytes(SUM_BYTES, sys.byteorder), self._layout.sums_at + index * SUM_BYTES)
        # A process dying above leaves the sample unpublished. The kernel's lock of the file keeps the writes in order;
        # a reader takes no lock, and if an Arm processor reads the bytes before the state, the checksum tells.
        os.pwrite(self.descriptor, bytes([_PUBLISHED]), STATES_AT + index)

    def will_need(self, indices: IndexArray) -> None:
        """Have the kernel read the rows of published samples, unless they are in memory already."""
        region = max(self._layout.regions.values(), key=lambda region: region.stride)
        offsets = region.at + indices * region.stride
        probed = [(offset, region.stride) for offset in offsets[:: -(-len(offsets) // _PROBES)].tolist()]
        if not in_memory(self.descriptor, region.at + len(self.states) * region.stride, probed):
            for offset in offsets.tolist():
                os.posix_fadvise(self.descriptor, offset, region.stride, os.POSIX_FADV_WILLNEED)


def _cut(data: memoryview, size: int, numbers: Iterable[int]) -> list[memoryview]:
    """Return those of the pieces of `size` bytes that have these numbers."""
    return [data[at : at + size] for at in [number * size for number in numbers]]


def _bytes_of(array: AnyArray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
