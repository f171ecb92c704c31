"""Ten epochs while loaders are killed, crashed and stopped at random: every byte as in an undisturbed run."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from blobfeed.workers.assembly import ENOUGH_TO_CONVICT, Evidence
from blobfeed.workers.pipeline import Pipeline

from .figures import Figure
from .processes import send, some_loader
from .record import Difference, Record, compare, read
from .scale import Scale
from .works import WORKS, Work

_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
_ODDS = (5, 3, 2)
_EVIDENCE = dict(zip(_SIGNALS, (Evidence.KILLED_FROM_OUTSIDE, Evidence.CRASHED, Evidence.HUNG), strict=True))
_PATIENCE_S = 0.05


@dataclass
class Injector:
    """Strikes a random loader again and again, preferably one that is working; a thread beside the trainer's loop.

    At one task, and until another one is done, by half of what convicts a sample at most: loaders that get little of a
    busy machine's time would be struck at one sample again and again, which is then blamed for it, and rightly so.
    Batches that the trainer takes say nothing of that, since they were made before.
    """

    pipeline: Pipeline
    pause_s: float
    rng: random.Random
    struck: Counter[signal.Signals] = field(default_factory=Counter)

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._strike_until, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _strike_until(self, stop: threading.Event) -> None:
        tasks, spent, at = 0, 0, Counter[int]()
        while not stop.wait(self.rng.expovariate(1 / self.pause_s)):
            if tasks != (done := self.pipeline.statistics().tasks):
                tasks, spent = done, 0
            (number,) = self.rng.choices(_SIGNALS, _ODDS)
            victim = some_loader(self.pipeline, self.rng, _PATIENCE_S)
            if victim is None or max(spent, at[victim.task]) + _EVIDENCE[number] > ENOUGH_TO_CONVICT // 2:
                continue
            if send(victim, number):
                self.struck[number] += 1
                spent += _EVIDENCE[number]
                at[victim.task] += _EVIDENCE[number] * (victim.task > 0)


@dataclass(frozen=True)
class Outcome:
    work: Work
    struck: Counter[signal.Signals]
    deaths: int
    samples: int
    difference: Difference


def disturb(work: Work, scale: Scale, folder: Path) -> Outcome:
    """The work once undisturbed and once in chaos, which takes about `chaos_s`."""
    with work.open(folder, epochs=scale.chaos_epochs) as pipeline:
        undisturbed = read(pipeline)
    with work.open(folder, epochs=scale.chaos_epochs) as pipeline:
        disturbed = Record()
        injector = Injector(pipeline, scale.pause_s, random.Random(f"{scale.seed} {work.name}"))
        pipeline.peek()
        with injector.running():
            read(pipeline, scale.chaos_s / len(undisturbed.digests), disturbed)
        deaths = pipeline.statistics().loader_deaths
    difference = compare(undisturbed, disturbed)
    return Outcome(work, injector.struck, deaths, len(disturbed.samples), difference)


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    struck: Counter[signal.Signals] = Counter()
    totals: Counter[str] = Counter()
    for work in WORKS[:: scale.work_step]:
        outcome = disturb(work, scale, folder)
        struck += outcome.struck
        totals.update(samples=outcome.samples, deaths=outcome.deaths, **vars(outcome.difference))
        told = f"{outcome.struck.total()} faults, {outcome.deaths} deaths"
        yield _figure(f"{work.name}: {told}; differences", sum(vars(outcome.difference).values()), 0)
    kinds = ", ".join(f"{number.name} {struck[number]}" for number in _SIGNALS)
    yield _figure(f"faults injected ({kinds})", struck.total())
    yield _figure("loaders that died and were replaced", totals["deaths"])
    yield _figure(f"samples delivered, {scale.chaos_epochs} epochs of each work", totals["samples"])
    yield _figure("samples lost", totals["lost"], 0)
    yield _figure("samples repeated", totals["repeated"], 0)
    yield _figure("samples out of order", totals["misplaced"], 0)
    yield _figure("batches with other bytes", totals["altered"], 0)


def _figure(what: str, value: int, must_be: int | None = None) -> Figure:
    return Figure("chaos", what, value, must_be)
