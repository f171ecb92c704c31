"""The watch of a run, behind the heart's seam: the diagnosis, and the files of metrics and traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..workers.api import Parameters
from ..workers.base import ParameterError, check_replaceable, in_folder
from ..workers.plan import usable_cores
from ..workers.processes import Watch
from ..workers.transport import About, StatusBoard
from .diagnosis import diagnose
from .intervals import interval
from .metrics import MetricsFile, openmetrics
from .reading import read_board
from .trace import TraceFile, TrainerTrace


def with_files(parameters: Parameters, base_dir: Path) -> Parameters:
    """`parameters` with the whole paths of `trace` and `metrics`; each rank but the first has files of its own.

    Raises ParameterError.
    """
    changed = {}
    for name in ("trace", "metrics"):
        given = getattr(parameters, name)
        if not given:
            continue
        if not parameters.has_loaders:
            raise ParameterError(
                f"parameter {name!r} is {given!r} and 'num_loaders' is 0: the assembler and the loaders write it: give "
                "num_loaders: 1 or more"
            )
        changed[name] = _whole(name, given, parameters.rank, base_dir)
    return msgspec.structs.replace(parameters, **changed) if changed else parameters


def _whole(name: str, path: str, rank: int | None, base_dir: Path) -> str:
    found = in_folder(base_dir, path)
    if not found.parent.is_dir():
        raise ParameterError(f"parameter {name!r} is {path!r}: there is no folder {found.parent}: make it first")
    if rank:
        found = found.with_name(f"{found.stem}.rank{rank}{found.suffix}")
    try:
        check_replaceable(found)
    except OSError as error:
        raise ParameterError(
            f"parameter {name!r} is {path!r}: {found} cannot be written: {error.strerror}: name a file"
        ) from None
    return str(found)


@dataclass(frozen=True)
class Watching(Watch):
    """The watch of a run; the paths of its files are whole, or None for none."""

    trace_path: str | None
    metrics_path: str | None
    rank: int

    def sentence(self, board: StatusBoard) -> str:
        return diagnose(interval(read_board(board)), usable_cores()).sentence

    def begin_trace(self, about: About, batch_size: int) -> TraceFile | None:
        if not self.trace_path:
            return None
        return TraceFile.create(Path(self.trace_path), about, batch_size, usable_cores())

    def trace(self, descriptor: int) -> TraceFile:
        return TraceFile(descriptor)

    def steps(self) -> TrainerTrace | None:
        return TrainerTrace() if self.trace_path else None

    def metrics(self) -> Callable[[StatusBoard], None] | None:
        if not self.metrics_path:
            return None
        file, rank = MetricsFile(Path(self.metrics_path)), self.rank
        return lambda board: file.write(openmetrics(read_board(board), usable_cores(), rank))
