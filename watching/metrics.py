"""Metrics for Prometheus: a pipeline's counts as OpenMetrics text, in a file for node_exporter's textfile collector.

The assembler writes it, so the trainer pays nothing.
The format: https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..workers.base import write_whole
from ..workers.transport import BUSY, Activity, Count
from .diagnosis import diagnose
from .intervals import interval
from .reading import Reading

_COUNTERS = {
    "batches": (Count.BATCHES, 1.0, "Batches that the trainer has released."),
    "samples": (Count.SAMPLES, 1.0, "Samples in these."),
    "stalls": (Count.STALLS, 1.0, "Batches that the trainer had to wait for."),
    "stall_seconds": (Count.WAITED_NS, 1e9, "Seconds that it waited."),
    "start_seconds": (Count.START_NS, 1e9, "Seconds of these before the first batch."),
    "tasks": (Count.TASKS, 1.0, "Tasks that loaders have done."),
    "loader_deaths": (Count.LOADER_DEATHS, 1.0, "Loaders that have died."),
    "replaced_samples": (Count.REPLACED, 1.0, "Bad samples for which another one was put in."),
    "dropped_messages": (Count.DROPPED_MESSAGES, 1.0, "Frames that were not ours, not valid or not expected."),
}

_log = logging.getLogger("blobfeed")


class MetricsFile:
    """A file of metrics that is replaced as a whole, so that no reader sees half of one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False
        self._shared = False
        self._written: tuple[int, int] | None = None

    def write(self, text: str) -> None:
        try:
            if not self._shared and self._written and self._path.exists() and self._stamp() != self._written:
                self._shared = True
                _log.warning("another pipeline writes its metrics into %s, too: name a file for each", self._path)
            write_whole(self._path, text.encode())
            self._written = self._stamp()
            self._failed = False
        except OSError as error:
            if not self._failed:  # once, not every second
                _log.warning("metrics cannot be written to %s: %s", self._path, error)
            self._failed = True

    def _stamp(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_mtime_ns


def openmetrics(reading: Reading, cores: int, rank: int) -> str:
    """Return all metrics; each has the labels `source`, `rank` and `trainer`, the number of the process."""
    labels = {"source": reading.header.about.source, "rank": str(rank), "trainer": str(reading.header.trainer)}
    return "".join(f"{line}\n" for line in (*_lines(reading, cores, labels), "# EOF"))


def _lines(reading: Reading, cores: int, labels: Mapping[str, str]) -> Iterator[str]:
    whole, counts = interval(reading), reading.header.counts
    for name, (count, scale, what) in _COUNTERS.items():
        yield from _head(name, "counter", what)
        yield _sample(f"{name}_total", labels, counts[count] / scale)
    yield from _head("loader_seconds", "counter", "Seconds of all loaders, by what they did.")
    for activity in (Activity.STARTING, Activity.WAITING, Activity.SAMPLING, *BUSY):
        yield _sample("loader_seconds_total", {**labels, "activity": activity.name.lower()}, whole.spent_s[activity])
    full, filling = counts[Count.SLOTS_FULL], counts[Count.SLOTS_FILLING]
    yield from _head("slots", "gauge", "Slots of the ring, by what is in them.")
    for state, number in (("full", full), ("filling", filling), ("empty", reading.header.slots - full - filling)):
        yield _sample("slots", {**labels, "state": state}, max(0, number))
    for name, value, what in (
        ("loaders", len(reading.running), "Loaders that there are now."),
        ("loader_memory_bytes", sum(line.resident for line in reading.running), "Memory of all loaders."),
    ):
        yield from _head(name, "gauge", what)
        yield _sample(name, labels, value)
    found = diagnose(whole, cores)
    yield from _head("diagnosis_info", "gauge", "What limits the speed, since the start.")
    yield _sample("diagnosis_info", {**labels, "blame": found.blame, "sentence": found.sentence}, 1)


def _head(name: str, kind: str, what: str) -> tuple[str, str]:
    return f"# TYPE blobfeed_{name} {kind}", f"# HELP blobfeed_{name} {what}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    listed = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"blobfeed_{name}{{{listed}}} {value:.17g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
