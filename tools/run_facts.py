"""From traces and logs to the numbers of `blobfeed report`. Pure, but for reading the files."""

from __future__ import annotations

import csv
import heapq
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..watching import Interval, SlowSample, diagnose
from ..workers.base import ParameterError
from ..workers.plan import usable_cores
from ..workers.transport import Activity

Series = NDArray[np.float64]

_BINS = 120
_BATCHES_IN_A_BIN = 4
_SLOWEST = 8
_LOADER_WORK = ("read", "decode", "postprocess")
_LOG_LINE = re.compile(r"[Ii]teration (\d+)(?:/\d+)?(?: \([^)]*\))?[:,] *loss *=? *([-+]?(?:nan|inf|\d[-+\d.eE]*))")
"""Lines of `blobfeed train` ("iteration 10/30: loss 0.5, …") and of Caffe ("Iteration 10 (…), loss = 0.5")."""


@dataclass(frozen=True)
class Death:
    """`at_s` counts from the start of the trace."""

    at_s: float
    loader: int
    sample: int | None


@dataclass(frozen=True)
class RunFacts:
    """The facts of a trace. All series have one value for each of `times_s`, the middles of equal parts of the run.

    throughput: samples/s. stall: share of the time that the trainer waited. loaders: by number, the share of the time
    that each worked. batch_ms: milliseconds of a batch in the trainer, and of a batch's work in all loaders.
    sample_ms: milliseconds of the slowest sample of each task, and the mean of its others, with how many samples each
    counts for; slowest: the samples that took longest, with their milliseconds.
    """

    batches: int
    samples: int
    seconds: float
    times_s: Series
    throughput: Series
    stall: Series
    loaders: Mapping[int, Series]
    batch_ms: Mapping[str, Mapping[str, float]]
    sample_ms: Series
    sample_counts: Series
    slowest: Sequence[tuple[int, float]]
    deaths: Sequence[Death]
    cache: Mapping[str, int]
    """Samples of the decoded cache: hits, misses, damaged."""
    diagnosis: str
    """The sentence of the monitor over the whole run."""


