"""Costs as the work grows, some of which must not: start-up, memory and time per batch for more samples, files, rows.

`python -m benchmarks.growth GIVEN FILE` is one run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blobfeed.workers.api import Parameters
from blobfeed.workers.pipeline import Pipeline

from .datasets import HDF5_28, data_folder, made
from .entrants import WORKERS
from .harness import Plan, Program, RunFailed, Say, run_program
from .page_cache import fill
from .processes import MARK, members, memory
from .report import duration, megabytes, rate, table
from .synthetic import SyntheticSource

_FILES = 1000


@dataclass(frozen=True)
class Case:
    """`samples`: of the synthetic source, where there is no `source`."""

    title: str
    batch_size: int
    seconds: float
    samples: int = 0
    source: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Cost:
    """`opened_s`: to open and check everything; `started_s`: from there to the first batch. Per batch: trainer CPU."""

    opened_s: float
    started_s: float
    samples_per_s: float
    trainer_cpu_s: float
    own_bytes: int
    shared_bytes: int


def _cases(plan: Plan) -> list[Case]:
    samples = HDF5_28.size(plan.quick)
    one = {"hdf5": {"path": str(HDF5_28.ensure(samples))}}
    folder = many_files(samples)
    many = {"hdf5": {"path": str(folder / "*.h5")}}
    fill(HDF5_28.path(samples))
    fill(folder)
    return [
        Case("10³ samples", 64, plan.seconds, samples=10**3),
        Case("10⁶ samples", 64, plan.seconds, samples=10**6),
        Case("10⁹ samples", 64, plan.seconds, samples=10**9),
        Case(f"1 file, {samples:,} rows of 28×28", 64, plan.seconds, source=one),
        Case(f"{_FILES:,} files, {samples:,} rows of 28×28", 64, plan.seconds, source=many),
        Case("batches of 1, rows of 28×28", 1, plan.seconds, source=one),
        Case("batches of 4,096, rows of 28×28", 4096, plan.seconds, source=one),
    ]


def many_files(samples: int) -> Path:
    """The 28×28 data set again, cut into a thousand files."""

    def write(folder: Path) -> None:
        folder.mkdir()
        for number in range(_FILES):
            HDF5_28.write(folder / f"{number:04d}.h5", samples // _FILES)

    return made(data_folder() / f"hdf5_28-{samples}-in-{_FILES}", write)


def study(plan: Plan, say: Say) -> str:
    rows = []
    for case in _cases(plan):
        try:
            cost = Cost(**run_program(Program("benchmarks.growth"), asdict(case), plan.limit_s))
        except RunFailed as failure:
            rows.append([case.title, f"failed: {failure}", *[""] * 5])
            continue
        say(f"growth: {case.title}, first batch after {cost.opened_s + cost.started_s:.2f} s")
        rows.append(_row(case, cost))
    head = ["work", "opened", "then first batch", "samples/s", "trainer CPU per batch", "PSS", "of it the ring"]
    return f"## Cost as the work grows, shuffled, {WORKERS} loaders\n\n{table(head, rows)}"


def _row(case: Case, cost: Cost) -> list[str]:
    return [
        case.title,
        duration(cost.opened_s),
        duration(cost.started_s),
        rate(cost.samples_per_s),
        duration(cost.trainer_cpu_s),
        megabytes(cost.own_bytes),
        megabytes(cost.shared_bytes),
    ]


def measure(case: Case) -> Cost:
    source = None if case.source else SyntheticSource(case.samples, (3, 32, 32))
    parameters = Parameters(
        source=dict(case.source) if case.source else None,
        batch_size=case.batch_size,
        num_loaders=WORKERS,
        shuffle=True,
    )
    begin = time.perf_counter()
    with Pipeline(parameters, source=source) as pipeline:
        opened = time.perf_counter()
        pipeline.release(pipeline.take())
        started = time.perf_counter()
        take_for(case.seconds / 3, pipeline)
        trainer = time.process_time()
        seconds, batches = take_for(case.seconds, pipeline)
        trainer = time.process_time() - trainer
        used = memory(members(os.environ[MARK]), data_folder())
    return Cost(
        opened_s=opened - begin,
        started_s=started - opened,
        samples_per_s=batches * case.batch_size / seconds,
        trainer_cpu_s=trainer / batches,
        own_bytes=used.own,
        shared_bytes=used.shared,
    )


def take_for(seconds: float, pipeline: Pipeline) -> tuple[float, int]:
    """Take batches; the seconds that have passed, and how many it were."""
    begin, batches = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds:
        pipeline.release(pipeline.take())
        batches += 1
    return passed, batches


def main() -> None:
    case = Case(**json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(asdict(measure(case))))


if __name__ == "__main__":
    main()
