"""`python -m benchmarks.before CHECKOUT`: an older blobfeed and this one, in turn.

CHECKOUT is a worktree of the older commit, in which `make .venv/package .venv/test-dependencies` has been run. Each
measures itself by the benchmarks of its own commit, since these reach below the public names; the data are the same.
Prints, of the medians, now ÷ before: samples a second, processor time of all processes and of the trainer for a batch,
and the time to the first batch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, fields
from pathlib import Path

from .entrants import find_entrant
from .harness import Plan, Program, run_program
from .job import Figures, Job, Outcome, Result
from .page_cache import fill
from .works import find_work

_WORKS = ("hdf5_224", "hdf5_28", "jpeg", "hdf5_gzip", "hdf5_float", "hdf5_samples")
_ENTRANTS = ("blobfeed, 2 loaders", "blobfeed, in process")
_METRICS = ("samples_per_s", "all_cpu_s", "trainer_cpu_s", "first_batch_s")


def _in_turn(programs: list[Program], job: Job, rounds: int) -> list[Result]:
    outcomes: list[list[Outcome]] = [[] for _ in programs]
    for number in range(rounds):
        for which in sorted(range(len(programs)), reverse=bool(number % 2)):
            fill(find_work(job.work).data.path(job.samples))
            values = run_program(programs[which], asdict(job), limit_s=180.0)
            # An older program may not measure all that this one does.
            figures = dict.fromkeys([each.name for each in fields(Figures)], 0) | values["figures"]
            outcomes[which].append(Outcome(Figures(**figures)))
    return [Result.of(each) for each in outcomes]


def _row(job: Job, before: Result, now: Result) -> str:
    ratios = [(now.median(metric) or 0.0) / (before.median(metric) or 1.0) for metric in _METRICS]
    return f"| {job.work} | {job.entrant} | {now.median('samples_per_s'):,.0f} | " + " | ".join(
        f"{ratio:.2f}" for ratio in ratios
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--work", nargs="+", default=_WORKS)
    parser.add_argument("--entrants", nargs="+", default=_ENTRANTS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| work | entrant | samples/s now | rate ÷ before | all processes | trainer | first batch |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="blobfeed_bench_") as folder:
        # The benchmarks alone: beside them in a checkout lies a ./blobfeed that would be found before the package.
        (Path(folder) / "benchmarks").symlink_to(given.checkout.resolve() / "benchmarks")
        python = given.checkout.resolve() / ".venv" / "bin" / "python"
        there = Program("benchmarks.run_one", str(python), {"PYTHONPATH": folder})
        programs = [there, Program("benchmarks.run_one", sys.executable)]
        for name in given.work:
            data = find_work(name).data
            data.ensure(data.size(False))
            for entrant in given.entrants:
                job = Job(find_entrant(entrant).name, name, data.size(False), Plan.seconds, Plan.warmup_s, Plan.batches)
                before, now = _in_turn(programs, job, given.rounds)
                print(_row(job, before, now), "|", flush=True)


if __name__ == "__main__":
    main()
