"""Trainers and loaders killed at random for minutes, each trainer going on where the last one stopped.

Their batches, one behind the other, are those of a run that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from ..support import leftovers
from ..support.waiting import wait_until_none
from .figures import Figure
from .record import Record
from .scale import Scale
from .soak_trainer import lines_of
from .works import WORKS

_STUDY = "soak"
_WORKS = (2, 4, 6)
_PAUSE_S = 0.25
_TRAINERS = 0.1
"""Part of the strikes that are for the trainer; the others are for a loader."""

_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
_ODDS = (6, 3, 1)
_SURVIVAL_S = 1.0
_END_S = 20.0


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    totals: Counter[str] = Counter()
    for number in _WORKS:
        soak = Soak(number, folder, random.Random(f"{scale.seed} soak {number}"))
        soak.run(scale.soak_s / len(_WORKS))
        digests = [line.partition(" ")[0] for line in lines_of(soak.log)]
        differing = _differing(number, folder, digests)
        totals.update(soak.counts, batches=len(digests), differing=differing)
        what = f"{WORKS[number].name}: {len(digests):,} batches, {soak.told}; batches that differ"
        yield Figure(_STUDY, what, differing, 0)
    yield Figure(_STUDY, f"batches in {scale.soak_s:g} s", totals["batches"])
    yield Figure(_STUDY, "trainers killed and resumed", totals["trainers"])
    yield Figure(_STUDY, "loaders killed, crashed or stopped", totals["loaders"])
    yield Figure(_STUDY, "trainers that ended by themselves", totals["ended"], 0)
    yield Figure(_STUDY, "processes left a second after their trainer", totals["left"], 0)


@dataclass
class Soak:
    work: int
    folder: Path
    rng: random.Random

    def __post_init__(self) -> None:
        self.log = self.folder / f"soak-{self.work}"
        self.counts: Counter[str] = Counter()

    @property
    def told(self) -> str:
        return f"{self.counts['trainers']} trainers and {self.counts['loaders']} loaders struck"

    def run(self, seconds: float) -> None:
        with WORKS[self.work].open(self.folder):  # so that its file is there
            end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._start() as trainer:
                self._strike_loaders(trainer, end)
                self.counts["ended"] += trainer.poll() is not None
                trainer.kill()
            self.counts["trainers"] += 1
            self.counts["left"] += len(wait_until_none(_alive, _SURVIVAL_S))
            wait_until_none(_alive, _END_S)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}
        module = f"{__package__}.soak_trainer"
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(self.folder), str(self.work), str(self.log)], env=environment
        )

    def _strike_loaders(self, trainer: subprocess.Popen[bytes], end: float) -> None:
        """Until it is the trainer's turn, which must have given something since its start: else nothing would move."""
        before = self._size()
        while time.monotonic() < end and trainer.poll() is None:
            time.sleep(self.rng.expovariate(1 / _PAUSE_S))  # not waiting for anything: the moment is drawn by lot
            if self.rng.random() < _TRAINERS and self._size() > before:
                return
            if loaders := _loaders(trainer.pid):
                (number,) = self.rng.choices(_SIGNALS, _ODDS)
                with suppress(psutil.NoSuchProcess):
                    self.rng.choice(loaders).send_signal(number)
                    self.counts["loaders"] += 1

    def _size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0


def _loaders(trainer: int) -> list[psutil.Process]:
    """The trainer's descendants in the fourth generation: fork server, assembler, nursery, loaders."""
    found = [psutil.Process(trainer)]
    try:
        for _ in range(4):
            found = [child for process in found for child in process.children()]
    except psutil.NoSuchProcess:
        return []
    return found


def _alive() -> list[str]:
    return [str(pid) for pid in leftovers.orphans()]


def _differing(work: int, folder: Path, digests: list[str]) -> int:
    """Batches in which the disturbed runs, one behind the other, differ from one that nobody disturbs."""
    differing = 0
    with WORKS[work].open(folder, epochs=None) as pipeline:
        for digest in digests:
            batch, record = pipeline.take(), Record()
            record.add(batch)
            pipeline.release(batch)
            differing += record.digests[0].hex() != digest
    return differing
