"""The status board: shared memory where each process of a pipeline writes what it is doing, and what it counts.

It has to be memory and not messages: what a loader was doing must be known after it was killed, and what all of them
are doing must be known when the assembler itself does not answer. Each number has one writer; a reader may see a state
a moment old, never one that was not written. `blobfeed monitor` finds the file under /proc and reads it: so the layout
begins with a number that changes with it.

    header       what the pipeline is, the counts, and how the last loader died
    a line each  of every loader: what it does, the time that went into it, how long samples took
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from ..api import CacheCounts
from .linux import memfd_create

NAME: Final = "blobfeed-board"
"""The name of the memory file, as /proc shows it."""

MAGIC: Final = 0x626C_6F62_0007

_TIME_BUCKETS = 64
SHORTEST_BITS = 10
"""The first two buckets hold all times of so many bits and fewer; then there are two for each power of two."""

_PLACES = 2 * 66
"""The buckets of a loader's own count: two for each number of bits that a time can have."""

_SUM_NS = 10_000_000
_LOOK_S = 0.5
"""The time between two looks at the sample whose location may be unknown."""


class Activity(enum.IntEnum):
    """The activity of a loader."""

    ABSENT = 0
    STARTING = 1
    WAITING = 2
    READING = 3
    DECODING = 4
    POSTPROCESSING = 5
    SAMPLING = 6


BUSY = (Activity.READING, Activity.DECODING, Activity.POSTPROCESSING)
"""The activities of a loader that makes rows; to draw an epoch is none of them."""

_READING, _DECODING = int(Activity.READING), int(Activity.DECODING)


class Count(enum.IntEnum):
    """The counts: kept by the assembler, and from STALLS on by the trainer."""

    LOADERS = 0
    LOADER_DEATHS = 1
    REPLACED = 2
    DROPPED_MESSAGES = 3
    TASKS = 4
    BATCHES = 5
    """Released by the trainer."""
    SAMPLES = 6
    SLOTS_FULL = 7
    """Announced, and not released."""
    SLOTS_FILLING = 8
    STALLS = 9
    WAITED_NS = 10
    START_NS = 11
    """The part of WAITED_NS for the first batch."""
    FIRST_BATCH_NS = 12
    """time.monotonic_ns() at which that came; 0: it has not."""
    WAITING_SINCE = 13
    """time.monotonic_ns() at which the trainer began to wait; 0: it does not."""


class LoaderState(msgspec.Struct, frozen=True):
    """The activity of one loader; `task` is 0 and `sample` is -1 if there is none."""

    pid: int
    loader: int
    activity: Activity
    task: int
    sample: int
    since: float
    """time.monotonic() at which the activity began."""

    def __str__(self) -> str:
        what = "epoch" if self.activity is Activity.SAMPLING else "sample"
        sample = f" {what} {self.sample}" if self.sample >= 0 else ""
        seconds = time.monotonic() - self.since
        pid = f" (pid {self.pid})" if self.pid else ""  # one that is still to be forked has none
        return f"loader {self.loader}{pid}: {self.activity.name.lower()}{sample} for {seconds:.1f} s"


class About(NamedTuple):
    """The description of a run for monitors: on the board and in a trace."""

    trainer: int
    slots: int
    batches_per_task: int
    source: str
    program: str = ""
    """The name of the trainer's script: several may train on one machine."""


def _fitted(text: str, size: int) -> bytes:
    """Encode `text` into at most `size` bytes. The end of a path says more than its beginning."""
    data = text.encode("utf-8", "replace")
    return data if len(data) <= size else "…".encode() + data[-(size - 3) :]


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_Words = ctypes.Array[ctypes.c_int64]
_word = ctypes.c_int64
_SOURCE_BYTES, _DEATH_BYTES, _PLACE_BYTES, _NODE_BYTES = 64, 256, 184, 64


