"""Processes, files and descriptors that a test has left behind.

Two looks of different price. `Belongings` costs a fraction of a millisecond and is taken around every test: direct
children and entries of the temporary directory. Around a module also come the open descriptors and, by a mark in their
environment, the processes that no longer have a parent here: an orphaned loader is nobody's child.

/dev/shm is not looked at. Other programs have files there too, and nothing tells whose one is: a mapping does not, as a
file may lie there unmapped. tests/workers/processes/test_trainer_death.py shows that no process of ours opens one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_MARK = "BLOBFEED_TEST_RUN"
_STARTED_NS = time.time_ns()
# multiprocessing starts these once and ends them with the process that asked; they are not ours to end.
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# torch's compiler makes its cache directory whenever it is imported, and means it to stay.
_CACHES = "torchinductor_"


def mark_environment() -> None:
    """From now on every process that comes of this one, at any distance, carries the mark that `orphans` looks for."""
    os.environ[_MARK] = _our_mark()


@dataclass(frozen=True)
class Belongings:
    """What this process has at one moment, each by the words in which a leftover is reported."""

    children: frozenset[int]
    temporary: frozenset[str]

    @classmethod
    def now(cls, temporary: Path) -> Self:
        names = frozenset(entry.name for entry in temporary.iterdir())
        return cls(children=frozenset(_children()), temporary=names - _torchs_folder())

    def added_since(self, before: Belongings) -> list[str]:
        return [
            *(describe(pid) for pid in sorted(self.children - before.children) if not _is_helper(pid)),
            *(f"temporary file {n}" for n in sorted(self.temporary - before.temporary) if not n.startswith(_CACHES)),
        ]


def _torchs_folder() -> set[str]:
    """The folder that torch 2.8 makes for this process when `torch.distributed.nn` is imported, and removes at exit."""
    module = sys.modules.get("torch.distributed.nn.jit.instantiator")
    folder = getattr(module, "_TEMP_DIR", None)
    return set() if folder is None else {Path(folder.name).name}


def orphans() -> list[int]:
    """Marked processes apart from this one and its multiprocessing helpers, children or not."""
    return [pid for pid in marked(f"{_MARK}={_our_mark()}") if pid != os.getpid() and not _is_helper(pid)]


def marked(mark: str) -> list[int]:
    """Return the processes with `mark`, NAME=value, in their environment: whoever they were started by."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - a hundred paths
        with suppress(OSError):  # a zombie's is empty
            if name.isdigit() and mark.encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def descriptors() -> dict[int, str]:
    """The open file descriptors and what each stands for."""
    return dict(_descriptors())


def opened_since(before: dict[int, str]) -> list[str]:
    opened = descriptors().items() - before.items()
    if any(target.startswith("/dev/nvidia") for _, target in opened):
        return []  # CUDA keeps its devices open until the process ends, and pipes and sockets that say no name
    return [f"descriptor {number} ({target})" for number, target in opened]


def describe(pid: int) -> str:
    with suppress(OSError):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return f"process {pid}: a zombie that nobody waited for"
        return f"process {pid}: {Path(f'/proc/{pid}/cmdline').read_text(errors='replace').replace(chr(0), ' ')}"
    return f"process {pid}, just gone"


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _our_mark() -> str:
    # Process ids come back: a number alone may be that of an earlier run, whose processes are not ours to end.
    return f"{os.getpid()}-{_STARTED_NS}"


def _children() -> Iterator[int]:
    # The kernel keeps a list for each thread; asking every process of the machine for its parent takes ten times as
    # long.
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):
            yield from map(int, (task / "children").read_text().split())


def _descriptors() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            yield int(entry.name), str(entry.readlink())


def _is_helper(pid: int) -> bool:
    with suppress(OSError):
        return any(helper.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for helper in _HELPERS)
    return False
