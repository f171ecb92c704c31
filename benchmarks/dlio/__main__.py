"""DLIO's benchmark with several loaders: makes the data, runs all, and prints the table in Markdown.

It needs an environment of its own, outside the repository, with DLIO and blobfeed in it: docs/benchmarks.md has the
commands.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..report import table
from .running import Environment, Outcome, make, run
from .workloads import LOADERS, WORKLOADS, Workload, loads

_ENOUGH = 0.9
_MOST_RANKS = 4
_FEW = ("unet3d", "resnet50, HDF5", "cosmoflow, HDF5")
"""The workloads whose simulated accelerators are counted."""


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m benchmarks.dlio", description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="the interpreter of DLIO's environment")
    parser.add_argument("--folder", type=Path, required=True, help="where the data and results go, about 2 GB")
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--workloads", nargs="+", metavar="NAME", choices=names, default=names)
    parser.add_argument("--loaders", nargs="+", metavar="NAME", choices=LOADERS, default=[*LOADERS])
    parser.add_argument("--epochs", type=int, default=4, help="of each run, at least 3")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each loader")
    parser.add_argument("--cold", action="store_true", help="read from the disk, one epoch a run")
    parser.add_argument("--no-ranks", action="store_true", help="leave out the table of simulated accelerators")
    parser.add_argument("--output", type=Path, help="write the tables to this file too")
    return parser.parse_args(given)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> None:
    arguments = _arguments(given)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    environment = Environment(arguments.python.absolute(), arguments.folder.absolute())
    workloads = [workload for workload in WORKLOADS if workload.name in arguments.workloads]
    for workload in workloads:
        _say(f"data of {workload.name}")
        make(environment, workload)
    begun = time.monotonic()
    parts = [_by_step(environment, workloads, arguments)]
    if not (arguments.no_ranks or arguments.cold):
        parts.append(_by_ranks(environment, [each for each in workloads if each.name in _FEW], arguments))
    load = f"{os.cpu_count()} cores; load average at the end {os.getloadavg()[0]:.1f}, {time.monotonic() - begun:.0f} s"
    text = "\n\n".join([f"{load}.", *parts, *_legend(workloads, arguments.loaders)]) + "\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text)


def _by_step(environment: Environment, workloads: Sequence[Workload], arguments: argparse.Namespace) -> str:
    rows = []
    for workload in workloads:
        for step in workload.steps_ms:
            outcomes: dict[str, list[Outcome]] = {loader: [] for loader in arguments.loaders}
            for _ in range(arguments.rounds):
                for loader in arguments.loaders:
                    if not loads(loader, workload):
                        continue
                    made = run(environment, workload, loader, step, epochs=arguments.epochs, cold=arguments.cold)
                    _say(f"{workload.name}, {step:g} ms, {loader}: {_utilisation([made])}")
                    outcomes[loader].append(made)
            rows.append([workload.name, f"{step:g} ms", *(_cell(each) for each in outcomes.values())])
    return table(["workload", "step", *arguments.loaders], rows)


def _cell(outcomes: Sequence[Outcome]) -> str:
    if not outcomes or any(each.error for each in outcomes):
        return "–" if not outcomes else f"failed: {outcomes[0].error[:60]}"
    cpu = statistics.median(each.cpu for each in outcomes)
    taken = "" if math.isnan(cpu) else f"{cpu * 1e6:,.0f} µs, "
    return f"{_utilisation(outcomes)}; {taken}{max(each.pss for each in outcomes) / 1e6:,.0f} MB"


def _utilisation(outcomes: Sequence[Outcome]) -> str:
    epochs = [each for outcome in outcomes for each in outcome.utilisation]
    if not epochs:
        return outcomes[0].error
    return f"{statistics.median(epochs):.2f} ({min(epochs):.2f}–{max(epochs):.2f})"


def _by_ranks(environment: Environment, workloads: Sequence[Workload], arguments: argparse.Namespace) -> str:
    loaders = [loader for loader in arguments.loaders if loader in ("torch, fair", "blobfeed.DataLoader", "blobfeed")]
    rows = []
    for workload in workloads:
        step = workload.steps_ms[-1]
        cells = [_most_ranks(environment, workload, loader, step, arguments.epochs) for loader in loaders]
        rows.append([workload.name, f"{step:g} ms", *cells])
    head = ["simulated accelerators at 0.9 or more", "step", *loaders]
    return table(head, rows)


def _most_ranks(environment: Environment, workload: Workload, loader: str, step: float, epochs: int) -> str:
    """Return how many simulated accelerators are kept busy, and the utilisation of each number that was tried."""
    most, said = 0, []
    for ranks in range(1, _MOST_RANKS + 1):
        if workload.files % (workload.samples * workload.batch * ranks):
            continue
        made = run(environment, workload, loader, step, epochs=epochs, ranks=ranks, cold=False)
        _say(f"{workload.name}, {step:g} ms, {loader}, {ranks} accelerators: {_utilisation([made])}")
        if made.error:
            return f"failed: {made.error[:60]}"
        busy = statistics.median(made.utilisation)
        said.append(f"{ranks}: {busy:.2f}")
        if busy < _ENOUGH:
            break
        most = ranks
    return f"{most} ({', '.join(said)})"


def _legend(workloads: Sequence[Workload], loaders: Sequence[str]) -> Iterator[str]:
    yield (
        "Accelerator utilisation: the median epoch, with the least and the greatest in parentheses; processor time of "
        "all processes for a sample; their memory, shared pages counted once."
    )
    yield "\n".join(f"- {loader}: {LOADERS[loader]}." for loader in loaders)
    yield "\n".join(
        f"- {each.name}: {each.total:,} samples of {each.record:,} bytes in {each.files:,} files, batches of "
        f"{each.batch}; {each.about}."
        for each in workloads
    )


if __name__ == "__main__":
    main()
