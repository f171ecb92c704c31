"""A trace: a file of Trace Event JSON, to which each process appends while it runs; docs/watching.md names all.

    [
    {"name":"process_name",…}           one line at the start of each process
    ,{"name":"task",…}                  one line for each task, by its loader
    ,{"name":"step",…},{"name":"copy",…}   one line for each slot that the trainer takes, by the trainer
    ]                                   when the pipeline is closed

A line is one write to a file that was opened for appending, so lines of several processes do not mix. Perfetto and
chrome://tracing do not need the bracket at the end: a process that is killed leaves a trace. A comma stands in front of
a line and not behind it, so a line that was cut spoils no other one.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from ..workers.api import CacheCounts
from ..workers.base import BlobfeedError, ParameterError, check_replaceable
from ..workers.transport import About

NO_WAIT_NS: Final = 20_000
"""Looking at a batch that is there takes at most this long: a shorter wait is none."""

_log = logging.getLogger("blobfeed")

Event = dict[str, Any]


class TraceFile:
    """One process's end of the file. An error while it writes ends the trace, and not the run."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._pid = os.getpid()
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        self._works = True

    @classmethod
    def create(cls, path: Path, about: About, batch_size: int, cores: int) -> Self:
        """Begin the file anew, in place of an earlier trace; raises ParameterError."""
        what = f"parameter 'trace' is {str(path)!r}"
        try:
            check_replaceable(path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ParameterError(f"{what}: it cannot be written: {error.strerror}: name a file that can") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            trace = cls(descriptor)
            first = _process_names(trace._pid, "trainer", 0)
            args = {"version": 2, "cores": cores, "batch_size": batch_size, **about._asdict()}
            run = {"name": "blobfeed", "ph": "M", "pid": trace._pid, "args": args}
            os.write(descriptor, b"[\n" + _line([run, *first]))
        except BlockingIOError:
            os.close(descriptor)
            raise ParameterError(f"{what}: another pipeline writes into it: name a file for each") from None
        except OSError as error:
            os.close(descriptor)
            path.unlink()
            raise ParameterError(f"{what}: it cannot be written: {error.strerror}: name a file elsewhere") from None
        return trace

    def write(self, *events: Event) -> None:
        """Append `events` as one line."""
        self._append(b"," + _line(events))

    def _append(self, line: bytes) -> None:
        if not self._works:
            return
        try:
            self._works = os.write(self.descriptor, line) == len(line)
            error = "its disk is full"
        except OSError as refused:
            self._works, error = False, str(refused.strerror)
        if not self._works:
            _log.warning("the trace has no more of process %d from here on: %s", self._pid, error)

    def span(self, category: str, name: str, begun_ns: int, ended_ns: int, **args: object) -> Event:
        """A complete span of this process, by time.monotonic_ns(). Whole microseconds: spans that meet stay so."""
        begun = (self._epoch_ns + begun_ns) // 1000
        duration = (self._epoch_ns + ended_ns) // 1000 - begun
        pid = self._pid
        return {"name": name, "cat": category, "ph": "X", "ts": begun, "dur": duration, "pid": pid, "tid": pid,
                "args": args}  # fmt: skip

    def name(self, name: str, place: int, *events: Event) -> None:
        """Say what this process is called and at which place it is shown, and append `events`."""
        self.write(*_process_names(self._pid, name, place), *events)

    def note_death(self, loader: int, task: int, sample: int) -> None:
        """A loader has died now, which had begun with `task` and `sample`; 0 and -1: with none."""
        args = {"loader": loader} | ({"task": task} if task else {}) | ({"sample": sample} if sample >= 0 else {})
        span = self.span("fault", "death", now := time.monotonic_ns(), now, **args)
        self.write({**span, "ph": "i", "s": "g"})

    def finish(self, counts: CacheCounts) -> None:
        """Close the array; all other processes have ended. `counts`: of the decoded cache."""
        cache = {"name": "cache", "ph": "M", "pid": self._pid, "args": counts._asdict()}
        self._append(b"," + _line([cache]) + b"]\n")
        self._works = False

    def close(self) -> None:
        """Give the descriptor back."""
        self._works = False
        os.close(self.descriptor)


def is_written(path: Path) -> bool:
    """Return true while a pipeline appends to the trace."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _process_names(pid: int, name: str, place: int) -> list[Event]:
    common = {"ph": "M", "pid": pid, "tid": pid}
    return [
        {"name": "process_name", **common, "args": {"name": name}},
        {"name": "process_sort_index", **common, "args": {"sort_index": place}},
    ]


def _line(events: Sequence[Event]) -> bytes:
    return b",".join(map(msgspec.json.encode, events)) + b"\n"


class TrainerTrace:
    """The trainer's spans, one line for the batches that came together.

    taken ─ step, and the other batches ─► asked ─ wait ─► there ─ copy ─► taken
    """

    def __init__(self) -> None:
        self.file: TraceFile | None = None
        """None until the processes have been started."""
        self._asked_ns = self._there_ns = self._taken_ns = 0
        self._until = 0
        """The number behind the last batch that the last line tells of."""
        self._args: dict[str, int] = {}

    def asks(self) -> None:
        """The trainer looks for the next batch, perhaps again."""
        self._asked_ns = self._asked_ns or time.monotonic_ns()

    def has(self) -> None:
        """The next batch is there."""
        self._there_ns = self._there_ns or time.monotonic_ns()

    def takes(self, number: int, batches: int) -> None:
        """Batch `number` has been taken, the first of `batches` that came together, or one behind that."""
        asked, there = self._asked_ns, self._there_ns
        self._asked_ns = self._there_ns = 0
        if self.file is None or number < self._until:
            return
        taken = time.monotonic_ns()
        step = [self._step(self.file, asked)] if self._taken_ns else []
        self._args = {"batch": number, "batches": batches} if batches > 1 else {"batch": number}
        wait = [self.file.span("trainer", "wait", asked, there, **self._args)] if there - asked > NO_WAIT_NS else []
        self.file.write(*step, *wait, self.file.span("trainer", "copy", there, taken, **self._args))
        self._until, self._taken_ns = number + batches, taken

    def end(self) -> None:
        """The pipeline is closed."""
        if self.file is not None and self._taken_ns:
            self.file.write(self._step(self.file, self._asked_ns or time.monotonic_ns()))
        self.file = None

    def _step(self, file: TraceFile, ended_ns: int) -> Event:
        return file.span("trainer", "step", self._taken_ns, ended_ns, **self._args)


# ---- reading


def load(path: Path) -> dict[str, Any]:
    """The object form of a trace in either form, also of one that a killed run has left; raises BlobfeedError."""
    data = path.read_bytes()
    try:
        loaded = json.loads(data)
    except ValueError:
        loaded = _whole_lines(data) if data.startswith(b"[\n{") else None
    if isinstance(loaded, list):
        loaded = {"traceEvents": loaded}
    if not isinstance(loaded, dict) or not isinstance(events := loaded.get("traceEvents"), list):
        raise BlobfeedError(f"{path} is no trace, or one that was cut: expected Trace Event JSON")
    return {**loaded, "traceEvents": [event for event in events if isinstance(event, dict)]}


def _whole_lines(data: bytes) -> list[Event]:
    events: list[Event] = []
    for line in data.splitlines()[1:]:
        try:
            events += json.loads(b"[" + line.lstrip(b",") + b"]")
        except ValueError:  # its process was killed, or its disk was full
            _log.debug("a line of the trace was cut: %r", line[:80])
    return events
