"""From a trace's ring file to Trace Event JSON, which Perfetto and chrome://tracing open; docs/trace.md names all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..base.errors import BlobfeedError
from ..base.files import write_whole, writing
from ..base.source import CacheCounts
from ..transport.trace_ring import SUFFIX, Kind, Run, Span, read_ring, ring_of

_CATEGORY = {Kind.WAIT: "trainer", Kind.COPY: "trainer", Kind.STEP: "trainer", Kind.FILL: "slot", Kind.FULL: "slot",
             Kind.DEATH: "fault"}  # fmt: skip
_OF_SLOTS = (Kind.FILL, Kind.FULL)
_BASE = "baseTimeNanoseconds"

Trace = dict[str, Any]


def finish(trace: Path, counts: CacheCounts) -> None:
    """Make the trace of its ring file, and remove that. `counts`: of the decoded cache, which no span tells."""
    made = trace_of(*read_ring(ring_of(trace)))
    made["blobfeed"]["cache"] = counts._asdict()
    write_trace(made, trace)
    ring_of(trace).unlink()


def convert(given: Path, target: Path | None, merge: Path | None) -> Path:
    """The trace of a ring file, or of a finished trace, into a file; `merge`: a trace whose events are added.

    Returns the path that was written. Raises BlobfeedError, and OSError if a file cannot be read.
    """
    is_ring = given.name.endswith(SUFFIX)
    made = load(given)
    if target is None:
        if not is_ring:
            raise BlobfeedError(f"{given} is a trace already: say with -o where the merged one shall be written")
        target = given.with_name(given.name.removesuffix(SUFFIX))
    if merge is not None:
        made = merged(made, load(merge))
    with writing(target):
        write_trace(made, target)
    return target


def load(path: Path) -> Trace:
    """A trace from its file, or from the ring file that a killed run has left; raises BlobfeedError."""
    if path.name.endswith(SUFFIX):
        return trace_of(*read_ring(path))
    try:
        loaded = json.loads(path.read_bytes())
    except ValueError as error:
        raise BlobfeedError(f"{path} is a trace that is cut short, or none: {error}") from None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("traceEvents"), list):
        raise BlobfeedError(f"{path} is no trace: expected a JSON object with 'traceEvents'")
    return loaded


def write_trace(trace: Trace, path: Path) -> None:
    """Whole or not at all."""
    write_whole(path, json.dumps(trace, separators=(",", ":")).encode())


def trace_of(run: Run, spans: Iterable[Span]) -> Trace:
    """The events in the order of their beginning, with names for all processes."""
    listed = sorted(spans, key=lambda span: span.begun_ns)
    base_ns = (run.epoch_ns + listed[0].begun_ns if listed else run.epoch_ns) // 10**9 * 10**9
    events = [_event(span, run, base_ns) for span in listed]
    return {
        "traceEvents": [*_names(listed, run), *events],
        "displayTimeUnit": "ms",
        _BASE: base_ns,
        "blobfeed": {"version": 1, **run.about._asdict(), "first_batch": run.first_batch},
    }


def merged(trace: Trace, other: Trace) -> Trace:
    """`other`'s events too, in the time base of `trace`."""
    shift = (other.get(_BASE, 0) - trace.get(_BASE, 0)) / 1000
    moved = [{**event, "ts": event["ts"] + shift} if "ts" in event else event for event in other["traceEvents"]]
    return {**trace, "traceEvents": [*trace["traceEvents"], *moved]}


def _event(span: Span, run: Run, base_ns: int) -> dict[str, object]:
    slot = span.kind in _OF_SLOTS
    event: dict[str, object] = {
        "name": span.kind.name.lower(),
        "cat": _CATEGORY.get(span.kind, "loader"),
        "ph": "i" if span.kind is Kind.DEATH else "X",
        "ts": (run.epoch_ns + span.begun_ns - base_ns) / 1000,
        "pid": 0 if slot else span.pid,
        "tid": span.loader if slot else span.pid,
        "args": _args(span, run, slot),
    }
    return {**event, "s": "g"} if span.kind is Kind.DEATH else {**event, "dur": span.duration_ns / 1000}


def _args(span: Span, run: Run, slot: bool) -> dict[str, int]:
    args = {
        name: value
        for name, value, least in (("task", span.task, 1), ("sample", span.sample, 0), ("rows", span.rows, 1))
        if value >= least
    }
    batches = run.about.batches_per_slot
    if span.kind in (Kind.COPY, Kind.STEP, Kind.WAIT):  # the trainer counts batches
        args["batch"], batches = span.group, args.pop("rows")
    elif span.group >= 0:
        args["batch"] = run.first_batch + span.group * batches
    if slot:
        batches = args.pop("task", batches)
    if batches > 1 and "batch" in args:
        args["batches"] = batches
    if span.loader >= 0:
        args["slot" if slot else "loader"] = span.loader
    return args


def _names(spans: list[Span], run: Run) -> Iterator[dict[str, object]]:
    """Metadata: what each process and each slot is called, in which order they are shown."""
    named = {run.about.trainer: ("trainer", 0)}
    for span in spans:
        if span.kind in (Kind.START, Kind.IDLE) and span.loader >= 0:
            named[span.pid] = (f"loader {span.loader}", 3)
        elif span.kind in (Kind.START, Kind.IDLE, Kind.SAMPLE):
            named[span.pid] = ("sampler", 4)
        elif span.kind in _OF_SLOTS:
            named.setdefault(span.pid, ("assembler", 2))
            named[0] = ("slots of the ring", 1)
    for pid, (name, place) in named.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": pid, "args": {"sort_index": place}}
    for slot in sorted({span.loader for span in spans if span.kind in _OF_SLOTS}):
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": slot, "args": {"name": f"slot {slot}"}}
