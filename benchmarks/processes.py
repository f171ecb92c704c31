"""The processes of one run, their CPU time and their memory, from /proc; no control group is needed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

MARK = "BLOBFEED_BENCH_RUN"
"""An environment variable that the harness sets for each run. Every process of a run inherits it, also those that left
the session or whose parent is gone, which a walk from parent to child would miss."""

_TIDY_S = 2.0

_GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


def members(mark: str) -> list[psutil.Process]:
    """The living processes of the run `mark`."""
    found = []
    for process in psutil.process_iter():
        with suppress(*_GONE):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system time of the processes and of the children that they have reaped."""
    total = 0.0
    for process in processes:
        with suppress(*_GONE):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(frozen=True)
class Memory:
    """Proportional set size (PSS), in bytes, of all processes of a run.

    `own`: all but mapped data files; `data_files`: pages of the page cache that are mapped from the data sets, which
    the kernel takes back when it likes; `shared`: the part of `own` in anonymous memory files and /dev/shm.
    """

    own: int = 0
    shared: int = 0
    data_files: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.own + other.own, self.shared + other.shared, self.data_files + other.data_files)


def memory(processes: Iterable[psutil.Process], data: Path) -> Memory:
    """PSS by kind, where files under `data` are the data sets."""
    total = Memory()
    for process in processes:
        with suppress(*_GONE):
            for mapping in process.memory_maps(grouped=True):
                total += _sorted(mapping.path, mapping.pss, data)
    return total


def _sorted(path: str, pss: int, data: Path) -> Memory:
    if path.startswith(f"{data}/"):
        return Memory(data_files=pss)
    return Memory(own=pss, shared=pss if path.startswith(("/memfd:", "/dev/shm/", "/dev/zero")) else 0)


def end(mark: str) -> None:
    """Wait for what is left of the run `mark`, whose trainer is gone, to end and tidy up by itself; then kill it."""
    deadline = time.monotonic() + _TIDY_S
    while (left := members(mark)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=_TIDY_S)
    for process in members(mark):
        with suppress(*_GONE):
            process.kill()
