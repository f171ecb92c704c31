"""`blobfeed monitor`: the state of the pipelines on this machine, as a table that is redrawn, or as JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import termios
import time
import tty
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from glob import iglob
from itertools import pairwise
from pathlib import Path
from select import select
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .tools.written import writing
from .watching import Blame, diagnose, interval
from .watching.reading import Reading
from .workers.base import BlobfeedError
from .workers.plan import usable_cores
from .workers.transport import NAME, Count, Line

_HISTORY = 60
_WINDOW = 10
"""The number of readings, one each second, on which the live view's figures and sentence are based."""

_BARS = " ▁▂▃▄▅▆▇█"
_COLORS = {Blame.TRAINER: "green", Blame.STUCK: "red", Blame.DEATHS: "red"}
_LONG_S = 2.0
_WIDTH = 110
_FACTS = 52
"""Columns of the facts' names and numbers; what is left beside them has the picture of the stall and of the slots."""
_CELLS = ("loader", "process", "does", "sample", "for", "CPU", "memory")
_SPARED = ("memory", "CPU", "process", "for")
"""The columns that narrow terminals do without, the first one first."""
_WHERE = 16
"""The least columns for the place of a sample, which is folded."""

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
    """Show the pipelines until `q` or Ctrl-C or, with `once` or without a terminal to draw in, for `seconds`.

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
        if _follow(monitor, seen):
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
    console.print(view(seen, console.width))
    if svg is not None:
        # Removes rich's fonts, which a viewer would fetch from the network.
        picture = console.export_svg(title="blobfeed monitor")
        with writing(svg):
            text = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)
            svg.write_text(text, encoding="utf-8")


def _follow(monitor: Monitor, seen: list[Readings]) -> bool:
    """Redraw the pipelines each second; returns true when all have ended, false after `q` or Ctrl-C."""
    console = Console()
    has_keys = sys.stdin.isatty()
    way = Text(f"{'q or ' * has_keys}Ctrl-C leaves; the pipelines go on", "dim")  # on top: a long view is cut below
    live = Live(console=console, auto_refresh=False, screen=True)
    with suppress(KeyboardInterrupt), live, _unbuffered_keys() if has_keys else nullcontext():
        while seen:
            live.update(Group(way, view(seen, console.width)), refresh=True)
            if not has_keys:
                time.sleep(1)
            elif select([sys.stdin], [], [], 1)[0] and os.read(sys.stdin.fileno(), 64) in (b"q", b"Q", b""):
                return False
            seen = monitor.look()
        return True
    return False


@contextmanager
def _unbuffered_keys() -> Iterator[None]:
    """Let the terminal hand over each key at once and without an echo; Ctrl-C stays a signal."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


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
        "program": now.header.about.program,
        "source": now.header.about.source,
        "seconds": (now.now_ns - now.header.begun_ns) / 1e9,
        **counts,
        "slots": now.header.slots,
        "batches_per_task": now.header.batches_per_task,
        "batches_per_s": recent.batches / max(recent.seconds, 1e-9),
        "samples_per_s": recent.samples / max(recent.seconds, 1e-9),
        "stall_share": recent.stall_share,
        "stall_share_since_start": whole.stall_share,
        "stall_history": [interval(later, earlier).stall_share for earlier, later in pairwise(readings)],
        "diagnosis": msgspec.structs.asdict(diagnose(recent, cores)),
        "diagnosis_since_start": msgspec.structs.asdict(diagnose(whole, cores)),
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


def view(shown: list[Readings], width: int = _WIDTH) -> RenderableType:
    """Draw the pipelines in `width` columns: narrow ones show fewer numbers of each loader, and cut no word."""
    return (
        Group(*(_panel(as_mapping(readings), width - 4) for readings in shown)) if shown else Text("no pipeline runs")
    )


