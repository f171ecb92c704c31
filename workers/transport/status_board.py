"""The status board: shared memory where each loader writes what it is doing, and the assembler its counts.

It has to be memory and not messages: what a loader was doing must be known after it was killed, and what all of them
are doing must be known when the assembler itself does not answer. Each number has one writer; a reader may see a state
a moment old, never one that was not written.
"""

from __future__ import annotations

import enum
import mmap
import os
import time
from dataclasses import dataclass

_WORDS_PER_LOADER = 8
_COUNTERS = 8


class Activity(enum.IntEnum):
    """What a loader is doing."""

    ABSENT = 0
    STARTING = 1
    WAITING = 2
    READING = 3
    DECODING = 4
    POSTPROCESSING = 5
    SAMPLING = 6


class Count(enum.IntEnum):
    """What the assembler counts."""

    LOADERS = 0
    LOADER_DEATHS = 1
    REPLACED = 2
    DROPPED_MESSAGES = 3
    TASKS = 4


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


class StatusBoard:
    """One line for each of `loaders` loaders, on an inherited memory file; a loader that ends leaves it to the next."""

    def __init__(self, descriptor: int, loaders: int) -> None:
        self.descriptor = descriptor
        self.loaders = loaders
        self._map = mmap.mmap(descriptor, self._bytes(loaders))
        self._words = memoryview(self._map).cast("q")

    @staticmethod
    def _bytes(loaders: int) -> int:
        return 8 * (_COUNTERS + loaders * _WORDS_PER_LOADER)

    @classmethod
    def create(cls, loaders: int) -> StatusBoard:
        descriptor = os.memfd_create("blobfeed-board", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, cls._bytes(loaders))
        return cls(descriptor, loaders)

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.descriptor)

    def count(self, what: Count) -> int:
        return self._words[what]

    def set_count(self, what: Count, value: int) -> None:
        self._words[what] = value

    def add(self, what: Count, value: int = 1) -> None:
        self._words[what] += value

    def line(self, number: int) -> LoaderStatus:
        return LoaderStatus(self._words[_COUNTERS + number * _WORDS_PER_LOADER :][:_WORDS_PER_LOADER])

    def dropped(self) -> int:
        """Frames that loaders have dropped, those that have ended among them."""
        return sum(self.line(number).dropped for number in range(self.loaders))

    def damaged_in_cache(self) -> int:
        """Samples of the decoded cache that loaders have found damaged, and made anew."""
        return sum(self.line(number).damaged_in_cache for number in range(self.loaders))

    def states(self) -> list[LoaderState]:
        """Of all loaders that there are."""
        states = [self.line(number).read() for number in range(self.loaders)]
        return [state for state in states if state.activity is not Activity.ABSENT]


class LoaderStatus:
    """One line: pid, loader, activity, task, sample, since in nanoseconds.

    And what all the loaders that ever had this line have counted: frames dropped, samples damaged in the cache.
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def begin(self, loader: int, pid: int) -> None:
        words = self._words
        words[0], words[1], words[3] = pid, loader, 0
        self.write(Activity.STARTING)

    def end(self) -> None:
        self._words[2] = Activity.ABSENT

    @property
    def dropped(self) -> int:
        return self._words[6]

    def note_dropped(self) -> None:
        self._words[6] += 1

    @property
    def damaged_in_cache(self) -> int:
        return self._words[7]

    def note_damaged_in_cache(self, samples: int) -> None:
        self._words[7] += samples

    def begin_task(self, task: int) -> None:
        self._words[3] = task

    def write(self, activity: int, sample: int = -1) -> None:
        words = self._words
        words[2] = activity
        words[4] = sample
        words[5] = time.monotonic_ns()

    def read(self) -> LoaderState:
        pid, loader, activity, task, sample, since = self._words[:6].tolist()
        return LoaderState(pid, loader, Activity(activity), task, sample, since / 1e9)
