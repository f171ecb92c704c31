"""Taking files out of the page cache, so that they are read from the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files(path: Path) -> Iterator[Path]:
    """`path`, or all files below it where it is a folder."""
    if path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.is_file())
    else:
        yield path


def drop(path: Path) -> None:
    """Drop the file, or all files below the folder; what is still to be written is written first, or it would stay."""
    for file in files(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
