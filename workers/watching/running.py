"""The pipelines that run on this machine, found and read through /proc: without a port, and without their help."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..transport.board_reading import Reading
from ..transport.status_board import NAME

_LINK = f"/memfd:{NAME} (deleted)"


class RunningPipeline:
    """A pipeline's status board, opened for reading."""

    def __init__(self, board: Path) -> None:
        self._descriptor = os.open(board, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Reading | None:
        """What it says now; None if another version of blobfeed wrote it."""
        size = os.fstat(self._descriptor).st_size
        return Reading.of(os.pread(self._descriptor, size, 0), time.monotonic_ns())

    def close(self) -> None:
        os.close(self._descriptor)


def is_running(reading: Reading) -> bool:
    """Whether its trainer and its assembler live; one without loaders has none."""
    return _lives(reading.about.trainer) and (reading.in_process or _lives(reading.assembler))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def find_pipelines(known: set[tuple[int, int]] | None = None) -> Iterator[tuple[tuple[int, int], RunningPipeline]]:
    """Those of which this user may read the memory, each with a key, but for those whose key is `known`."""
    seen = set(known or ())
    for process in Path("/proc").iterdir():
        # It may end meanwhile, or be somebody else's.
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir() if process.name.isdigit() else ():
                with suppress(OSError):
                    if str(descriptor.readlink()) != _LINK:
                        continue
                    about = descriptor.stat()
                    if (key := (about.st_dev, about.st_ino)) not in seen:
                        seen.add(key)
                        yield key, RunningPipeline(descriptor)
