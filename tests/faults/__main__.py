"""`python -m tests.faults`: injects faults into real pipelines and prints a table of figures, in about half an hour."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from benchmarks.report import machine

from ..support import leftovers
from . import (
    chaos,
    crashes,
    footprint,
    fuzz,
    hostile,
    interleavings,
    interrupts,
    loader_kills,
    recovery,
    remote,
    restarts,
    soak,
    trainer_death,
)
from .figures import Figure, table
from .scale import FULL, QUICK, Scale

Study = Callable[[Scale, Path], Iterator[Figure]]

STUDIES: dict[str, Study] = {
    "chaos": chaos.study,
    "recovery": recovery.study,
    "crashes": crashes.study,
    "data_loader": loader_kills.study,
    "interrupts": interrupts.study,
    "trainer_death": trainer_death.study,
    "restarts": restarts.study,
    "remote": remote.study,
    "memory": footprint.study,
    "hostile": hostile.study,
    "interleavings": interleavings.study,
    "fuzz": fuzz.study,
    "soak": soak.study,
}


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of everything, in about two minutes")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(STUDIES), help=", ".join(STUDIES))
    parser.add_argument("--soak", type=float, metavar="SECONDS", help=f"how long the soak takes; else {FULL.soak_s:g}")
    parser.add_argument("--seed", type=int, default=FULL.seed, help="whom faults strike, and when")
    return parser.parse_args(given)


@contextmanager
def _own_temporary_directory() -> Iterator[Path]:
    """Whatever appears in it is ours; the name is short because sockets' paths have to be."""
    with tempfile.TemporaryDirectory(prefix="bf-") as folder:
        before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), folder
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = None
            os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)


@contextmanager
def _warnings_in(log: Path) -> Iterator[TextIO]:
    """Thousands of loaders die here, each with a warning: standard error goes to `log`, and is given for our own."""
    with os.fdopen(os.dup(2), "w", buffering=1) as ours, log.open("w") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield ours
        finally:
            os.dup2(ours.fileno(), 2)


def _figures_of(name: str, scale: Scale, folder: Path) -> Iterator[Figure]:
    """The study's figures; what ends it before its time is one more that must not be, and the others go on."""
    try:
        yield from STUDIES[name](scale, folder)
    except Exception as error:
        traceback.print_exc()
        yield Figure(name, f"ended by {type(error).__name__}: {error}", 1, 0)


def _run(names: Sequence[str], scale: Scale, folder: Path, progress: TextIO) -> list[Figure]:
    figures = []
    for name in names:
        begun = time.monotonic()
        for figure in _figures_of(name, scale, folder):
            figures.append(figure)
            print(f"{name}: {figure.what}: {figure.value}", file=progress)
        print(f"{name} took {time.monotonic() - begun:.0f} s", file=progress)
    return figures


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    scale = replace(QUICK if arguments.quick else FULL, seed=arguments.seed)
    if arguments.soak is not None:
        scale = replace(scale, soak_s=arguments.soak)
    leftovers.mark_environment()
    log = Path(tempfile.gettempdir(), f"blobfeed_faults_{os.getpid()}.log")
    with _own_temporary_directory() as temporary, tempfile.TemporaryDirectory() as files, _warnings_in(log) as progress:
        del temporary
        figures = _run(arguments.only or list(STUDIES), scale, Path(files), progress)
    print(f"{machine()}\n\n{table(figures)}")
    failed = [figure for figure in figures if not figure.holds]
    if failed:
        print(f"{len(failed)} figures are not what they must be; what the processes said: {log}", file=sys.stderr)
        return 1
    log.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
