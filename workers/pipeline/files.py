"""The files that a pipeline writes about itself: where they are, and the beginning and the end of a trace."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from ..base.errors import BlobfeedError, ParameterError
from ..base.files import check_replaceable, in_folder
from ..base.parameters import Parameters
from ..base.source import CacheCounts
from ..plan.plan import Plan
from ..transport.trace_ring import Run, TraceRing, epoch_ns, ring_of
from ..watching.trace_events import finish

_log = logging.getLogger("blobfeed")


def with_files(parameters: Parameters, base_dir: Path) -> Parameters:
    """`parameters` with the whole paths of `trace` and `metrics`; each rank but the first has files of its own.

    Raises ParameterError.
    """
    in_process = parameters.num_loaders == 0 and parameters.remote_loaders is None
    changed = {}
    for name in ("trace", "metrics"):
        given = getattr(parameters, name)
        if given and in_process:
            raise ParameterError(
                f"parameter {name!r} is {given!r} and 'num_loaders' is 0: the assembler and the loaders write it: give "
                "num_loaders: 1 or more"
            )
        if given and isinstance(given, str):
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


def open_trace(plan: Plan) -> TraceRing | None:
    """The file that the spans go into, if a trace is wanted; raises ParameterError."""
    given = plan.parameters
    if not given.trace:
        return None
    run = Run(epoch_ns(), plan.first_number, plan.description)
    return TraceRing.create(Path(given.trace), run, plan.max_loaders + 1)


def finish_trace(plan: Plan, counts: CacheCounts) -> None:
    """Make the trace from what lies in the file; what is wrong there must not hide how the training ended."""
    if not plan.parameters.trace:
        return
    trace = Path(plan.parameters.trace)
    try:
        finish(trace, counts)
    except (OSError, BlobfeedError) as error:
        _log.warning(
            "the trace %s could not be written: %s; make it with: blobfeed trace %s", trace, error, ring_of(trace)
        )
