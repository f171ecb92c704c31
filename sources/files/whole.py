"""Files and objects of which each is a sample: where they lie, reading them, and reading them ahead."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...workers.base import another_host, blake2b, read_whole
from .file import in_memory
from .identity import of_looks, spread
from .object_stores import objects_below
from .remote import CONNECTIONS, WholeObjects
from .store import Store
from .streams import SeekableStream
from .urls import folder_of, is_url, join_path, split_url

_PROBES = 4


class Arrays(Protocol):
    """Arrays by name."""

    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


class Names(msgspec.Struct, frozen=True):
    """Paths by number. `arrays`: "paths", the bytes of all paths, one behind the other, and "ends", of each in there.

    The arrays lie in memory that all loaders share: a million paths are 30 MB.
    """

    arrays: Arrays

    def __len__(self) -> int:
        return len(self.arrays["ends"])

    def __getitem__(self, number: int, /) -> bytes:
        ends = self.arrays["ends"]
        return self.arrays["paths"][int(ends[number - 1]) if number else 0 : int(ends[number])].tobytes()


class OpenFile(SeekableStream):
    """A file or object that is open for reading, at offsets and as a stream; `size`: its bytes."""

    def __init__(self, descriptor: int, size: int, content: bytes | None = None) -> None:
        super().__init__(size)
        self._descriptor, self._content = descriptor, content

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset` on; raises OSError, EOFError if the file ends before."""
        filled = 0
        while filled < len(buffer):
            if not (got := self.read_at(offset + filled, buffer[filled:] if filled else buffer)):
                raise EOFError(f"it ends at byte {offset + filled}, where {len(buffer) - filled} more should follow")
            filled += got

    def read_at(self, offset: int, target: memoryview) -> int:
        if self._content is None:
            return os.preadv(self._descriptor, (target,), offset)
        part = self._content[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)


class WholeFiles(Store[int]):
    """Files and objects that are read as a whole; a place is the number of its path in `names`.

    `root`: relative paths are taken from it; if `prefixed`, absolute ones, too, as Caffe puts root_folder before every
    path. `what` begins messages, and `or_else` ends the one about folders that cannot be listed. `any_remote`: some are
    objects. `are_looked_at`: false if sizes and times are no part of the fingerprint.
    """

    def __init__(
        self,
        names: Names | Sequence[bytes],
        root: bytes,
        what: str,
        *,
        or_else: str = "",
        prefixed: bool = False,
        any_remote: bool = False,
        are_looked_at: bool = True,
    ) -> None:
        self._what, self._or_else = what, or_else
        self._names = names
        self._root = root
        self._prefixed = prefixed
        self._are_looked_at = are_looked_at
        self._objects = WholeObjects()
        self.is_remote = any_remote

    def located(self, path: bytes) -> bytes:
        """Return `path`, as a list has it, below the root."""
        if is_url_path(path):
            return path
        if is_url_path(self._root):  # no store has the empty parts of a path and the "." that a file system skips
            before, key, behind = split_url(join_path(os.fsdecode(self._root), os.fsdecode(path)))
            return os.fsencode(before + os.path.normpath(key) + behind)
        return self._root + b"/" + path if self._prefixed else os.path.join(self._root, path)  # noqa: PTH118 - bytes

    def path(self, number: int) -> bytes:
        return self.located(self._names[number])

    def read(self, number: int) -> bytes:
        path = self.path(number)
        return self._objects.content(os.fsdecode(path)) if self.is_remote and is_url_path(path) else read_whole(path)

    @contextmanager
    def opened(self, number: int) -> Iterator[OpenFile]:
        """Yield the file or object, of which parts are read; raises OSError, SourceError."""
        path = self.path(number)
        if self.is_remote and is_url_path(path):
            content = self._objects.content(os.fsdecode(path))
            yield OpenFile(-1, len(content), content)
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe would wait for a writer
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            yield OpenFile(descriptor, status.st_size)
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        self._objects.begin()

    def will_need(self, numbers: Sequence[int], *, now: bool = False) -> bool:
        paths = dict.fromkeys(map(self.path, numbers))
        urls = dict.fromkeys(filter(is_url_path, paths)) if self.is_remote else {}
        if now or self._objects.has_room(len(numbers), 2 * CONNECTIONS):
            self._objects.fetch(map(os.fsdecode, urls))
        return now or announce_files([path for path in paths if path not in urls])

    def content(self, *, every: bool) -> dict[str, str]:
        """Covers the sizes and times of the files, of none if they are not looked at; of objects only with `every`."""
        if every:
            return {"files": self._all_files()}
        if self.is_remote or not self._are_looked_at:
            return {}
        looks = [look_at(self.path(number)) for number in spread(len(self._names))]
        return of_looks([size for size, *_ in looks], [time for _, time, _ in looks])

    def _all_files(self) -> str:
        """Return a digest of the root folder and of all files; in object storage by lists of their folders."""
        digest = blake2b(self._root, digest_size=16)
        if self._are_looked_at:
            paths = [self.path(number) for number in range(len(self._names))]
            looks = (look_at(path)[:2] for path in paths)
            digest.update(np.fromiter(itertools.chain.from_iterable(looks), np.int64, 2 * len(paths)).tobytes())
            urls = {os.fsdecode(path) for path in paths if is_url_path(path)} if self.is_remote else set()
            for folder in sorted({folder_of(url) for url in urls}):
                listed = objects_below(folder, self._what, self._or_else)
                digest.update(repr([found for found in listed if found[0] in urls]).encode())
        return digest.hexdigest()

    def close(self) -> None:
        self._objects.clear()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if host := another_host():
            self._root = os.fsencode(host.path(os.fsdecode(self._root)))


def is_url_path(path: bytes) -> bool:
    return b":" in path and is_url(os.fsdecode(path))


def look_at(path: bytes) -> tuple[int, int, str]:
    """Size, time of the last change in ns, and the reason why this cannot be an image, or nothing."""
    if is_url_path(path):  # to ask for each of them would take as long as reading it
        return 0, 0, ""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path for each of a million costs more than this
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        return 0, 0, (getattr(error, "strerror", "") or str(error)).lower()
    reason = "not a file" if not stat.S_ISREG(status.st_mode) else "" if status.st_size else "an empty file"
    return status.st_size, status.st_mtime_ns, reason


def announce_files(paths: Sequence[bytes]) -> bool:
    """Have the kernel start reading the files that it does not hold yet; return true if it seems to hold all.

    For files in the page cache it costs 17 µs each for nothing, since a file must be opened for it. So a few are probed
    first, and nothing is announced if all of those are there.
    """
    probes = paths[:: max(1, len(paths) // _PROBES)]
    if all(in_memory(file, 1, [(0, 1)]) for file in _opened(probes)):
        return True
    for file in _opened(paths):
        with suppress(OSError):  # a pipe, of which the read that follows says what it is
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
    return False


def _opened(paths: Sequence[bytes]) -> Iterator[int]:
    """A descriptor of each in turn, valid until the next; the read that follows reports what cannot be opened."""
    for path in paths:
        with suppress(OSError, ValueError):  # the latter for a zero byte in the path
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                yield file
            finally:
                os.close(file)
