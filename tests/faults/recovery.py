"""How long the trainer waits when a loader is killed or hangs, and until it hears of its assembler's death."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from blobfeed.workers.api import Hooks
from blobfeed.workers.pipeline import Pipeline

from blobfeed import AssemblerDied

from ..support import leftovers
from ..support.waiting import wait_until_none
from .figures import Figure, spread
from .processes import assembler, count_of, send, some_loader
from .scale import Scale
from .works import Work, slow_augment

_STUDY = "recovery"
_HUNG_S = 0.5
_BETWEEN = 8
"""Batches between two kills: the next loader is at work by then."""

_SLOW = Work("slow", {"shuffle": True, "epochs": None, "prefetch_batches": 1}, Hooks(decode=slow_augment))


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _kills(scale, folder, num_loaders=2)
    yield from _kills(scale, folder, num_loaders=1)
    yield from _hangs(scale, folder)
    yield from _assembler_deaths(scale, folder)


def _kills(scale: Scale, folder: Path, num_loaders: int) -> Iterator[Figure]:
    with _SLOW.open(folder, num_loaders=num_loaders) as pipeline:
        for _ in range(_BETWEEN):
            _take(pipeline)
        undisturbed = [_next_awaited(pipeline, time.monotonic()) for _ in range(20)]
        waits = list(_waits_after(pipeline, scale.kills, signal.SIGKILL, scale.seed))
        deaths = count_of(pipeline, "loader_deaths", len(waits))
    of = f"of {num_loaders} loader{'s' * (num_loaders > 1)}"
    yield Figure(_STUDY, f"{of}: batches undisturbed, median / 95 % / most", spread(undisturbed))
    yield Figure(_STUDY, f"{of}: {len(waits)} × SIGKILL of one to the next batch, median / 95 % / most", spread(waits))
    yield Figure(_STUDY, f"{of}: deaths not seen", len(waits) - deaths, 0)


def _hangs(scale: Scale, folder: Path) -> Iterator[Figure]:
    with _SLOW.open(folder, num_loaders=1, task_timeout_s=_HUNG_S) as pipeline:
        waits = list(_waits_after(pipeline, scale.hangs, signal.SIGSTOP, scale.seed))
        deaths = pipeline.statistics().loader_deaths
    what = f"{len(waits)} × SIGSTOP of the only loader to the next batch, task_timeout_s {_HUNG_S:g}"
    yield Figure(_STUDY, f"{what}, median / 95 % / most", spread(waits))
    yield Figure(_STUDY, "hung loaders not replaced", max(0, len(waits) - deaths), 0)


def _waits_after(pipeline: Pipeline, times: int, number: signal.Signals, seed: int) -> Iterator[float]:
    rng = random.Random(seed)
    for _ in range(times):
        for _ in range(_BETWEEN):
            _take(pipeline)
        victim = some_loader(pipeline, rng, patience_s=1.0)
        if victim is not None and send(victim, number):
            yield _next_awaited(pipeline, time.monotonic())


def _next_awaited(pipeline: Pipeline, since: float) -> float:
    """Seconds from `since` to the first batch that does not lie ready already."""
    while pipeline.is_ready():
        _take(pipeline)
    _take(pipeline)
    return time.monotonic() - since


def _take(pipeline: Pipeline) -> None:
    pipeline.release(pipeline.take())


def _assembler_deaths(scale: Scale, folder: Path) -> Iterator[Figure]:
    waits, survivors = [], 0
    for _ in range(scale.assemblers):
        with _SLOW.open(folder) as pipeline:
            _take(pipeline)
            waits.append(_until_assembler_died(pipeline))
            left = wait_until_none(lambda: [str(pid) for pid in _others()], scale.survival_s)
            survivors += len(left)
    yield Figure(
        _STUDY, f"{len(waits)} × SIGKILL of the assembler to AssemblerDied, median / 95 % / most", spread(waits)
    )
    yield Figure(_STUDY, f"loaders left {scale.survival_s:g} s after their assembler", survivors, 0)


def _until_assembler_died(pipeline: Pipeline) -> float:
    os.kill(assembler(), signal.SIGKILL)
    killed = time.monotonic()
    while True:
        try:
            _take(pipeline)
        except AssemblerDied as death:
            if "SIGKILL" not in str(death):
                raise
            return time.monotonic() - killed


def _others() -> list[int]:
    """Our processes that live, without the fork server, which does until close()."""
    servers = {each.pid for each in psutil.Process().children()}
    return [pid for pid in leftovers.orphans() if pid not in servers and "zombie" not in leftovers.describe(pid)]
