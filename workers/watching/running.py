"""The pipelines that run on this machine, found and read through /proc: without a port, and without their help."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from glob import iglob
from pathlib import Path

from ..transport.board_reading import Reading
from ..transport.status_board import NAME

_LINK = f"/memfd:{NAME} (deleted)"

Key = tuple[int, int]


def read_pipelines() -> Iterator[tuple[Key, Reading]]:
    """The status boards that this user may read, each once, with a key that it keeps; not those of another version."""
    seen: set[Key] = set()
    for descriptor in map(Path, iglob("/proc/[0-9]*/fd/*")):
        with suppress(OSError):  # its process may end meanwhile, or be somebody else's
            if str(descriptor.readlink()) != _LINK:
                continue
            about = descriptor.stat()
            if (key := (about.st_dev, about.st_ino)) in seen:
                continue
            seen.add(key)
            reading = Reading.of(descriptor.read_bytes(), time.monotonic_ns())
            if reading is not None and _is_running(reading):
                yield key, reading


def _is_running(reading: Reading) -> bool:
    """Whether its trainer and its assembler live; one without loaders has none."""
    return _lives(reading.trainer) and (reading.in_process or _lives(reading.assembler))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
