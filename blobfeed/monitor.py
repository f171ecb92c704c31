"""`blobfeed monitor`: what the pipelines on this machine are doing, as a table that is drawn anew, or as JSON."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .workers.base.errors import BlobfeedError
from .workers.base.usage import Usage, usage_of
from .workers.plan.plan import usable_cores
from .workers.transport.board_reading import LoaderLine, Reading
from .workers.transport.status_board import Activity, Count
from .workers.watching.diagnosis import Blame, diagnose
from .workers.watching.interval import Interval, interval
from .workers.watching.running import RunningPipeline, find_pipelines, is_running

_HISTORY = 60
_WINDOW = 10
"""Readings that the live view's figures and its sentence are about; one each second."""

_BARS = " ▁▂▃▄▅▆▇█"
_COLORS = {Blame.TRAINER: "green", Blame.STUCK: "red", Blame.DEATHS: "red"}
_LONG_S = 2.0
_WIDTH = 110


@dataclass
class Watched:
    """One pipeline as it was at some moments, the last of them now."""

    pipeline: RunningPipeline
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    usages: deque[dict[int, Usage]] = field(default_factory=lambda: deque(maxlen=2))

    def look(self) -> bool:
        """Take a reading; False if the pipeline has ended."""
        reading = self.pipeline.read()
        if reading is None or not is_running(reading):
            return False
        self.readings.append(reading)
        pids = [line.state.pid for line in reading.running if not line.node]
        self.usages.append({pid: usage for pid in pids if (usage := usage_of(pid)) is not None})
        return True

    @property
    def now(self) -> Reading:
        return self.readings[-1]

    @property
    def recent(self) -> Interval:
        """The last seconds, or all that is known."""
        before = self.readings[max(0, len(self.readings) - 1 - _WINDOW)]
        return interval(self.now, before if before is not self.now else None)

    @property
    def stall_shares(self) -> list[float]:
        return [interval(now, before).stall_share for before, now in pairwise(self.readings)]

    def cpu_share(self, line: LoaderLine) -> float:
        """Of one core, between the last two readings."""
        pid = line.state.pid
        if len(self.readings) < 2 or any(pid not in usages for usages in self.usages):
            return 0.0
        before, now = (usages[pid].cpu_ns for usages in self.usages)
        return (now - before) / max(1, self.now.now_ns - self.readings[-2].now_ns)


