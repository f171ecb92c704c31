"""`python -m benchmarks`: runs the entrants side by side and prints the tables. `--help` says what can be chosen."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from .entrants import ENTRANTS, Entrant
from .harness import QUICK, Plan, Results, make_peers, run_all
from .report import details, machine, summary
from .works import WORKS, Work

_ABOUT = (
    "[docs/benchmarks.md](../docs/benchmarks.md) says how it is measured, and why some targets are missed. In the "
    "first table bold marks the best loader of each row."
)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and a moment each: does everything run?")
    parser.add_argument("--work", nargs="+", metavar="NAME", choices=[work.name for work in WORKS], help="only these")
    parser.add_argument("--entrants", nargs="+", metavar="NAME", help="only those whose names begin so")
    parser.add_argument("--rounds", type=int, help="how often each entrant runs on each work")
    parser.add_argument("--seconds", type=float, help="how long each run is measured")
    parser.add_argument("--cold", action="store_true", help="each run begins with files that are not in memory")
    parser.add_argument("--output", type=Path, help="write the tables to this file too")
    parser.add_argument("--json", type=Path, help="write every round's figures to this file")
    parser.add_argument("--make-peers", action="store_true", help="install the peers, and end")
    return parser.parse_args(given)


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = QUICK if arguments.quick else Plan()
    chosen = {name: getattr(arguments, name) for name in ("rounds", "seconds") if getattr(arguments, name)}
    return replace(plan, cold=arguments.cold, **chosen)


def _entrants(prefixes: Sequence[str] | None) -> list[Entrant]:
    return [entrant for entrant in ENTRANTS if not prefixes or entrant.name.startswith(tuple(prefixes))]


def _works(names: Sequence[str] | None) -> list[Work]:
    return [work for work in WORKS if not names or work.name in names]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _as_json(results: Results) -> str:
    rounds = [
        {"work": work, "entrant": entrant, "reason": result.reason, "rounds": [asdict(each) for each in result.rounds]}
        for (work, entrant), result in results.items()
    ]
    return json.dumps({"machine": machine(), "results": rounds}, indent=1)


def main(given: Sequence[str] | None = None) -> None:
    arguments = _arguments(given)
    if arguments.make_peers:
        make_peers()
        return
    plan, works = _plan(arguments), _works(arguments.work)
    results = run_all(works, _entrants(arguments.entrants), plan, _say)
    parts = [machine(), summary(works, results), *(details(work, results) for work in works)]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if arguments.output:
        command = shlex.join(["python", "-m", "benchmarks", *(sys.argv[1:] if given is None else given)])
        arguments.output.write_text(f"# Figures\n\nMade by `{command}`. {_ABOUT}\n\n{text}")
    if arguments.json:
        arguments.json.write_text(_as_json(results))


if __name__ == "__main__":
    main()
