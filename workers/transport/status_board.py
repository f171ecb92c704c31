"""The status board: shared memory where each process of a pipeline writes what it is doing, and what it counts.

It has to be memory and not messages: what a loader was doing must be known after it was killed, and what all of them
are doing must be known when the assembler itself does not answer. Each number has one writer; a reader may see a state
a moment old, never one that was not written. `blobfeed monitor` finds the file under /proc and reads it: so the layout
begins with a number that changes with it.

    header       what the pipeline is, the counts, and how the last loader died
    a line each  of every loader: what it does, the time that went into it, how long samples took
"""

from __future__ import annotations

import enum
import mmap
import os
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..base.source import CacheCounts
from .linux import memfd_create

NAME: Final = "blobfeed-board"
"""Of the memory file, as /proc shows it."""

MAGIC: Final = 0x626C_6F62_0004

# The header, in words of 8 bytes.
LINES, ASSEMBLER, BEGUN, TRAINER, SLOTS, BATCHES_PER_SLOT = range(1, 7)
COUNTS, SOURCE, LAST_DEATH, HEADER = 8, 24, 32, 64

# A loader's line.
PID, LOADER, ACTIVITY, TASK, SAMPLE, SINCE, DROPPED = range(7)
SPENT = 7
CPU, DELAY, RESIDENT = 14, 15, 16
SLOWEST, SLOWEST_SAMPLE, SLOWEST_ROWS, SLOWEST_AT = range(17, 21)
BEGAN_ONCE, MEASURED = 21, 22
WHERE, WHERE_SLOWEST, TIMES, CACHE, LINE = 24, 48, 72, 136, 139
TEXT_WORDS = 24

ON_NODE = -2
"""In place of a sample that the area WHERE is about: it names the node of a remote loader."""

TIME_BUCKETS = CACHE - TIMES
SHORTEST_BITS = 10
"""The first two buckets hold all times of so many bits and fewer; then there are two for each power of two."""


_PLACES = 2 * 66
"""Of a loader's own count: two for each number of bits that a time can have."""

_SUM_NS = 10_000_000


class Activity(enum.IntEnum):
    """What a loader is doing."""

    ABSENT = 0
    STARTING = 1
    WAITING = 2
    READING = 3
    DECODING = 4
    POSTPROCESSING = 5
    SAMPLING = 6


BUSY = (Activity.READING, Activity.DECODING, Activity.POSTPROCESSING)
"""A loader has a task."""

_READING, _DECODING = int(Activity.READING), int(Activity.DECODING)


class Count(enum.IntEnum):
    """What is counted: by the assembler, and from STALLS on by the trainer."""

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
    """Of these for the first batch."""
    FIRST_BATCH_NS = 12
    """time.monotonic_ns() at which that came; 0: it has not."""
    WAITING_SINCE = 13
    """time.monotonic_ns() at which the trainer began to wait; 0: it does not."""


@dataclass(frozen=True, slots=True)
class LoaderState:
    """What one loader is doing; `task` is 0 and `sample` is -1 if there is none. The sampler has a negative number."""

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
        who = f"loader {self.loader}" if self.loader >= 0 else "sampler"
        return f"{who} (pid {self.pid}): {self.activity.name.lower()}{sample} for {seconds:.1f} s"


class About(NamedTuple):
    """What a run is, for whoever looks at it from outside: on the board and in a trace."""

    trainer: int
    slots: int
    batches_per_slot: int
    source: str


def _put_text(words: memoryview, text: str) -> None:
    """The end of a path says more than its beginning."""
    data = text.encode("utf-8", "replace")
    room = words.nbytes
    words.cast("B")[:] = (data if len(data) <= room else "…".encode() + data[-(room - 3) :]).ljust(room, b"\0")


