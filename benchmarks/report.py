"""The tables, in Markdown: what was measured beside what it is measured against."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .harness import Results
from .job import Result
from .works import Target, Work

_MISSING = Result(reason="not run")
_NOTHING = "–"
_COLUMNS = ("torch", "torch, tuned")
_DEFAULT = "blobfeed"
_IN_PROCESS = "blobfeed, in process"
_LOOPS = ("plain loop", "plain loop, batched")
"""Read in the trainer's own time: nothing overlaps there, so they are limits and no loaders."""
LIMITS = "limit: "
"""Begins the names of those that deliver nothing."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures, but for one of targets."""
    rule = ["---", *("---" if title == "targets" else "---:" for title in head[1:])]
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# ---- figures as text


def rate(value: float | None) -> str:
    """Three digits: more would not come out the same in the next run."""
    if value is None:
        return _NOTHING
    digits = 3 - len(str(int(value)))
    return f"{round(value, digits):,.0f}" if value >= 1 else f"{value:.2g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return _NOTHING
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def megabytes(nbytes: float | None) -> str:
    return _NOTHING if nbytes is None else f"{nbytes / 1e6:.0f} MB"


def times(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


_Format = Callable[[float | None], str]
_FORMATS: dict[str, _Format] = {
    "samples_per_s": lambda value: f"{rate(value)}/s",
    "beside_ring_bytes": megabytes,
    "own_bytes": megabytes,
    "first_second_part": times,
}


def shown(value: float | None, metric: str) -> str:
    return _FORMATS.get(metric, duration)(value) if value is not None else _NOTHING


def ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def best_of(metric: str) -> Callable[..., Any]:
    """`max` for a rate, `min` for time and memory."""
    return max if metric == "samples_per_s" else min


# ---- targets


def achieved(target: Target, work: Work, results: Results) -> float | None:
    """Return the figure of the target: the subject's figure, divided by the best of the others' if there are any."""
    own = results.get((work.name, target.subject), _MISSING).median(target.metric)
    if not target.against:
        return own
    others = [results.get((work.name, other), _MISSING).median(target.metric) for other in target.against]
    return None if None in others else ratio(own, best_of(target.metric)(others))


def met(target: Target, value: float) -> bool:
    enough = target.at_least is None or value >= target.at_least
    return enough and (target.at_most is None or value <= target.at_most)


def verdict(target: Target, work: Work, results: Results) -> str:
    value = achieved(target, work, results)
    if value is None:
        return f"{target.text}: not measured"
    figure = times(value) if target.against else shown(value, target.metric)
    return f"{target.text}: {figure}, {'met' if met(target, value) else '**not met**'}"


# ---- the tables


@dataclass(frozen=True)
class Row:
    """One row of the summary: a work seen by one of its figures."""

    title: str
    work: Work
    metric: str
    limit: str = ""
    target_metrics: tuple[str, ...] = ()

    def targets(self) -> list[Target]:
        return [target for target in self.work.targets if target.metric in self.target_metrics]


_BESIDE = {
    "beside_ring_bytes": ("memory of all processes (PSS)", "own_bytes"),
}
"""Targets that are no matter of speed have a row of their own: its title and the figure that it shows."""


def rows_of(work: Work) -> list[Row]:
    metric = "stall_s" if work.step_s else "samples_per_s"
    asked = [target.metric for target in work.targets]
    speed = tuple(each for each in asked if each not in _BESIDE)
    beside = [Row(f"{title}, {work.title}", work, shown, "", (each,)) for each, (title, shown) in _BESIDE.items()]
    return [
        Row(work.title, work, metric, work.limits[0], speed),
        *(row for row in beside if row.target_metrics[0] in asked),
    ]


def is_peer(name: str) -> bool:
    """Return whether an entrant is another loader, but none of torch's two."""
    return not name.startswith(("blobfeed", LIMITS)) and name not in (*_COLUMNS, *_LOOPS)


def best_other(row: Row, results: Results) -> tuple[str, float] | None:
    """The best of the other loaders but torch's two, by name, with its figure."""
    found: dict[str, float] = {}
    for (work, name), result in results.items():
        value = result.median(row.metric)
        if work == row.work.name and value is not None and is_peer(name):
            found[name] = value
    if not found:
        return None
    name = best_of(row.metric)(found, key=found.__getitem__)
    return name, found[name]


def summary(works: Sequence[Work], results: Results) -> str:
    """One row for each work, as the targets are laid down; bold is the best of the loaders."""
    head = ["work", "torch DataLoader", "tuned", "best other loader", "blobfeed", "num_loaders: 0", "limits", "targets"]
    return table(head, (_summary_cells(row, results) for work in works for row in rows_of(work)))


def _summary_cells(row: Row, results: Results) -> list[str]:
    def figure(name: str) -> float | None:
        return results.get((row.work.name, name), _MISSING).median(row.metric)

    other = best_other(row, results)
    loaders = [*(figure(name) for name in _COLUMNS), other and other[1], figure(_DEFAULT)]
    best = best_of(row.metric)((value for value in loaders if value is not None), default=None)
    texts = [shown(value, row.metric) for value in loaders]
    if other:
        texts[2] = f"{other[0]} {texts[2]}"
    limits = [LIMITS + row.limit] if row.limit else []
    return [
        row.title,
        *(
            f"**{text}**" if value == best and value is not None else text
            for text, value in zip(texts, loaders, strict=True)
        ),
        shown(figure(_IN_PROCESS), row.metric),
        "<br>".join(f"{name.removeprefix(LIMITS)} {shown(figure(name), row.metric)}" for name in (*limits, _LOOPS[1])),
        "<br>".join(verdict(target, row.work, results) for target in row.targets()),
    ]


_DETAILS: tuple[tuple[str, str, _Format], ...] = (
    ("samples/s", "samples_per_s", rate),
    ("stall per batch", "stall_s", duration),
    ("trainer CPU per batch", "trainer_cpu_s", duration),
    ("all CPU per batch", "all_cpu_s", duration),
    ("first batch", "first_batch_s", duration),
    ("first second", "first_second_per_s", rate),
    ("of the rate", "first_second_part", times),
    ("longest wait", "longest_wait_s", duration),
    ("PSS", "own_bytes", megabytes),
    ("of it shared", "shared_bytes", megabytes),
    ("data files mapped", "data_bytes", megabytes),
)


def details(work: Work, results: Results) -> str:
    """All entrants of one work."""
    head = ["entrant", *(title for title, _, _ in _DETAILS), "spread", "× torch", "of the limit"]
    mine = {name: result for (work_name, name), result in results.items() if work_name == work.name}
    torch = mine.get("torch", _MISSING).median("samples_per_s")
    limit = mine.get(f"{LIMITS}{work.limits[0]}", _MISSING).median("samples_per_s")
    rows = (_detail_row(name, result, torch, limit) for name, result in mine.items())
    return f"### {work.title}\n\n{table(head, rows)}"


def _detail_row(name: str, result: Result, torch: float | None, limit: float | None) -> list[str]:
    if not result.rounds:
        return [name, result.reason, *[""] * (len(_DETAILS) + 2)]
    own = result.median("samples_per_s")
    figures = [text(result.median(metric)) for _, metric, text in _DETAILS]
    return [
        f"{name} ({result.reason})" if result.reason else name,
        *figures,
        f"{result.spread('samples_per_s'):.0%}",
        times(ratio(own, torch)),
        times(ratio(own, limit)),
    ]


# ---- where and when


def machine(now: datetime | None = None) -> str:
    """The machine in a line, and the date."""
    date = (now or datetime.now(UTC)).strftime("%Y-%m-%d")
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{_processor()}, {cores} cores, {gigabytes:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}; {date}"
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
