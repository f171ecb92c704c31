"""`python -P -m benchmarks.watching`: what it costs to be watched, by a trace or by a monitor.

One reader is watched and not watched in turns of a tenth of a second, so that all else stays the same. What is compared
is the processor time for each batch, of all processes of the pipeline and of the trainer alone: what else runs on the
machine changes that least. In the first rows the trainer does nothing but take batches, so the figures are the worst
there can be; in the rows with a step it computes for two milliseconds after each batch. A figure is the median of the
ratios of adjacent turns, between the bounds of its 95 % confidence interval. In the rows `nothing` the turns do not
differ: so much is chance.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blobfeed.workers.pipeline import ProcessFeed
from blobfeed.workers.processes import usage_of

from blobfeed import BatchReader

from .report import machine, table
from .switched import Flag, SwitchedSource, switched


@dataclass(frozen=True)
class Work:
    name: str
    shape: tuple[int, ...]
    batch_size: int
    decodes: bool
    step_s: float = 0.0


_WORKS = {
    "28": Work("28×28, as stored", (1, 28, 28), 64, False),
    "28-step": Work("28×28, beside a step of 2 ms", (1, 28, 28), 64, False, 2e-3),
    "28-decode": Work("28×28, a decode hook", (1, 28, 28), 64, True),
    "224": Work("3×224×224, as stored", (3, 224, 224), 32, False),
    "224-step": Work("3×224×224, beside a step of 2 ms", (3, 224, 224), 32, False, 2e-3),
    "224-decode": Work("3×224×224, a decode hook", (3, 224, 224), 32, True),
}
_SAMPLES = {28: 2048, 224: 256}
_WATCHED = ("trace", "monitor", "nothing")
_MONITOR_LOOKS_S = 0.1
"""Ten times as often as `blobfeed monitor`, so that it looks in each turn."""

_MONITOR = f"""
import time
from blobfeed.monitor import Monitor
monitor = Monitor(None)
monitor.look()
print("looks", flush=True)
while True:
    monitor.look()
    time.sleep({_MONITOR_LOOKS_S})
"""

Switch = Callable[[bool], object]


@dataclass(frozen=True)
class Cost:
    """The cost of a batch in seconds of processor time: of all processes, and of the trainer."""

    all_s: float
    trainer_s: float


class Turns:
    """A reader that is read a tenth of a second at a time."""

    def __init__(self, reader: BatchReader, step_s: float) -> None:
        self._step_s = step_s
        self._loop = iter(reader)
        for _ in range(200):
            next(self._loop)
        pipeline = reader._pipeline
        feed = pipeline._feed
        assert isinstance(feed, ProcessFeed)
        assert feed._assembler is not None
        self._children = [feed._assembler.pid, *(state.pid for state in pipeline.activities())]

    def turn(self, seconds: float) -> Cost:
        batches, begun, before = 0, time.process_time(), self._cpu_s()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            next(self._loop)
            batches += 1
            self._step()
        own = time.process_time() - begun
        return Cost((own + self._cpu_s() - before) / batches, own / batches)

    def _step(self) -> None:
        """Compute for as long as a training step takes."""
        end = time.process_time() + self._step_s
        while time.process_time() < end:
            pass

    def _cpu_s(self) -> float:
        return sum(usage.cpu_ns for pid in self._children if (usage := usage_of(pid)) is not None) / 1e9


def _decode(sample: Any, _: np.random.Generator) -> Any:
    return 255 - sample["image"]


@contextmanager
def _switch(what: str, flag: Flag) -> Iterator[Switch]:
    """Yield a function that begins the watching, which ends with the block."""
    if what != "monitor":
        yield flag.set if what == "trace" else bool
        return
    with subprocess.Popen([sys.executable, "-c", _MONITOR], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield lambda on: os.kill(process.pid, signal.SIGCONT if on else signal.SIGSTOP)
        finally:
            process.kill()


def _pairs(work: Work, what: str, folder: Path, rounds: int, seconds: float) -> Iterator[tuple[Cost, Cost]]:
    """Watched, and not."""
    rng = np.random.default_rng(0)
    path = folder / f"{work.shape[-1]}.npy"
    if not path.exists():
        np.save(path, rng.integers(0, 256, (_SAMPLES[work.shape[-1]], *work.shape), np.uint8))
    values: dict[str, Any] = {"decode": _decode} if work.decodes else {}
    if what == "trace":
        values["trace"] = "trace.json"
    flag = folder / "flag"
    Flag(flag).set(True)
    with ExitStack() as stack:
        stack.enter_context(switched(Flag(flag)))
        reader = BatchReader(
            SwitchedSource(path, flag),
            batch_size=work.batch_size,
            num_loaders=1,
            shuffle=True,
            tops="image",
            base_dir=folder,
            **values,
        )
        turns = Turns(stack.enter_context(reader), work.step_s)
        watch = stack.enter_context(_switch(what, Flag(flag)))
        for number in range(rounds):
            costs = {}
            for on in (True, False) if number % 2 else (False, True):
                watch(on)
                turns.turn(seconds / 5)  # what was in the slots is used up
                costs[on] = turns.turn(seconds)
            yield costs[True], costs[False]


def _interval(ratios: list[float]) -> str:
    """The median in per cent, and its bounds: ranks of the binomial distribution."""
    ordered = sorted(ratios)
    away = 0.98 * math.sqrt(len(ordered))
    low, high = (round(min(max(len(ordered) / 2 + side * away - 0.5, 0), len(ordered) - 1)) for side in (-1, 1))
    middle, low_, high_ = (100 * (each - 1) for each in (statistics.median(ordered), ordered[low], ordered[high]))
    return f"{middle:+.1f} % ({low_:+.1f} … {high_:+.1f})"


def _row(work: Work, what: str, folder: Path, rounds: int, seconds: float) -> list[str]:
    pairs = list(_pairs(work, what, folder, rounds, seconds))
    every = _interval([on.all_s / off.all_s for on, off in pairs])
    trainer = _interval([on.trainer_s / off.trainer_s for on, off in pairs])
    plain = statistics.median(off.all_s for _, off in pairs)
    return [work.name, what, f"{plain * 1e6:,.0f} µs", every, trainer]


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -P -m benchmarks.watching", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="pairs of turns")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    parser.add_argument("--watched", nargs="+", choices=_WATCHED, default=_WATCHED, help="only these")
    parser.add_argument("--works", nargs="+", choices=list(_WORKS), default=list(_WORKS), help="only these")
    chosen = parser.parse_args(given)
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        rows = [
            _row(_WORKS[work], what, Path(name), chosen.rounds, chosen.seconds)
            for work in chosen.works
            for what in chosen.watched
        ]
    print(table(["data", "watched by", "a batch, unwatched", "all processes", "the trainer"], rows))


if __name__ == "__main__":
    main()
