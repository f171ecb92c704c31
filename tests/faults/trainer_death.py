"""SIGKILL of trainers at random moments, start-up included: a second later nothing of them is left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..support import leftovers
from ..support.waiting import wait_until_none
from .figures import Figure, spread
from .scale import Scale
from .works import WORKS

_STUDY = "trainer death"
_SURVIVAL_S = 1.0
_END_S = 20.0
_STAGES = {"": "importing", "i": "making the pipeline", "m": "starting", "s": "waiting for a batch", "b": "training"}


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    rng = random.Random(scale.seed)
    with WORKS[4].open(folder):
        life_s = _time_to_first_batch(folder)
    stages: Counter[str] = Counter()
    ends, survivors, directories = [], 0, 0
    before = _directories()
    for _ in range(scale.trainers):
        stage, left, took = _kill_one(folder, rng.uniform(0, 1.3 * life_s))
        stages[stage] += 1
        survivors += left
        ends.append(took)
        directories += len(_directories() - before)
        before = _directories()
    told = ", ".join(f"{words} {stages[stage]}" for stage, words in _STAGES.items())
    yield Figure(_STUDY, f"trainers killed ({told})", len(ends))
    yield Figure(_STUDY, "processes left after a second", survivors, 0)
    yield Figure(_STUDY, "socket directories left", directories, 0)
    yield Figure(_STUDY, "until the last process was gone, median / 95 % / most", spread(ends))


def _start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", f"{__package__}.trainer", str(folder)], stdout=subprocess.PIPE, env=environment
    )


def _time_to_first_batch(folder: Path) -> float:
    begun = time.monotonic()
    with _start(folder) as trainer:
        assert trainer.stdout is not None
        told = trainer.stdout.read(4)
        took = time.monotonic() - begun
        trainer.kill()
    if told != b"imsb":
        raise RuntimeError(f"the trainer ended by itself after {told!r}: see its own words in the log")
    wait_until_none(lambda: [str(pid) for pid in leftovers.orphans()], _END_S)
    return took


def _kill_one(folder: Path, after_s: float) -> tuple[str, int, float]:
    """How far it had come, processes left after a second, and when the last one was gone."""
    with _start(folder) as trainer:
        assert trainer.stdout is not None
        time.sleep(after_s)  # not waiting for anything: the moment is what is drawn by lot
        trainer.kill()
        killed = time.monotonic()
        told = trainer.stdout.read().decode()
        trainer.wait()
    left = wait_until_none(lambda: [str(pid) for pid in leftovers.orphans()], _SURVIVAL_S)
    if left:
        wait_until_none(lambda: [str(pid) for pid in leftovers.orphans()], _END_S)
    took = time.monotonic() - killed
    leftovers.kill(leftovers.orphans())
    return told[-1:], len(left), took


def _directories() -> set[str]:
    return {entry.name for entry in Path(tempfile.gettempdir()).glob("blobfeed-*")}
