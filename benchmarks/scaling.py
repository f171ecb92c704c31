"""The number of tasks and messages that one assembler carries, with loaders that only sleep.

`python -m benchmarks.scaling GIVEN FILE` is one run. A task and its result are one message each, a batch's announcement
and its release too. What an assembler can carry is the inverse of its own CPU time per task: the loaders of this
machine compete with it for the cores, on a larger one they would not.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from blobfeed.workers.api import Parameters
from blobfeed.workers.pipeline import Pipeline

from .growth import take_for
from .harness import Plan, Program, RunFailed, Say, run_program
from .processes import cpu_seconds
from .report import duration, rate, table
from .synthetic import SyntheticSource

_SAMPLE_S = 0.010
"""The time that a task is meant to take: so each is one sample, and the assembler has the most to do per second."""

_BATCH = 64


@dataclass(frozen=True)
class Load:
    loaders: int
    sample_s: float
    seconds: float


@dataclass(frozen=True)
class Carried:
    """The figures of one run: per second, and the assembler's CPU time for each task in seconds."""

    tasks_per_s: float
    messages_per_s: float
    assembler_s_per_task: float
    busy_loaders: float


def study(plan: Plan, say: Say) -> str:
    rows = []
    for loaders in (4, 16, 64):
        load = Load(loaders, _SAMPLE_S, plan.seconds)
        try:
            carried = Carried(**run_program(Program("benchmarks.scaling"), asdict(load), plan.limit_s))
        except RunFailed as failure:
            rows.append([str(loaders), f"failed: {failure}", "", "", "", "", ""])
            continue
        say(f"scaling: {loaders} loaders, {carried.tasks_per_s:,.0f} tasks/s")
        rows.append(_row(load, carried))
    head = ["loaders", "tasks/s", "messages/s", "asked of it, tasks/s", "assembler CPU per task", "it could carry"]
    head.append("hence feed, of 1 / 10 / 100 ms a task")
    return f"## One assembler, loaders that sleep {duration(_SAMPLE_S)} for a sample, one sample a task\n\n" + table(
        head, rows
    )


def _row(load: Load, carried: Carried) -> list[str]:
    most = 1 / carried.assembler_s_per_task
    return [
        str(load.loaders),
        rate(carried.tasks_per_s),
        rate(carried.messages_per_s),
        rate(load.loaders / load.sample_s),
        duration(carried.assembler_s_per_task),
        f"{rate(most)} tasks/s",
        " / ".join(rate(most * seconds) for seconds in (0.001, 0.010, 0.100)) + " loaders",
    ]


def measure(load: Load) -> Carried:
    source = SyntheticSource(10**6, (16,), load.sample_s)
    parameters = Parameters(batch_size=_BATCH, num_loaders=load.loaders, prefetch_batches=8)
    with Pipeline(parameters, source=source) as pipeline:
        take_for(1.0, pipeline)
        (assembler,) = psutil.Process().children()
        # Its loaders are its children, and as long as they live their time is not counted as its own.
        used, tasks = cpu_seconds([assembler]), pipeline.statistics().tasks
        seconds, batches = take_for(load.seconds, pipeline)
        used, tasks = cpu_seconds([assembler]) - used, pipeline.statistics().tasks - tasks
    return Carried(
        tasks_per_s=tasks / seconds,
        messages_per_s=(2 * tasks + 2 * batches) / seconds,
        assembler_s_per_task=used / tasks,
        busy_loaders=batches * _BATCH * load.sample_s / seconds,
    )


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(asdict(measure(load))))


if __name__ == "__main__":
    main()
