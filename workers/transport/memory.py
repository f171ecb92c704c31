"""The memory that is really available: free, granted by the control group, and within what the process may map.

It also sets what the C library does with memory that is freed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from ..base import RingAllocationError
from .control_groups import PROC, ROOT, control_groups, read_limit

# malloc.h; mallopt is glibc's, and no Python module offers it.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_KEEP_BYTES = 512 << 20
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more than half the size of one of its heaps

# The files of a limit and of what is used, and what precedes the names in memory.stat that count the groups below too.
_NAMES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_NAMES_V2 = ("memory.max", "memory.current", "")

_log = logging.getLogger("blobfeed")


def available_memory(proc: Path = PROC, cgroup: Path = ROOT) -> int:
    """Return the bytes that can be allocated: the least of what the kernel, the control groups and limits grant."""
    try:
        free = _fields(proc / "meminfo")["MemAvailable"] * 1024
    except FileNotFoundError:  # a service of systemd that sees processes alone (ProcSubset=pid): then all there is
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for kind, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            free = min(free, max(0, limit - _fields(proc / "self/status")[used] * 1024))
    return min([free, *_cgroup_limits(proc, cgroup)])


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file of `name value` or `name: value kB` lines, in the unit they stand in."""
    rows = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}


def _cgroup_limits(proc: Path, cgroup: Path) -> Iterator[int]:
    """Yield what each control group above this process has left, page cache that it can drop counted as free."""
    for folder, version in control_groups("memory", proc, cgroup):
        names = _NAMES_V1 if version == 1 else _NAMES_V2
        if (left := _left(folder, *names)) is not None:
            yield left


def _left(folder: Path, limit: str, usage: str, prefix: str) -> int | None:
    try:
        if (most := read_limit(folder / limit)) is None:
            return None
        stat = _fields(folder / "memory.stat")
        cached = sum(stat.get(f"{prefix}{name}_file", 0) for name in ("active", "inactive"))
        used = int((folder / usage).read_text()) - cached
    except OSError:  # the root has no limit of its own; others may be unreadable
        return None
    return max(0, most - used)


def keep_freed_memory() -> bool:
    """Let this process keep up to 512 MiB of freed memory for its next allocations; False if that is not possible.

    By default glibc hands a freed picture straight back to the kernel, so that the next one is faulted in anew, page by
    page: cv2.imdecode of 500×375 then takes 1.18 ms instead of 0.66 ms. Meant for loaders, which allocate the same
    sizes over and over; a trainer's memory is not ours to keep. Other C libraries (musl) have no such switch: this is
    then said in the log, and nothing changes.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is None:
        _log.info("the C library is not glibc: freed decode buffers go back to the kernel, decoding may be slower")
        return False
    taken = [mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES), mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)]
    return taken == [1, 1]


def give_back_freed_memory() -> None:
    """Have the C library return what was freed to the kernel: it keeps tens of megabytes after a large computation."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc; others return what they can by themselves
        trim(0)


def shortage(
    what: str, need: int, have: int, lower: str = "lower batch_size or prefetch_batches"
) -> RingAllocationError:
    """Return the error for `what`, which needs more bytes than `have` are available; `lower`: what helps."""
    return RingAllocationError(
        f"{what} needs {need:,} bytes, and {have:,} bytes are available (free memory, control group and address-space "
        f"limits considered): {lower}, or give the process more memory"
    )