def run_facts(trace: Mapping[str, Any]) -> RunFacts:
    """The facts of a trace (docs/watching.md); raises ParameterError if it has no batch."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("trainer", "loader", "fault")]
    events = [event for event in events if event.keys() >= {"ph", "ts", "name"}]  # others may be merged into it
    spans = [event for event in events if event["ph"] == "X" and "dur" in event]
    copies = [span for span in spans if span["name"] == "copy"]
    if not copies:
        raise ParameterError("the trace holds no batch that was delivered: was it written by `trace: FILE`?")
    begin = min(event["ts"] for event in events)
    end = max(event["ts"] + event.get("dur", 0) for event in events)
    edges = np.linspace(begin, end, min(_BINS, max(4, len(copies) // _BATCHES_IN_A_BIN)) + 1)
    width_s = float(edges[1] - edges[0]) / 1e6
    batches = [copy.get("args", {}).get("batches", 1) for copy in copies]
    delivered, _ = np.histogram([copy["ts"] + copy["dur"] for copy in copies], edges, weights=batches)
    tasks = [span for span in spans if span["name"] == "task" and "loader" in span.get("args", {})]
    working = defaultdict(list)
    for task in tasks:
        working[task["args"]["loader"]].append(task)
    made = _samples([task["args"] for task in tasks])
    deaths = [
        Death((event["ts"] - begin) / 1e6, event["args"].get("loader", -1), event["args"].get("sample"))
        for event in events
        if event["name"] == "death"
    ]
    about: Mapping[str, Any] = next(
        (event.get("args", {}) for event in trace["traceEvents"] if event.get("name") == "blobfeed"), {}
    )
    batch_size = about.get("batch_size", 1)
    return RunFacts(
        batches=sum(batches),
        samples=sum(batches) * batch_size,
        seconds=(end - begin) / 1e6,
        times_s=((edges[1:] + edges[:-1]) / 2 - begin) / 1e6,
        throughput=delivered * batch_size / width_s,
        stall=covered((span for span in spans if span["name"] == "wait"), edges),
        loaders={loader: covered(working[loader], edges) for loader in sorted(working)},
        batch_ms=_batch_ms(spans, tasks, batches),
        **made,
        cache=next((event.get("args", {}) for event in trace["traceEvents"] if event.get("name") == "cache"), {}),
        deaths=deaths,
        diagnosis=_diagnosis(spans, tasks, made, deaths, about),
    )


def _diagnosis(
    spans: Sequence[Mapping[str, Any]],
    tasks: Sequence[Mapping[str, Any]],
    made: Mapping[str, Any],
    deaths: Sequence[Death],
    about: Mapping[str, Any],
) -> str:
    """Return what the monitor would say of the run from its first batch on; a trace knows no times of processors."""
    first = min(span["ts"] + span["dur"] for span in spans if span["name"] == "copy")
    seconds = (max(span["ts"] + span["dur"] for span in spans) - first) / 1e6
    waits = [span["dur"] / 1e6 for span in spans if span["name"] == "wait" and span["ts"] >= first]
    loaders = len({task["args"]["loader"] for task in tasks}) - len(deaths)
    work = [sum(task["args"].get(name, 0.0) for task in tasks) / 1e3 for name in _LOADER_WORK]
    spent = dict(zip((Activity.READING, Activity.DECODING, Activity.POSTPROCESSING), work, strict=True))
    spent[Activity.WAITING] = max(0.0, loaders * seconds - sum(task["dur"] for task in tasks) / 1e6)
    index, slowest_ms = next(iter(made["slowest"]), (-1, 0.0))
    seen = Interval(
        seconds=seconds,
        batches=0,
        samples=0,
        stall_s=sum(waits),
        waiting_s=0.0,
        begun=True,
        loaders=max(1, loaders),
        slots=0,
        slots_full=0,
        deaths=len(deaths),
        last_death=f"loader {deaths[-1].loader}" if deaths else "",
        spent_s=tuple(spent.get(each, 0.0) for each in Activity),
        measured_s=0.0,
        cpu_s=0.0,
        delay_s=0.0,
        median_s=float(np.median(made["sample_ms"])) / 1e3 if made["sample_ms"].size else 0.0,
        slowest=SlowSample(slowest_ms / 1e3, index, 1, "") if index >= 0 else None,
        present=None,
        in_process=not tasks,
    )
    return diagnose(seen, about.get("cores") or usable_cores()).sentence


def covered(spans: Iterable[Mapping[str, Any]], edges: Series) -> Series:
    """The share of each part between two `edges` that lies within one of `spans`, which do not overlap."""
    begin, edges = edges[0], edges - edges[0]  # sums of times since 1970 would overflow, or be inexact as floats
    moments = ((span["ts"] - begin, span["ts"] + span["dur"] - begin) for span in spans)
    begins, ends = np.array(list(moments), np.float64).reshape(-1, 2).T

    def passed(times: Series) -> Series:
        """The time that has passed at each edge since each of `times` before it, summed."""
        ordered = np.sort(times)
        before = np.searchsorted(ordered, edges)
        return np.asarray(edges * before - np.concatenate([[0.0], np.cumsum(ordered)])[before])

    return np.clip(np.diff(passed(begins) - passed(ends)) / np.diff(edges), 0, 1)


def _batch_ms(
    spans: Sequence[Mapping[str, Any]], tasks: Sequence[Mapping[str, Any]], in_slots: Sequence[int]
) -> dict[str, dict[str, float]]:
    """`in_slots`: how many batches came with each copy."""
    total: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        total[span["name"]] += span["dur"] / 1000
    batches = sum(in_slots)
    # Only a slot's first copy is noted; the step that follows holds the others.
    others = total["copy"] * (batches / len(in_slots) - 1)
    total["copy"] += others
    total["step"] = max(0, total["step"] - others)
    work = {name: sum(task["args"].get(name, 0.0) for task in tasks) / batches for name in _LOADER_WORK}
    work["other"] = max(0.0, total["task"] / batches - sum(work.values()))
    return {"trainer": {name: total[name] / batches for name in ("wait", "copy", "step")}, "loaders": work}


def _samples(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The times of samples, from the `args` of tasks."""
    times: list[tuple[float, int]] = []
    worst: dict[int, float] = defaultdict(float)
    for task in tasks:
        rows, slowest_ms = task.get("rows", 0), task.get("slowest_ms")
        made_ms = task.get("read", 0.0) + task.get("decode", 0.0)
        if slowest_ms is not None:
            times.append((slowest_ms, 1))
            rows, made_ms = rows - 1, max(0.0, made_ms - slowest_ms)
            worst[task["slowest"]] = max(slowest_ms, worst[task["slowest"]])
        if rows > 0:
            times.append((made_ms / rows, rows))
    return {
        "sample_ms": np.array([ms for ms, _ in times]),
        "sample_counts": np.array([rows for _, rows in times], np.float64),
        "slowest": heapq.nlargest(_SLOWEST, worst.items(), key=itemgetter(1)),
    }


# ---- logs


def read_losses(path: Path) -> dict[str, tuple[Series, Series]]:
    """Iterations and losses of a run's log, by net ("train", "test 0"): JSON lines, CSV, or the lines of a training.

    The objective counts, `total loss`, if a row has both that and an output called `loss`.

    Raises ParameterError if it holds none, or something else in their place.
    """
    text = path.read_text(errors="replace")
    rows: Iterable[Mapping[str, Any]] = ()
    if text.lstrip().startswith("{"):
        rows = (json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}"))
    elif {"loss", "total loss"} & set(text.partition("\n")[0].split(",")):
        # A row that lacks columns was cut, and so may its last number be.
        rows = (row for row in csv.DictReader(text.splitlines()) if None not in row.values())
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    try:
        for row in rows:
            loss = next((row[name] for name in ("total loss", "loss") if row.get(name) not in (None, "")), None)
            if row.get("iteration") not in (None, "") and loss is not None:
                found[row.get("net") or "train"].append((float(row["iteration"]), float(loss)))
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{path}: {error}; expected numbers as 'iteration' and 'loss'") from None
    if not found:
        found["train"] = [(float(number), float(loss)) for number, loss in _LOG_LINE.findall(text)]
    if not any(found.values()):
        raise ParameterError(
            f"{path} holds no losses: expected JSON lines or CSV with 'iteration' and 'loss', or a log"
        )
    return {net: (np.array(curve)[:, 0], np.array(curve)[:, 1]) for net, curve in found.items()}
