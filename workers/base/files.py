"""Paths of users and of other hosts; reading and writing of whole files.

Reading never waits for a named pipe. Writing replaces only regular files, never a link or a device.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_MEMORY = "/proc/self/fd/"
_ALLOCATED_AT_ONCE = 2 << 20


def allocate(descriptor: int, size: int, begin: int = 0) -> None:
    """Allocate memory or disk space for `size` bytes of the file from `begin` on; raises OSError.

    Allocates in steps of a millisecond. Before Linux 6.10 a signal undoes what the interrupted call has allocated in
    memory, and Python repeats the call: with a timer, such as a profiler's, one large call would never end.
    """
    end = begin + size
    for offset in range(begin, end, _ALLOCATED_AT_ONCE):
        os.posix_fallocate(descriptor, offset, min(_ALLOCATED_AT_ONCE, end - offset))


def in_folder(folder: Path, path: str | Path) -> Path:
    """Resolve a relative `path` against `folder`, and `~` and `~user` to home directories."""
    return folder / os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises for a user that is not there


def absolute(folder: Path | str | None) -> Path:
    """Return `folder`, or the working directory, as an absolute path.

    If the working directory was removed, a relative path stays relative: only such paths need the directory.
    """
    try:
        return Path(folder or "").absolute()
    except FileNotFoundError:
        return Path(folder or "")


@dataclass(frozen=True)
class AnotherHost:
    """The files of the trainer's host, for a process on another host.

    `shipped`: a folder of the trainer's host, copied to `copy` here; all other paths are equal on both hosts.
    `memory`: maps the descriptor of each memory file there to that of its copy here.
    """

    shipped: str = ""
    copy: str = ""
    memory: Mapping[int, int] = field(default_factory=dict)

    def path(self, there: str) -> str:
        """Return the path here of the file `there` on the trainer's host."""
        if there.startswith(_MEMORY):
            return f"{_MEMORY}{self.memory[int(there.removeprefix(_MEMORY))]}"
        if not self.was_shipped(there):
            return there
        return str(Path(self.copy, Path(there).relative_to(self.shipped)))

    def was_shipped(self, there: str) -> bool:
        return there.startswith(_MEMORY) or (bool(self.shipped) and Path(there).is_relative_to(self.shipped))


_another_host: AnotherHost | None = None


def be_another_host(known: AnotherHost) -> None:
    """Make sources that are unpickled in this process resolve their paths by `known`."""
    global _another_host  # noqa: PLW0603 - a process is on one host
    _another_host = known


def another_host() -> AnotherHost | None:
    """Return the mapping of the trainer's files; None on the trainer's own host."""
    return _another_host


def read_whole(path: bytes | Path) -> bytes:
    """Return all bytes of the regular file at `path`; raises OSError, also for a pipe, a device or a folder."""
    # Without blocking, since opening a named pipe would wait for a writer that may never come. And without a file
    # object, which takes 41 µs for a JPEG of 40 kB instead of 37.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = os.read(descriptor, status.st_size)
        while len(content) < status.st_size and (more := os.read(descriptor, status.st_size - len(content))):
            content += more  # one call reads 2 GiB at most
        return content
    finally:
        os.close(descriptor)


def check_replaceable(path: Path) -> None:
    """Raises OSError if something other than a regular file lies at `path`, be it a link to one."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise OSError(errno.EINVAL, "it is a link, a device, a pipe or a folder, and no regular file", str(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new file beside `path`, which replaces `path` when the block ends, and is removed if the block raises.

    Raises OSError if something other than a regular file lies at `path`; exceptions of the block pass through.
    """
    check_replaceable(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")  # a name that cannot be guessed
    temporary.touch(exist_ok=False)  # a file that is new: else a link that lies there would be written through
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path`, whole or not at all; raises OSError."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def fill_standard_streams() -> None:
    """Open the null device permanently as descriptors 0, 1 and 2 if they are closed.

    Otherwise the next socket or memory file would get such a number, and printed text would go into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
