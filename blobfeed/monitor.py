"""`blobfeed monitor`: the state of the pipelines on this machine, as a table that is redrawn, or as JSON."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from glob import iglob
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .workers.base.errors import BlobfeedError
from .workers.base.files import writing
from .workers.plan.plan import usable_cores
from .workers.transport.board_reading import Reading
from .workers.transport.status_board import NAME, Count, Line
from .workers.watching.diagnosis import Blame, diagnose
from .workers.watching.interval import interval

_HISTORY = 60
_WINDOW = 10
"""The number of readings, one each second, on which the live view's figures and sentence are based."""

_BARS = " ▁▂▃▄▅▆▇█"
_COLORS = {Blame.TRAINER: "green", Blame.STUCK: "red", Blame.DEATHS: "red"}
_LONG_S = 2.0
_WIDTH = 110


_LINK = f"/memfd:{NAME} (deleted)"

Key = tuple[int, int]
Readings = deque[Reading]
"""One pipeline's readings at several moments, the newest last."""


class Monitor:
    """Reads all pipelines, or those of the process `pid`: a trainer, an assembler or a loader."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._watched: dict[Key, Readings] = {}

    def look(self) -> list[Readings]:
        now = {key: (reading, pids) for key, reading, pids in read_pipelines()}
        self._watched = {
            key: self._watched.get(key, deque(maxlen=_HISTORY))
            for key, (_, pids) in now.items()
            if key in self._watched or self._pid in (None, *pids)  # a loader may die before its pipeline ends
        }
        for key, readings in self._watched.items():
            readings.append(now[key][0])
        return list(self._watched.values())


def watch(pid: int | None, *, once: bool, as_json: bool, seconds: float, svg: Path | None) -> None:
    """Show the pipelines until Ctrl-C or, with `once` or without a terminal to draw in, for `seconds`.

    Raises BlobfeedError if there is none.
    """
    monitor = Monitor(pid)
    if not (seen := monitor.look()):
        whose = "" if pid is None else f" with process {pid}"
        raise BlobfeedError(
            f"no pipeline{whose} runs here that this user may look at: it begins with the first batch, and ends with "
            "close()"
        )
    if not (once or as_json or svg) and sys.stdout.isatty() and not Console().is_dumb_terminal:
        with Live(view(seen), console=Console(), auto_refresh=False, screen=True) as live:
            while seen:
                time.sleep(1)
                seen = monitor.look()
                live.update(view(seen), refresh=True)
        print("all pipelines have ended")
        return
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(min(1.0, left_s))
        seen = monitor.look()
    if as_json:
        print(json.dumps([as_mapping(readings) for readings in seen], indent=2))
        return
    console = Console(record=svg is not None, width=_WIDTH if svg is not None else None)
    console.print(view(seen))
    if svg is not None:
        # Removes rich's fonts, which a viewer would fetch from the network.
        picture = console.export_svg(title="blobfeed monitor")
        with writing(svg):
            text = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)
            svg.write_text(text, encoding="utf-8")


# ---- under /proc: without a port, and without the pipelines' help


def read_pipelines() -> Iterator[tuple[Key, Reading, list[int]]]:
    """Yield each status board that this user may read once, with a constant key and the processes that have it.

    Skips boards of another version, and of a pipeline whose trainer or assembler has ended.
    """
    holders: defaultdict[Key, dict[int, Path]] = defaultdict(dict)
    for descriptor in map(Path, iglob("/proc/[0-9]*/fd/*")):
        with suppress(OSError):  # its process may end meanwhile, or belong to another user
            if str(descriptor.readlink()) == _LINK:
                about, pid = descriptor.stat(), descriptor.parts[2]
                # A board has the numbers that processes have in their own PID namespace, such as a container's.
                within = re.findall(r"^NSpid:.*\s(\d+)$", Path("/proc", pid, "status").read_text(), re.MULTILINE)
                holders[about.st_dev, about.st_ino][int([pid, *within][-1])] = descriptor
    for key, held in holders.items():
        with suppress(OSError):
            reading = Reading.of(next(iter(held.values())).read_bytes(), time.monotonic_ns())
            # Without loaders there is no assembler.
            if reading and reading.header.trainer in held and (reading.in_process or reading.header.assembler in held):
                yield key, reading, [int(each.parts[2]) for each in held.values()]


# ---- for programs


def as_mapping(readings: Readings) -> dict[str, Any]:
    """Return the shown values for programs. Times are in seconds, memory in bytes."""
    now, cores = readings[-1], usable_cores()
    before = readings[max(0, len(readings) - 1 - _WINDOW)] if len(readings) > 1 else None
    recent, whole = interval(now, before), interval(now)
    counts = {
        count.name.lower(): now.header.counts[count] for count in Count if not count.name.endswith(("_NS", "SINCE"))
    }
    return {
        "trainer": now.header.trainer,
        "assembler": now.header.assembler,
        "source": now.header.about.source,
        "seconds": (now.now_ns - now.header.begun_ns) / 1e9,
        **counts,
        "slots": now.header.slots,
        "batches_per_slot": now.header.batches_per_slot,
        "batches_per_s": recent.batches / max(recent.seconds, 1e-9),
        "samples_per_s": recent.samples / max(recent.seconds, 1e-9),
        "stall_share": recent.stall_share,
        "stall_share_since_start": whole.stall_share,
        "stall_history": [interval(later, earlier).stall_share for earlier, later in pairwise(readings)],
        "diagnosis": asdict(diagnose(recent, cores)),
        "diagnosis_since_start": asdict(diagnose(whole, cores)),
        "last_death": now.header.last_death,
        "in_process": now.in_process,
        "cache": now.cache_counts._asdict(),
        "loader_states": [_loader(line, now, before or now) for line in now.running],
    }


def _loader(line: Line, now: Reading, before: Reading) -> dict[str, Any]:
    state = line.state
    earlier = next((other for other in before.lines if other.number == line.number), line)
    cpu_ns = line.cpu_ns - earlier.cpu_ns
    return {
        "loader": state.loader,
        "pid": state.pid,
        "activity": state.activity.name.lower(),
        "sample": state.sample,
        "where": line.place.of(state.sample),
        "seconds": max(0.0, now.now_ns / 1e9 - state.since),
        "node": line.node,
        "cpu": cpu_ns / max(1, now.now_ns - before.now_ns),
        "resident": line.resident,
    }


# ---- for people


def view(shown: list[Readings]) -> RenderableType:
    return Group(*(_panel(as_mapping(readings)) for readings in shown)) if shown else Text("no pipeline runs")


def _panel(shown: dict[str, Any]) -> Panel:
    """Draw one pipeline from the values of `as_mapping`."""
    found, whole = shown["diagnosis"], shown["diagnosis_since_start"]
    sentences = [Text(found["sentence"], f"bold {_COLORS.get(found['blame'], 'yellow')}")]
    if whole["blame"] != found["blame"]:
        sentences.append(Text(f"since the start: {whole['sentence']}", "dim"))
    facts = Table.grid(padding=(0, 2))
    at_once = shown["batches_per_slot"]
    counted = f", counted {at_once} at a time" if at_once > 1 else ""
    facts.add_row("batches", f"{shown['batches']:,}{counted}", f"{shown['batches_per_s']:,.1f}/s")
    facts.add_row("samples", f"{shown['samples']:,}", f"{shown['samples_per_s']:,.0f}/s")
    stall = Text(sparkline(shown["stall_history"]), "yellow")
    facts.add_row("making them" if shown["in_process"] else "stall", f"{shown['stall_share']:.1%} of the time", stall)
    if not shown["in_process"]:
        full, filling = shown["slots_full"], shown["slots_filling"]
        empty = max(0, shown["slots"] - full - filling)
        marks = Text.assemble(("■" * full, "green"), ("▣" * filling, "yellow"), ("□" * empty, "dim"))
        facts.add_row("slots", f"{full} full, {filling} being filled, {empty} empty", marks)
    faults = f"{shown['loader_deaths']} deaths, {shown['replaced']} bad samples replaced"
    facts.add_row("faults", Text(faults, "red" if shown["loader_deaths"] else ""), "")
    if any(shown["cache"].values()):
        facts.add_row(
            "cache", "{hits:,} samples found, {misses:,} not, {damaged:,} damaged".format(**shown["cache"]), ""
        )
    if nodes := Counter(loader["node"] for loader in shown["loader_states"] if loader["node"]):
        facts.add_row("remote", ", ".join(f"{count} on {node}" for node, count in sorted(nodes.items())), "")
    title = Text(f"{shown['source']}, trainer {shown['trainer']}")
    loaders = () if shown["in_process"] else ("", _loaders(shown["loader_states"]))
    return Panel(Group(*sentences, "", facts, *loaders), title=title)


def _loaders(loaders: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("loader", "process", "does", "sample", "for", "CPU", "memory"):
        table.add_column(name, justify="left" if name == "does" else "right")
    table.add_column("where", no_wrap=True, overflow="ellipsis")
    for loader in loaders:
        node, is_long = loader["node"], loader["seconds"] > _LONG_S and loader["activity"] != "waiting"
        table.add_row(
            str(loader["loader"]),
            str(loader["pid"]),
            loader["activity"],
            str(loader["sample"]) if loader["sample"] >= 0 else "",
            Text(f"{loader['seconds']:.1f} s", "red" if is_long else ""),
            "" if node else f"{loader['cpu']:.0%}",
            "" if node else f"{loader['resident'] / 2**20:,.0f} MiB",
            Text(f"on {node}" if node else loader["where"]),
        )
    return table


def sparkline(shares: list[float]) -> str:
    """Return one character for each share, 0 to 1."""
    return "".join(_BARS[round(min(1.0, max(0.0, share)) * (len(_BARS) - 1))] for share in shares)