class Header(ctypes.Structure):
    """The beginning of the board; times by time.monotonic_ns()."""

    _fields_ = (
        ("magic", _word),
        ("lines", _word),
        ("begun_ns", _word),
        ("assembler", _word),
        ("trainer", _word),
        ("slots", _word),
        ("batches_per_task", _word),
        ("counts", _word * len(Count)),
        ("source", ctypes.c_char * _SOURCE_BYTES),
        ("program", ctypes.c_char * _SOURCE_BYTES),
        ("death", ctypes.c_char * _DEATH_BYTES),
    )
    magic: int
    lines: int
    begun_ns: int
    assembler: int
    trainer: int
    slots: int
    batches_per_task: int
    counts: _Words
    """By Count."""
    source: bytes
    program: bytes
    death: bytes

    @property
    def about(self) -> About:
        source, program = _decoded(self.source), _decoded(self.program)
        return About(self.trainer, self.slots, self.batches_per_task, source, program)

    @property
    def last_death(self) -> str:
        return _decoded(self.death)


class Place(ctypes.Structure):
    """The location of a sample: only its source knows that, and who reads the board from outside has none."""

    _fields_ = (("sample", _word), ("text", ctypes.c_char * _PLACE_BYTES))
    sample: int
    text: bytes

    def lacks(self, sample: int) -> bool:
        """Return true if there is such a sample, and its location is not here yet."""
        return sample >= 0 and (self.sample != sample or not self.text)

    def note(self, sample: int, where: str) -> None:
        """Put `where` here, so that no reader takes it for the location of another sample."""
        self.sample = -1
        self.text = _fitted(where, _PLACE_BYTES)
        self.sample = sample

    def of(self, sample: int) -> str:
        """Return the location of `sample`; empty if that of another one is here."""
        return _decoded(self.text) if self.sample == sample >= 0 else ""


class Line(ctypes.Structure):
    """The line of a loader; times in nanoseconds, since the pipeline began, of all loaders that had the line."""

    _fields_ = (
        ("number", _word),
        ("pid", _word),
        ("loader", _word),
        ("activity", _word),
        ("task", _word),
        ("sample", _word),
        ("since_ns", _word),
        ("has_begun", _word),
        ("dropped", _word),
        ("spent_ns", _word * len(Activity)),
        ("measured_ns", _word),
        ("cpu_ns", _word),
        ("delay_ns", _word),
        ("resident", _word),
        ("slowest_ns", _word),
        ("slowest_sample", _word),
        ("slowest_rows", _word),
        ("slowest_at_ns", _word),
        ("times", _word * _TIME_BUCKETS),
        ("cache", _word * len(CacheCounts._fields)),
        ("place", Place),
        ("place_slowest", Place),
        ("host", ctypes.c_char * _NODE_BYTES),
    )
    number: int
    pid: int
    loader: int
    activity: int
    task: int
    sample: int
    since_ns: int
    """time.monotonic_ns() at which the activity began."""
    has_begun: int
    """1 after the line's first loader has begun."""
    dropped: int
    """Frames that loaders have dropped."""
    spent_ns: _Words
    """By Activity."""
    measured_ns: int
    """The part of the busy time for which `cpu_ns` and `delay_ns` are known."""
    cpu_ns: int
    """Time on a core."""
    delay_ns: int
    """Time in which the loader could have run and had no core."""
    resident: int
    """Bytes of memory now."""
    slowest_ns: int
    """The time of the slowest sample: its part of the read, and its decode. 0: none has been made."""
    slowest_sample: int
    slowest_rows: int
    """The samples that were read together, of which `slowest_sample` is the first."""
    slowest_at_ns: int
    times: _Words
    """Samples by the time that each took: see `bucket_ns`."""
    cache: _Words
    place: Place
    """The location of `sample`, if it is the first of a task, comes 10 ms behind the last location, or takes long."""
    place_slowest: Place
    host: bytes

    @property
    def state(self) -> LoaderState:
        activity = Activity(self.activity)
        return LoaderState(self.pid, self.loader, activity, self.task, self.sample, self.since_ns / 1e9)

    @property
    def node(self) -> str:
        """The host of a remote loader; empty for one of this host."""
        return _decoded(self.host)

    @property
    def cache_counts(self) -> CacheCounts:
        return CacheCounts(*self.cache)


