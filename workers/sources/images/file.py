"""Where images lie, and telling the kernel of those that come next."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ...base.files import is_url
from ..files.file import in_memory

_PROBES = 4


def under_root(root: bytes, path: bytes, *, always: bool) -> bytes:
    """`path`, a relative one taken from `root`.

    `always`: an absolute one too, as Caffe puts root_folder before every path, whether it begins with a slash or not.
    """
    if is_url_path(path):
        return path
    if is_url_path(root):  # no store has the empty parts of a path and the "." that a file system skips
        scheme, mark, rest = root.partition(b"://")
        return scheme + mark + os.path.normpath(rest + b"/" + path)
    return root + b"/" + path if always else os.path.join(root, path)  # noqa: PTH118 - bytes


def is_url_path(path: bytes) -> bool:
    return b"://" in path and is_url(os.fsdecode(path))


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


def announce_files(paths: Sequence[bytes]) -> None:
    """Have the kernel start reading the files that it does not hold yet.

    For files in the page cache it costs 17 µs each for nothing, since a file must be opened for it. So a few are probed
    first, and nothing is announced if all of those are there.
    """
    probes = paths[:: max(1, len(paths) // _PROBES)]
    if not all(in_memory(file, 1, [(0, 1)]) for file in _opened(probes)):
        for file in _opened(paths):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)


def _opened(paths: Sequence[bytes]) -> Iterator[int]:
    """A descriptor of each in turn, valid until the next; the read that follows reports what cannot be opened."""
    for path in paths:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                yield file
            finally:
                os.close(file)
