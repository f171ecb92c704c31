"""`python -m benchmarks.watching`: what it costs to be watched: a trace, a monitor, metrics; each against none of it.

Two readers of the same data stand side by side, one of them watched. They are read in turns, a tenth of a second
each; the one that is not read has a full ring, so its loaders sleep. What is compared is the processor time of all
processes of a pipeline for each batch, and the trainer's alone: what else runs on the machine changes them least. The
ratio is the median over pairs of turns. The last pair has nothing on either side: so much is chance.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blobfeed.workers.base.usage import usage_of
from blobfeed.workers.pipeline.feed import Feed
from blobfeed.workers.transport.status_board import Activity, LoaderStatus, StatusBoard

from blobfeed import BatchReader

from .report import machine, table


@dataclass(frozen=True)
class Work:
    name: str
    shape: tuple[int, ...]
    batch_size: int
    decodes: bool


_WORKS = (
    Work("28×28, as stored", (1, 28, 28), 64, False),
    Work("28×28, a decode hook", (1, 28, 28), 64, True),
    Work("3×224×224, a decode hook", (3, 224, 224), 32, True),
)
_SAMPLES = 2048
_WATCHED: Mapping[str, Mapping[str, Any]] = {
    "trace": {"trace": "trace.json"},
    "metrics": {"metrics": "metrics.prom"},
    "monitor": {},
    "none": {},
}
_MONITOR = """
import time
from blobfeed.monitor import Monitor
monitor = Monitor(None)
while True:
    monitor.look()
    time.sleep(1)
"""


@dataclass(frozen=True)
class Cost:
    """Of a batch, in seconds of processor time: of all processes, and of the trainer."""

    all_s: float
    trainer_s: float


class Turns:
    """A reader that is read a tenth of a second at a time."""

    def __init__(self, reader: BatchReader) -> None:
        self._loop = iter(reader)
        for _ in range(20):
            next(self._loop)
        pipeline = reader._feed.pipeline
        feed = pipeline._feed
        assert isinstance(feed, Feed)
        assert feed._assembler is not None
        self._children = [feed._assembler.pid, *(state.pid for state in pipeline.activities())]

    def turn(self, seconds: float) -> Cost:
        batches, begun, before = 0, time.thread_time(), self._cpu_s()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            next(self._loop)
            batches += 1
        own = time.thread_time() - begun
        return Cost((own + self._cpu_s() - before) / batches, own / batches)

    def _cpu_s(self) -> float:
        return sum(usage.cpu_ns for pid in self._children if (usage := usage_of(pid)) is not None) / 1e9


def _decode(sample: Any, _: np.random.Generator) -> Any:
    return 255 - sample["image"]


def _reader(work: Work, folder: Path, watched: Mapping[str, Any]) -> BatchReader:
    values: dict[str, Any] = {"decode": _decode} if work.decodes else {}
    source = {"npy": {"image": str(folder / f"{work.shape[-1]}.npy")}}
    return BatchReader(
        source,
        batch_size=work.batch_size,
        num_loaders=1,
        shuffle=True,
        base_dir=folder,
        tops="image",
        **values,
        **watched,
    )


def _pairs(work: Work, what: str, folder: Path, rounds: int, seconds: float) -> Iterator[tuple[Cost, Cost]]:
    with ExitStack() as stack:
        plain = Turns(stack.enter_context(_reader(work, folder, {})))
        other = Turns(stack.enter_context(_reader(work, folder, _WATCHED[what])))
        for number in range(rounds):
            costs = {}
            for turn in (other, plain) if number % 2 else (plain, other):
                with _monitor() if turn is other and what == "monitor" else nullcontext():
                    costs[turn] = turn.turn(seconds)
            yield costs[other], costs[plain]


@contextmanager
def _monitor() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", _MONITOR]) as process:
        try:
            time.sleep(1)  # its imports are over
            yield
        finally:
            process.kill()


def _row(work: Work, what: str, folder: Path, rounds: int, seconds: float) -> list[str]:
    pairs = list(_pairs(work, what, folder, rounds, seconds))
    ratios = [statistics.median(own / none for own, none in of) for of in (
        [(own.all_s, none.all_s) for own, none in pairs], [(own.trainer_s, none.trainer_s) for own, none in pairs]
    )]  # fmt: skip
    plain = statistics.median(none.all_s for _, none in pairs)
    return [work.name, what, f"{plain * 1e6:,.0f} µs", *(f"{100 * (ratio - 1):+.1f} %" for ratio in ratios)]


class _WithoutTimes(LoaderStatus):
    """As it was before loaders accounted their time: three stores."""

    def write(self, activity: int, sample: int = -1, rows: int = 1) -> None:
        words = self._words
        words[2] = activity
        words[4] = sample
        words[5] = time.monotonic_ns()


def _store_ns(kind: type[LoaderStatus]) -> float:
    board = StatusBoard.create(1)
    status = kind(board.words_of(0))
    took = []
    for _ in range(9):
        begun = time.thread_time_ns()
        for sample in range(20_000):
            status.write(Activity.DECODING, sample)
        took.append((time.thread_time_ns() - begun) / 20_000)
    del status
    board.close()
    return min(took)


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="pairs of turns")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    parser.add_argument("--watched", nargs="+", choices=list(_WATCHED), default=list(_WATCHED), help="only these")
    chosen = parser.parse_args(given)
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        for work in {work.shape: work for work in _WORKS}.values():
            data = rng.integers(0, 256, (_SAMPLES if work.shape[-1] < 100 else 256, *work.shape), np.uint8)
            np.save(folder / f"{work.shape[-1]}.npy", data)
        rows = [_row(work, what, folder, chosen.rounds, chosen.seconds) for work in _WORKS for what in chosen.watched]
    print(table(["data", "watched by", "a batch, unwatched", "all processes", "the trainer"], rows))
    plain, times = _store_ns(_WithoutTimes), _store_ns(LoaderStatus)
    print(f"a loader notes what it begins: {times:,.0f} ns with its times, {plain:,.0f} ns without")


if __name__ == "__main__":
    main()
