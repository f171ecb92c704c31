"""The files that a pipeline writes about itself: where they are, and the beginning of a trace."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...watching import TraceFile
from ..api import Parameters
from ..base import ParameterError, check_replaceable, in_folder
from ..plan import Plan, usable_cores


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


def open_trace(plan: Plan) -> TraceFile | None:
    """The file that all processes append to, if a trace is wanted; raises ParameterError."""
    given = plan.parameters
    if not given.trace:
        return None
    return TraceFile.create(Path(given.trace), plan.description, given.batch_size, usable_cores())