class Monitor:
    """All pipelines, or those of the process `pid`: its trainer, its assembler or a loader."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self.watched: dict[tuple[int, int], Watched] = {}

    def look(self) -> None:
        for key, pipeline in find_pipelines(set(self.watched)):
            self.watched[key] = Watched(pipeline)
        for key, watched in list(self.watched.items()):
            if not watched.look():
                watched.pipeline.close()
                del self.watched[key]

    @property
    def shown(self) -> list[Watched]:
        return [watched for watched in self.watched.values() if self._pid in (None, *_pids(watched.now))]

    def close(self) -> None:
        for watched in self.watched.values():
            watched.pipeline.close()


def watch(pid: int | None, *, once: bool, as_json: bool, seconds: float, svg: Path | None) -> None:
    """Show what runs, until Ctrl-C or, with `once`, after `seconds`. Raises BlobfeedError if there is nothing."""
    monitor = Monitor(pid)
    try:
        monitor.look()
        if not monitor.shown:
            whose = "" if pid is None else f" with process {pid}"
            raise BlobfeedError(
                f"no pipeline{whose} runs here that this user may look at: it begins with the first batch, and ends "
                "with close()"
            )
        if not (once or as_json or svg):
            _show(monitor)
            return
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(1.0, left_s))
            monitor.look()
        if as_json:
            print(json.dumps([as_mapping(watched) for watched in monitor.shown], indent=2))
            return
        console = Console(record=svg is not None, width=_WIDTH if svg is not None else None)
        console.print(view(monitor.shown))
        if svg is not None:
            # Without the fonts that rich would have a viewer fetch from the network.
            picture = console.export_svg(title="blobfeed monitor")
            svg.write_text(re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL))
    finally:
        monitor.close()


def _show(monitor: Monitor) -> None:
    with Live(view(monitor.shown), console=Console(), auto_refresh=False, screen=True) as live:
        while monitor.shown:
            time.sleep(1)
            monitor.look()
            live.update(view(monitor.shown), refresh=True)
    print("all pipelines have ended")


def as_mapping(watched: Watched) -> dict[str, Any]:
    """What the table shows, and more, for programs. Times in seconds, memory in bytes."""
    now, recent = watched.now, watched.recent
    whole = interval(now)
    cores = usable_cores()
    counts = {count.name.lower(): now.counts[count] for count in Count if not count.name.endswith(("_NS", "SINCE"))}
    return {
        "trainer": now.about.trainer,
        "assembler": now.assembler,
        "source": now.about.source,
        "batch_size": now.about.batch_size,
        "seconds": (now.now_ns - now.begun_ns) / 1e9,
        **counts,
        "slots": now.about.slots,
        "batches_per_s": _rate(recent.batches, recent),
        "samples_per_s": _rate(recent.samples, recent),
        "stall_share": recent.stall_share,
        "stall_share_since_start": whole.stall_share,
        "diagnosis": asdict(diagnose(recent, cores)),
        "diagnosis_since_start": asdict(diagnose(whole, cores)),
        "last_death": now.last_death,
        "in_process": now.in_process,
        "cache": now.cache_counts._asdict(),
        "loader_states": [
            {
                "loader": line.state.loader,
                "pid": line.state.pid,
                "activity": line.state.activity.name.lower(),
                "sample": line.state.sample,
                "where": line.where,
                "seconds": _age_s(line, now),
                "node": line.node,
                "cpu": watched.cpu_share(line),
                "resident": line.resident,
            }
            for line in now.running
        ],
    }


# ---- for people


def view(shown: list[Watched]) -> RenderableType:
    return Group(*map(_panel, shown)) if shown else Text("no pipeline runs")


def _panel(watched: Watched) -> Panel:
    now, recent = watched.now, watched.recent
    found, whole = diagnose(recent, usable_cores()), diagnose(interval(now), usable_cores())
    sentences = [Text(found.sentence, f"bold {_COLORS.get(found.blame, 'yellow')}")]
    if whole.blame is not found.blame:
        sentences.append(Text(f"since the start: {whole.sentence}", "dim"))
    counts = now.counts
    filling = counts[Count.SLOTS_FILLING]
    empty = max(0, now.about.slots - recent.slots_full - filling)
    facts = Table.grid(padding=(0, 2))
    facts.add_row("batches", f"{counts[Count.BATCHES]:,}", f"{_rate(recent.batches, recent):,.1f}/s")
    facts.add_row("samples", f"{counts[Count.SAMPLES]:,}", f"{_rate(recent.samples, recent):,.0f}/s")
    stall = Text(sparkline(watched.stall_shares), "yellow")
    facts.add_row("making them" if now.in_process else "stall", f"{recent.stall_share:.1%} of the time", stall)
    if not now.in_process:
        full = recent.slots_full
        facts.add_row("slots", f"{full} full, {filling} being filled, {empty} empty", _slots(recent, filling, empty))
    faults = f"{counts[Count.LOADER_DEATHS]} deaths, {counts[Count.REPLACED]} bad samples replaced"
    facts.add_row("faults", Text(faults, "red" if counts[Count.LOADER_DEATHS] else ""), "")
    if any(now.cache_counts):
        hits, misses, damaged = now.cache_counts
        facts.add_row("cache", f"{hits:,} samples found, {misses:,} not, {damaged:,} damaged", "")
    if nodes := Counter(line.node for line in now.running if line.node):
        facts.add_row("remote", ", ".join(f"{count} on {node}" for node, count in sorted(nodes.items())), "")
    title = f"{now.about.source}, batches of {now.about.batch_size}, trainer {now.about.trainer}"
    loaders = () if now.in_process else ("", _loaders(watched))
    return Panel(Group(*sentences, "", facts, *loaders), title=title)


def _loaders(watched: Watched) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("loader", "process", "does", "sample", "for", "CPU", "memory"):
        table.add_column(name, justify="left" if name == "does" else "right")
    table.add_column("where", no_wrap=True, overflow="ellipsis")
    for line in watched.now.running:
        state, age_s = line.state, _age_s(line, watched.now)
        table.add_row(
            str(state.loader),
            str(state.pid),
            state.activity.name.lower(),
            str(state.sample) if state.sample >= 0 else "",
            Text(f"{age_s:.1f} s", "red" if age_s > _LONG_S and state.activity is not Activity.WAITING else ""),
            "" if line.node else f"{watched.cpu_share(line):.0%}",
            "" if line.node else f"{line.resident / 2**20:,.0f} MiB",
            f"on {line.node}" if line.node else line.where,
        )
    return table


def sparkline(shares: list[float]) -> str:
    """One character for each share, 0 to 1."""
    return "".join(_BARS[round(min(1.0, max(0.0, share)) * (len(_BARS) - 1))] for share in shares)


def _slots(recent: Interval, filling: int, empty: int) -> Text:
    if recent.slots > 60:
        return Text("")
    return Text.assemble(("■" * recent.slots_full, "green"), ("▣" * filling, "yellow"), ("□" * empty, "dim"))


def _rate(number: int, over: Interval) -> float:
    return number / over.seconds if over.seconds else 0.0


def _age_s(line: LoaderLine, now: Reading) -> float:
    return max(0.0, now.now_ns / 1e9 - line.state.since)


def _pids(reading: Reading) -> tuple[int, ...]:
    return reading.about.trainer, reading.assembler, *(line.state.pid for line in reading.running if not line.node)
