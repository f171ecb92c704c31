"""Runs the entrants: each a fresh process, rounds interleaved, so that what else the machine does hits all alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .datasets import data_folder
from .entrants import Entrant
from .job import Figures, Job, Outcome, Result
from .page_cache import drop, fill
from .processes import MARK, end
from .works import Work

_CHECKOUT = Path(__file__).resolve().parent.parent
_NO = subprocess.DEVNULL

Results = dict[tuple[str, str], Result]
"""By name of the work and name of the entrant."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The length of everything. `limit_s`: a run that takes longer is ended and reported as failed.

    `cold`: every run begins with data files that are not in the page cache.
    """

    rounds: int = 3
    seconds: float = 3.0
    warmup_s: float = 2.0
    cold: bool = False
    batches: int = 30
    quick: bool = False
    limit_s: float = 180.0


QUICK = Plan(rounds=1, seconds=0.3, warmup_s=0.1, batches=5, quick=True, limit_s=60.0)


class RunFailed(Exception):
    """A run that gave no figures; the message is the last line that it wrote to stderr."""


@dataclass(frozen=True)
class Program:
    """The program of a run: a module of this package, by which interpreter, with what in its environment."""

    module: str
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


def peers_python() -> str:
    """The interpreter of the peers' environment: BLOBFEED_BENCH_PYTHON, else what --make-peers made, else our own."""
    made = data_folder() / "peers" / "bin" / "python"
    return os.environ.get("BLOBFEED_BENCH_PYTHON") or (str(made) if made.exists() else sys.executable)


def make_peers() -> None:
    """Install the peers into an environment of their own, so that no version of theirs rules one of the project's."""
    folder = data_folder() / "peers"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin" / "pip"), "install", "--quiet"]
    subprocess.run([*install, "-r", str(Path(__file__).with_name("requirements-peers.txt"))], check=True)
    for line in Path(__file__).with_name("requirements-peers-large.txt").read_text().splitlines():
        if not line.startswith("#"):
            subprocess.run([*install, line], check=False)


def run_all(works: Sequence[Work], entrants: Sequence[Entrant], plan: Plan, say: Say) -> Results:
    """Every entrant on every work that it takes, `plan.rounds` times."""
    results: Results = {}
    for work in works:
        samples = work.data.size(plan.quick)
        say(f"{work.title} ({samples} samples)")
        work.data.ensure(samples)
        taking = [entrant for entrant in entrants if entrant.takes(work)]
        for name, outcomes in _rounds(work, taking, samples, plan, say).items():
            results[work.name, name] = Result.of(outcomes)
    return results


def _rounds(work: Work, entrants: Sequence[Entrant], samples: int, plan: Plan, say: Say) -> dict[str, list[Outcome]]:
    outcomes: dict[str, list[Outcome]] = {entrant.name: [] for entrant in entrants}
    for number in range(plan.rounds):
        for entrant in _rotated(entrants, number):
            if any(outcome.reason for outcome in outcomes[entrant.name]):
                continue  # what failed once is not worth its time limit again
            job = Job(entrant.name, work.name, samples, plan.seconds, plan.warmup_s, plan.batches)
            (drop if plan.cold else fill)(work.data.path(samples))
            outcome = run(job, entrant, plan.limit_s)
            outcomes[entrant.name].append(outcome)
            say(f"  round {number + 1}  {entrant.name}: {_in_short(outcome)}")
    return outcomes


def _rotated(entrants: Sequence[Entrant], by: int) -> list[Entrant]:
    """Another one goes first in each round, and every other round goes backwards: each finds the machine as the one
    before left it.
    """
    by %= max(1, len(entrants))
    turned = [*entrants[by:], *entrants[:by]]
    return turned[::-1] if by % 2 else turned


def _in_short(outcome: Outcome) -> str:
    return f"{outcome.figures.samples_per_s:,.0f}/s" if outcome.figures else outcome.reason


def run(job: Job, entrant: Entrant, limit_s: float) -> Outcome:
    """One run of one entrant."""
    python = peers_python() if entrant.peer else sys.executable
    program = Program("benchmarks.run_one", python, entrant.environment)
    try:
        values = run_program(program, asdict(job), limit_s)
    except RunFailed as failure:
        return Outcome(reason=f"failed: {failure}")
    return Outcome(Figures(**values["figures"]) if values["figures"] else None, values["reason"])


def run_program(program: Program, given: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """Return what the program wrote as JSON into the file that is its second argument; the first is `given`.

    It runs in a fresh process, and whatever of it is left over is ended. Raises RunFailed.
    """
    mark = uuid.uuid4().hex
    # Our own environment finds the checkout behind the installed blobfeed, which is what is measured.
    path = {} if program.python == sys.executable else {"PYTHONPATH": str(_CHECKOUT)}
    environment = {**os.environ, **path, **program.environment, MARK: mark}
    with tempfile.TemporaryDirectory(prefix="blobfeed_bench_") as folder:
        report, errors = Path(folder) / "report.json", Path(folder) / "stderr"
        command = [program.python, "-P", "-m", program.module, json.dumps(given), str(report)]
        # Errors go to a file: a pipe would be waited for until the last process of the run, however orphaned, ends.
        with errors.open("wb") as sink:
            process = subprocess.Popen(command, cwd=_CHECKOUT, env=environment, stdin=_NO, stdout=_NO, stderr=sink)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"not done after {limit_s:g} s") from None
        finally:
            process.kill()
            process.wait()
            end(mark)
        if not report.exists():
            raise RunFailed(*errors.read_text(errors="replace").strip().splitlines()[-1:])
        values: dict[str, Any] = json.loads(report.read_text())
        return values
