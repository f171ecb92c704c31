"""Close and start again: no descriptor, process, thread or directory is left."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from ..support import leftovers
from ..support.waiting import wait_until_none
from .figures import Figure, megabytes
from .scale import Scale
from .works import WORKS

_STUDY = "restarts"
_PATIENCE_S = 2.0


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    _run_once(folder)
    gc.collect()
    temporary = Path(tempfile.gettempdir())
    belongings, descriptors, threads = leftovers.Belongings.now(temporary), leftovers.descriptors(), _threads()
    memory = psutil.Process().memory_info().rss
    for _ in range(scale.restarts):
        _run_once(folder)
    grown = psutil.Process().memory_info().rss - memory
    left = wait_until_none(lambda: leftovers.Belongings.now(temporary).added_since(belongings), _PATIENCE_S)
    alive = wait_until_none(lambda: [str(pid) for pid in leftovers.orphans()], _PATIENCE_S)
    directories = [name for name in left if not name.startswith("process")]
    yield Figure(_STUDY, "pipelines started and closed", scale.restarts)
    yield Figure(_STUDY, "descriptors left", len(leftovers.opened_since(descriptors)), 0)
    yield Figure(_STUDY, "processes left", len(alive) + len(left) - len(directories), 0)
    yield Figure(_STUDY, "threads left", max(0, _threads() - threads), 0)
    yield Figure(_STUDY, "directories and shared memory left", len(directories), 0)
    yield Figure(_STUDY, "trainer's memory grown by (RSS)", megabytes(grown))


def _run_once(folder: Path) -> None:
    with WORKS[4].open(folder) as pipeline:
        for _ in range(3):
            pipeline.release(pipeline.take())


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - a count alone
