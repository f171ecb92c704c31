"""Taking files out of the page cache, so that they are read from the disk, and bringing them in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 1 << 20


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


def fill(path: Path) -> None:
    """Read the file, or all files below the folder, so that the next run finds them in the page cache.

    Before every run: a virtual machine's host may take pages away at any time that are not in use.
    """
    block = bytearray(_BLOCK_BYTES)
    for file in files(path):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(block):
                pass