def _panel(shown: dict[str, Any], width: int) -> Panel:
    """Draw one pipeline from the values of `as_mapping`; `width`: the columns within the frame."""
    found, whole = shown["diagnosis"], shown["diagnosis_since_start"]
    sentences = [Text(found["sentence"], f"bold {_COLORS.get(found['blame'], 'yellow')}")]
    if whole["blame"] != found["blame"]:
        sentences.append(Text(f"since the start: {whole['sentence']}", "dim"))
    facts = Table.grid(padding=(0, 2))
    at_once = shown["batches_per_task"]
    counted = f", counted {at_once} at a time" if at_once > 1 else ""
    facts.add_row("batches", f"{shown['batches']:,}{counted}", f"{shown['batches_per_s']:,.1f}/s")
    facts.add_row("samples", f"{shown['samples']:,}", f"{shown['samples_per_s']:,.0f}/s")
    beside = max(0, width - _FACTS)
    stall = Text(sparkline(shown["stall_history"][-beside:] if beside else []), "yellow")
    facts.add_row("making them" if shown["in_process"] else "stall", f"{shown['stall_share']:.1%} of the time", stall)
    if not shown["in_process"]:
        full, filling = shown["slots_full"], shown["slots_filling"]
        empty = max(0, shown["slots"] - full - filling)
        marks = Text.assemble(("■" * full, "green"), ("▣" * filling, "yellow"), ("□" * empty, "dim"))
        words = f"{full} full, {filling} being filled, {empty} empty"
        facts.add_row("slots", words, marks if len(marks) <= beside else "")
    faults = f"{shown['loader_deaths']} deaths, {shown['replaced']} bad samples replaced"
    facts.add_row("faults", Text(faults, "red" if shown["loader_deaths"] else ""), "")
    if any(shown["cache"].values()):
        facts.add_row(
            "cache", "{hits:,} samples found, {misses:,} not, {damaged:,} damaged".format(**shown["cache"]), ""
        )
    if nodes := Counter(loader["node"] for loader in shown["loader_states"] if loader["node"]):
        facts.add_row("remote", ", ".join(f"{count} on {node}" for node, count in sorted(nodes.items())), "")
    program = shown["program"] and f"{shown['program']}, "
    title = Text(f"{program}{shown['source']}, trainer {shown['trainer']}", overflow="fold")
    fits = len(title) <= width - 2
    loaders = () if shown["in_process"] else ("", _loaders(shown["loader_states"], width))
    heading = () if fits else (title,)
    return Panel(Group(*heading, *sentences, "", facts, *loaders), title=title if fits else None)


def _loaders(loaders: list[dict[str, Any]], width: int) -> Table:
    rows = [_cells(loader) for loader in loaders]
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) + 2 for name in _CELLS}
    for name in _SPARED:
        if sum(widths.values()) + _WHERE > width:
            del widths[name]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in widths:
        table.add_column(name, justify="left" if name == "does" else "right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for loader, row in zip(loaders, rows, strict=True):
        is_long = loader["seconds"] > _LONG_S and loader["activity"] != "waiting"
        cells = (Text(row[name], "red" if is_long and name == "for" else "") for name in widths)
        table.add_row(*cells, Text(f"on {loader['node']}" if loader["node"] else loader["where"]))
    return table


def _cells(loader: dict[str, Any]) -> dict[str, str]:
    numbers = ("", "") if loader["node"] else (f"{loader['cpu']:.0%}", f"{loader['resident'] / 2**20:,.0f} MiB")
    sample = str(loader["sample"]) if loader["sample"] >= 0 else ""
    seconds = f"{loader['seconds']:.1f} s"
    cells = (str(loader["loader"]), str(loader["pid"] or ""), loader["activity"], sample, seconds, *numbers)
    return dict(zip(_CELLS, cells, strict=True))


def sparkline(shares: list[float]) -> str:
    """Return one character for each share, 0 to 1."""
    return "".join(_BARS[round(min(1.0, max(0.0, share)) * (len(_BARS) - 1))] for share in shares)