class StatusBoard:
    """One line for each of `loaders` loaders, on an inherited memory file; a loader that ends leaves it to the next."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0)
        self.header = Header.from_buffer(self._map)
        count = (len(self._map) - ctypes.sizeof(Header)) // ctypes.sizeof(Line)
        self.lines = (Line * count).from_buffer(self._map, ctypes.sizeof(Header))

    @classmethod
    def create(cls, loaders: int) -> StatusBoard:
        descriptor = memfd_create(NAME)
        os.ftruncate(descriptor, ctypes.sizeof(Header) + loaders * ctypes.sizeof(Line))
        board = cls(descriptor)
        header = board.header
        header.lines, header.trainer, header.begun_ns = loaders, os.getpid(), time.monotonic_ns()
        for number, line in enumerate(board.lines):
            line.number = number
        header.magic = MAGIC
        return board

    def describe(self, about: About) -> None:
        header = self.header
        header.trainer, header.slots, header.batches_per_task, source, program = about
        header.source, header.program = _fitted(source, _SOURCE_BYTES), _fitted(program, _SOURCE_BYTES)

    def note_death(self, text: str) -> None:
        self.header.death = _fitted(text, _DEATH_BYTES)

    def close(self) -> None:
        del self.header, self.lines
        with suppress(BufferError):  # the frames of an exception, as of Ctrl-C, may hold a line: the mapping ends later
            self._map.close()
        os.close(self.descriptor)

    @property
    def counts(self) -> _Words:
        """The counts, by Count; to be read and written in place."""
        return self.header.counts

    def set_counts(self, counts: Mapping[Count, int]) -> None:
        for what, value in counts.items():
            self.counts[what] = value

    def note_start(self) -> None:
        """Note that the trainer has the first batch, and has waited for that alone up to now."""
        self.counts[Count.START_NS] = self.counts[Count.WAITED_NS]
        self.counts[Count.FIRST_BATCH_NS] = time.monotonic_ns()

    def line(self, number: int) -> LoaderStatus:
        return LoaderStatus(self.lines[number])

    def states(self) -> list[LoaderState]:
        """Return the states of all loaders that exist."""
        states = [line.state for line in self.lines]
        return [state for state in states if state.activity is not Activity.ABSENT]

    @property
    def cache_counts(self) -> CacheCounts:
        """The counts of all loaders, including those that have ended."""
        return CacheCounts.total(line.cache_counts for line in self.lines)

    def copy(self) -> bytes:
        """Return the whole memory as it is now, for watching/reading.py."""
        return bytes(self._map)


class LoaderStatus:
    """One line, as its loader writes it. Times are added up here: a message for each would cost more than it says."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._activity = 0
        self._since = 0
        self._rows = 1
        self._read_ns = 0
        """The time of the last read for each of its samples."""
        self._slowest = 0
        """The longest time of a sample of this task. The first sample of a process does not count: hooks import and
        load there."""
        self._slowest_sample = -1
        self._is_warm = False
        """The process has made a sample."""
        self._spent = [0] * len(Activity)
        """The times that are not on the board yet, by activity."""
        self._times = [0] * _PLACES
        self._next_sum = 0
        self.locate: Callable[[int], str] | None = None
        """Returns the location of a sample. A worker sets it, since it is often the user's code."""
        self._noting = threading.Lock()

    def begin(self, loader: int, pid: int) -> None:
        line = self._line
        line.pid, line.loader, line.task, line.has_begun = pid, loader, 0, 1
        self._activity, self._since = Activity.STARTING, time.monotonic_ns()
        self.write(Activity.STARTING)

    def end(self) -> None:
        """Note that the loader is gone; the time of its last activity counts, too."""
        line = self._line
        line.spent_ns[line.activity] += max(0, time.monotonic_ns() - line.since_ns)
        line.activity = Activity.ABSENT

    def note_dropped(self) -> None:
        self._line.dropped += 1

    def note_cache_counts(self, now: CacheCounts, before: CacheCounts) -> None:
        for place, (count, old) in enumerate(zip(now, before, strict=True)):
            self._line.cache[place] += count - old

    def note_node(self, host: str) -> None:
        """Note that the loader runs on another machine, or may: its process has no number here."""
        self._line.host = _fitted(host, _NODE_BYTES)

    @property
    def is_remote(self) -> bool:
        return bool(self._line.host)

    def begin_task(self, task: int) -> None:
        """Blame `task` for a death from now on, and begin to look for its slowest sample.

        The place of its first sample is noted in any case: after a death tasks have one row, so that the place of the
        row to blame is known, however quickly all others are made.
        """
        self._slowest, self._slowest_sample, self._next_sum = 0, -1, 0
        self.blame(task)

    @property
    def slowest_of_task(self) -> tuple[int, int]:
        """The slowest sample of the last task, and its nanoseconds; 0 if none has been made."""
        return self._slowest_sample, self._slowest

    def busy_times(self) -> list[int]:
        """Return the nanoseconds of each of BUSY, up to the last `write`, of all loaders that had the line."""
        on_board = self._line.spent_ns
        return [on_board[activity] + self._spent[activity] for activity in BUSY]

    @property
    def number(self) -> int:
        """The number of the line."""
        return self._line.number

    def mark(self, sample: int) -> None:
        """Note that the activity has come to `sample`: a tenth of the price of `write`, and adds up no time."""
        line = self._line
        line.sample = sample
        line.since_ns = time.monotonic_ns()

    def blame(self, task: int) -> None:
        """Name the task that is to blame if the loader dies now; 0: none."""
        self._line.task = task

    def write(self, activity: int, sample: int = -1, rows: int = 1) -> None:
        """Note that the loader begins `activity`; `sample`: the first of `rows` that it concerns."""
        line, before, now = self._line, self._activity, time.monotonic_ns()
        took = now - self._since
        self._spent[before] += took
        if before == _DECODING:
            self._note_time(took + self._read_ns, 1, now)
        elif before == _READING:
            self._read_ns = took // self._rows
            if activity != _DECODING:
                self._note_time(self._read_ns, self._rows, now)
        self._activity, self._since, self._rows = activity, now, rows
        line.activity = activity
        line.sample = sample
        line.since_ns = now
        if now > self._next_sum:
            self._sum_up(now)

    def _note_time(self, nanoseconds: int, rows: int, now: int) -> None:
        bits = nanoseconds.bit_length()
        self._times[2 * bits + (nanoseconds >> bits - 2 & 1) if bits > 2 else 0] += rows
        if not self._is_warm:
            self._is_warm = True
        elif nanoseconds > self._slowest:
            line = self._line
            self._slowest, self._slowest_sample = nanoseconds, line.sample
            if nanoseconds > line.slowest_ns:  # of all the loaders that had this line
                line.slowest_sample, line.slowest_rows, line.slowest_at_ns = line.sample, rows, now
                line.slowest_ns = nanoseconds

    def _sum_up(self, now: int) -> None:
        """Put the times on the board. Each by itself would cost more than the rest of `write`."""
        on_board, times = self._line.spent_ns, self._line.times
        for activity, spent in enumerate(self._spent):
            on_board[activity] += spent
        for place, rows in enumerate(self._times):
            if rows:
                times[min(max(0, place - 2 * SHORTEST_BITS), _TIME_BUCKETS - 1)] += rows
        self._spent, self._times = [0] * len(Activity), [0] * _PLACES
        self._next_sum = now + _SUM_NS
        self._note_places()

    def keep_places(self) -> None:
        """Note places from a thread, too: a sample that is never finished has no later moment for it."""
        threading.Thread(target=self._keep_places, name="blobfeed-places", daemon=True).start()

    def _keep_places(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            self._note_places()

    def _note_places(self) -> None:
        """Write the places of the current sample and of the slowest one, for readers of the board without a source."""
        if (locate := self.locate) is None:
            return
        line = self._line
        with self._noting:
            current = line.sample if line.activity in BUSY else -1
            slowest = line.slowest_sample if line.slowest_ns else -1
            for sample, place in ((current, line.place), (slowest, line.place_slowest)):
                if place.lacks(sample):
                    place.note(sample, locate(sample))

    # ---- written by the assembler

    def busy_ns(self, now_ns: int) -> int:
        """Return the nanoseconds that its loaders have spent on making rows."""
        line = self._line
        begun = max(0, now_ns - line.since_ns) if line.activity in BUSY else 0
        return begun + sum(line.spent_ns[activity] for activity in BUSY)

    def note_usage(self, measured_ns: int, cpu_ns: int, delay_ns: int, resident: int) -> None:
        """Add `measured_ns` of busy time: `cpu_ns` on a core, `delay_ns` without one; `resident`: bytes now."""
        line = self._line
        line.measured_ns += measured_ns
        line.cpu_ns += cpu_ns
        line.delay_ns += delay_ns
        line.resident = resident


class Unwatched(LoaderStatus):
    """The line of a pipeline without processes, which no process reads."""

    def __init__(self) -> None:
        super().__init__(Line())

    def write(self, activity: int, sample: int = -1, rows: int = 1) -> None:
        """Do nothing."""
