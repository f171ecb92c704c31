"""Paths as users write them, and as another host has them; files that are read or written at once.

Nothing waits for a named pipe, and no file takes the place of anything else, such as a link or a device.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ParameterError

_MEMORY = "/proc/self/fd/"
_ALLOCATED_AT_ONCE = 2 << 20


def allocate(descriptor: int, size: int) -> None:
    """Give the first `size` bytes of the file their memory or disk space; raises OSError.

    In steps of a millisecond: before Linux 6.10, a signal undoes what a call has allocated in memory so far, and Python
    begins it again. A program with a timer, such as a profiler's, would do that for ever.
    """
    for offset in range(0, size, _ALLOCATED_AT_ONCE):
        os.posix_fallocate(descriptor, offset, min(_ALLOCATED_AT_ONCE, size - offset))


def in_folder(folder: Path, path: str | Path) -> Path:
    """`path`, a relative one taken from `folder`, `~` and `~user` being home directories."""
    return folder / os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises for a user that is not there


def absolute(folder: Path | str | None) -> Path:
    """`folder`, else the working directory. If that was removed, what is relative stays so: nothing else needs it."""
    try:
        return Path(folder or "").absolute()
    except FileNotFoundError:
        return Path(folder or "")


def is_url(path: str | Path) -> bool:
    """Whether it names something in object storage (s3://…), and not a file: a scheme of two letters or more.

    So does a chain of fsspec's, simplecache::s3://…, or with an absolute path behind the two colons.
    """
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+(://|::(/|.*://))", path) is not None


@dataclass(frozen=True)
class AnotherHost:
    """What a process that is not on the trainer's host has to know of the trainer's files.

    `shipped`: a folder of the trainer's host that was brought here as `copy`; all other paths are the same there and
    here. `memory`: for each memory file's descriptor there, that of its copy here.
    """

    shipped: str = ""
    copy: str = ""
    memory: Mapping[int, int] = field(default_factory=dict)

    def path(self, there: str) -> str:
        """Where a file of the trainer's host is here."""
        if there.startswith(_MEMORY):
            return f"{_MEMORY}{self.memory[int(there.removeprefix(_MEMORY))]}"
        if not self.was_shipped(there):
            return there
        return str(Path(self.copy, Path(there).relative_to(self.shipped)))

    def was_shipped(self, there: str) -> bool:
        return there.startswith(_MEMORY) or (bool(self.shipped) and Path(there).is_relative_to(self.shipped))


_another_host: AnotherHost | None = None


def be_another_host(known: AnotherHost) -> None:
    """From now on sources that are unpickled in this process look for their files as `known` says."""
    global _another_host  # noqa: PLW0603 - a process is on one host
    _another_host = known


def another_host() -> AnotherHost | None:
    """None on the trainer's own host."""
    return _another_host


def read_whole(path: bytes | Path) -> bytes:
    """All bytes of the regular file at `path`; raises OSError, also for anything else that lies there."""
    # Without waiting: a named pipe opens only when somebody writes to it, and perhaps nobody ever does. And without a
    # file object: that took 41 µs for a JPEG of 40 kB, and this takes 37.
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
    """A new file beside `path`, which takes its place when the block has ended, and goes if that raises.

    Raises OSError, also what the block raises, and if something other than a regular file lies at `path`.
    """
    check_replaceable(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")  # a name that nobody can guess
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


def require_ending(path: Path, endings: Sequence[str], what: str) -> None:
    """Raises ParameterError, which begins with `what`, if `path` has an ending, and it is none of these.

    No viewer would show an SVG called net.png, and a file that was meant for another argument would be written over.
    """
    if path.suffix.lower() not in ("", *endings):
        raise ParameterError(f"{what}: name a file that ends in {endings[0]}")


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Have an OSError of the block, such as that of a full disk, name `what` was written; raises ParameterError."""
    try:
        yield
    except OSError as error:
        raise ParameterError(
            f"{what} cannot be written: {error.strerror or error}: name another file, or mend that"
        ) from None