class StatusBoard:
    """One line for each of `loaders` loaders, on an inherited memory file; a loader that ends leaves it to the next."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0)
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, loaders: int) -> StatusBoard:
        descriptor = memfd_create(NAME)
        os.ftruncate(descriptor, 8 * (HEADER + loaders * LINE))
        board = cls(descriptor)
        board._words[LINES], board._words[TRAINER], board._words[BEGUN] = loaders, os.getpid(), time.monotonic_ns()
        board._words[0] = MAGIC
        return board

    @property
    def loaders(self) -> int:
        return self._words[LINES]

    def describe(self, about: About) -> None:
        words = self._words
        words[TRAINER], words[SLOTS], words[BATCHES_PER_SLOT], source = about
        _put_text(words[SOURCE:LAST_DEATH], source)

    def note_assembler(self, pid: int) -> None:
        self._words[ASSEMBLER] = pid

    def note_death(self, text: str) -> None:
        _put_text(self._words[LAST_DEATH:HEADER], text)

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.descriptor)

    def count(self, what: Count) -> int:
        return self._words[COUNTS + what]

    def set_count(self, what: Count, value: int) -> None:
        self._words[COUNTS + what] = value

    def note_start(self, waited_ns: int) -> None:
        """The trainer has taken the first batch, for which it had waited so long."""
        self.set_count(Count.WAITED_NS, waited_ns)
        self.set_count(Count.START_NS, waited_ns)
        self.set_count(Count.FIRST_BATCH_NS, time.monotonic_ns())

    def add(self, what: Count, value: int = 1) -> None:
        self._words[COUNTS + what] += value

    def line(self, number: int) -> LoaderStatus:
        return LoaderStatus(self.words_of(number))

    def words_of(self, number: int) -> memoryview:
        """The memory of a line."""
        return self._words[HEADER + number * LINE :][:LINE]

    def dropped(self) -> int:
        """Frames that loaders have dropped, those that have ended among them."""
        return sum(self.words_of(number)[DROPPED] for number in range(self.loaders))

    def states(self) -> list[LoaderState]:
        """Of all loaders that there are."""
        states = [self.line(number).read() for number in range(self.loaders)]
        return [state for state in states if state.activity is not Activity.ABSENT]

    def copy(self) -> bytes:
        """All that it says now, for board_reading.py."""
        return bytes(self._map)


class LoaderStatus:
    """One line, as its loader writes it. Times are added up here: a message for each would cost more than it says."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._activity = 0
        self._since = 0
        self._rows = 1
        self._read_ns = 0
        """What the last read took for each of its samples."""
        self._slowest = 0
        """The longest time of a sample of this task. The first sample of a process does not count: hooks import and
        load there."""
        self._slowest_sample = -1
        self._is_warm = False
        """The process has made a sample."""
        self._spent = [0] * len(Activity)
        """By activity, what is not on the board yet."""
        self._times = [0] * _PLACES
        self._next_sum = 0

    def begin(self, loader: int, pid: int) -> None:
        words = self._words
        words[PID], words[LOADER], words[TASK], words[BEGAN_ONCE] = pid, loader, 0, 1
        self._activity, self._since = Activity.STARTING, time.monotonic_ns()
        self.write(Activity.STARTING)

    def end(self) -> None:
        """Its loader is gone; the time of what it did last counts too."""
        words = self._words
        words[SPENT + words[ACTIVITY]] += max(0, time.monotonic_ns() - words[SINCE])
        words[ACTIVITY] = Activity.ABSENT

    def note_dropped(self) -> None:
        self._words[DROPPED] += 1

    def note_cache_counts(self, now: CacheCounts, before: CacheCounts) -> None:
        for place, (count, old) in enumerate(zip(now, before, strict=True)):
            self._words[CACHE + place] += count - old

    def note_node(self, host: str) -> None:
        """The loader runs on another machine, or may: its process has no number here."""
        self._words[WHERE] = ON_NODE
        _put_text(self._words[WHERE + 1 : WHERE + TEXT_WORDS], host)

    @property
    def is_remote(self) -> bool:
        return self._words[WHERE] == ON_NODE

    def begin_task(self, task: int) -> None:
        """The loader is to blame for `task` from now on, and its slowest sample is looked for."""
        self._slowest, self._slowest_sample = 0, -1
        self.blame(task)

    @property
    def slowest_of_task(self) -> tuple[int, int]:
        """The sample of the last task that took longest, and its nanoseconds; 0 if none has been made."""
        return self._slowest_sample, self._slowest

    def busy_times(self) -> list[int]:
        """The nanoseconds of each of BUSY, up to the last `write`, of all loaders that had the line."""
        return [self._words[SPENT + activity] + self._spent[activity] for activity in BUSY]

    def blame(self, task: int) -> None:
        """A loader that dies now has died of that task; 0: of none."""
        self._words[TASK] = task

    def write(self, activity: int, sample: int = -1, rows: int = 1) -> None:
        """From now on the loader does `activity`; `sample`: the first of `rows` that it concerns."""
        words, before, now = self._words, self._activity, time.monotonic_ns()
        took = now - self._since
        self._spent[before] += took
        if before == _DECODING:
            self._note_time(took + self._read_ns, 1, now)
        elif before == _READING:
            self._read_ns = took // self._rows
            if activity != _DECODING:
                self._note_time(self._read_ns, self._rows, now)
        self._activity, self._since, self._rows = activity, now, rows
        words[ACTIVITY] = activity
        words[SAMPLE] = sample
        words[SINCE] = now
        if now > self._next_sum:
            self._sum_up(now)

    def _note_time(self, nanoseconds: int, rows: int, now: int) -> None:
        bits = nanoseconds.bit_length()
        self._times[2 * bits + (nanoseconds >> bits - 2 & 1) if bits > 2 else 0] += rows
        if not self._is_warm:
            self._is_warm = True
        elif nanoseconds > self._slowest:
            words = self._words
            self._slowest, self._slowest_sample = nanoseconds, words[SAMPLE]
            if nanoseconds > words[SLOWEST]:  # of all the loaders that had this line
                words[SLOWEST_SAMPLE], words[SLOWEST_ROWS], words[SLOWEST_AT] = words[SAMPLE], rows, now
                words[SLOWEST] = nanoseconds

    def _sum_up(self, now: int) -> None:
        """Put the times on the board. Each by itself would cost more than the rest of `write`."""
        words = self._words
        for activity, spent in enumerate(self._spent):
            words[SPENT + activity] += spent
        for place, rows in enumerate(self._times):
            if rows:
                words[TIMES + min(max(0, place - 2 * SHORTEST_BITS), TIME_BUCKETS - 1)] += rows
        self._spent, self._times = [0] * len(Activity), [0] * _PLACES
        self._next_sum = now + _SUM_NS

    def read(self) -> LoaderState:
        pid, loader, activity, task, sample, since = self._words[:6].tolist()
        return LoaderState(pid, loader, Activity(activity), task, sample, since / 1e9)

    # ---- what the assembler writes of it

    def busy_ns(self, now_ns: int) -> int:
        """That its loaders have spent on tasks."""
        words = self._words
        begun = max(0, now_ns - words[SINCE]) if words[ACTIVITY] in BUSY else 0
        return begun + sum(words[SPENT + activity] for activity in BUSY)

    def note_usage(self, measured_ns: int, cpu_ns: int, delay_ns: int, resident: int) -> None:
        """In so much more busy time it had a core for `cpu_ns` and wanted one for `delay_ns`; `resident`: bytes now."""
        words = self._words
        words[MEASURED] += measured_ns
        words[CPU] += cpu_ns
        words[DELAY] += delay_ns
        words[RESIDENT] = resident

    @property
    def slowest_sample(self) -> int:
        return self._words[SLOWEST_SAMPLE] if self._words[SLOWEST] else -1

    def wants_place(self, sample: int, area: int) -> bool:
        """Whether the board does not yet say where `sample` is stored; `area`: WHERE or WHERE_SLOWEST."""
        return sample >= 0 and (self._words[area] != sample or not self._words[area + 1])

    def note_place(self, sample: int, where: str, area: int) -> None:
        self._words[area] = -1
        _put_text(self._words[area + 1 : area + TEXT_WORDS], where)
        self._words[area] = sample


class Unwatched(LoaderStatus):
    """Of a pipeline without processes: nobody asks what it is doing."""

    def __init__(self) -> None:
        super().__init__(memoryview(bytearray(8 * LINE)).cast("q"))

    def write(self, activity: int, sample: int = -1, rows: int = 1) -> None:
        """Nothing to note."""
