"""What a status board says: read from a copy of its memory, by whoever has it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from ..base.source import CacheCounts
from . import status_board as at
from .status_board import About, Activity, Count, LoaderState, LoaderStatus


class Usage(NamedTuple):
    """Of a process: `cpu_ns` on a core, `delay_ns` when it could have run and had none, `resident` bytes of memory."""

    cpu_ns: int
    delay_ns: int
    resident: int


class Slowest(NamedTuple):
    """The sample that took longest: its part of the read, and its decode. One of `rows` that were read together."""

    ns: int
    sample: int
    rows: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class LoaderLine:
    """All that one line says; times in nanoseconds, since the pipeline began, of all loaders that had the line."""

    number: int
    state: LoaderState
    spent_ns: tuple[int, ...]
    """By Activity, up to the moment of reading."""
    measured_ns: int
    """For so much of its busy time `usage` is known."""
    usage: Usage
    slowest: Slowest
    where: str
    """Where the sample is stored that the loader is at, if it has been there for long."""
    where_slowest: str
    node: str
    """The host of a remote loader; empty for one of this host."""
    times: tuple[int, ...]
    """Samples by the time that each took: see `bucket_ns`."""
    cache_counts: CacheCounts


@dataclass(frozen=True, slots=True)
class Reading:
    """The whole board at one moment, `now_ns` by time.monotonic_ns()."""

    now_ns: int
    begun_ns: int
    about: About
    assembler: int
    counts: tuple[int, ...]
    last_death: str
    lines: tuple[LoaderLine, ...]
    in_process: bool
    """There are no loaders: the trainer makes its batches itself."""

    @property
    def cache_counts(self) -> CacheCounts:
        """Of all loaders, those that have ended among them."""
        return CacheCounts.total(line.cache_counts for line in self.lines)

    @property
    def running(self) -> list[LoaderLine]:
        """Loaders that there are now; the sampler is not one of them."""
        return [line for line in self.lines if line.state.activity is not Activity.ABSENT and line.state.loader >= 0]

    @classmethod
    def of(cls, memory: bytes, now_ns: int) -> Reading | None:
        """What a copy of the board's memory says; None if it is no board of this version."""
        words = memoryview(memory[: len(memory) // 8 * 8]).cast("q")
        if len(words) < at.HEADER or words[0] != at.MAGIC or len(words) < at.HEADER + words[at.LINES] * at.LINE:
            return None
        lines = ((number, words[at.HEADER + number * at.LINE :][: at.LINE]) for number in range(words[at.LINES]))
        return cls(
            now_ns=now_ns,
            begun_ns=words[at.BEGUN],
            about=About(
                words[at.TRAINER],
                words[at.SLOTS],
                words[at.BATCHES_PER_SLOT],
                _text(words[at.SOURCE : at.LAST_DEATH]),
            ),
            assembler=words[at.ASSEMBLER],
            counts=tuple(words[at.COUNTS : at.COUNTS + len(Count)]),
            last_death=_text(words[at.LAST_DEATH : at.HEADER]),
            lines=tuple(_line(number, line, now_ns) for number, line in lines if line[at.BEGAN_ONCE]),
            in_process=not words[at.LINES],
        )


def read_board(board: at.StatusBoard) -> Reading:
    """What this process's own board says now."""
    reading = Reading.of(board.copy(), time.monotonic_ns())
    assert reading is not None  # this process has made the board itself
    return reading


def _line(number: int, words: memoryview, now_ns: int) -> LoaderLine:
    state = LoaderStatus(words).read()
    spent = words[at.SPENT : at.SPENT + len(Activity)].tolist()
    if state.activity is not Activity.ABSENT:
        spent[state.activity] += max(0, now_ns - words[at.SINCE])
    return LoaderLine(
        number,
        state,
        tuple(spent),
        measured_ns=words[at.MEASURED],
        usage=Usage(*words[at.CPU : at.SLOWEST].tolist()),
        slowest=Slowest(*words[at.SLOWEST : at.BEGAN_ONCE].tolist()),
        where=_place(words, at.WHERE, state.sample),
        where_slowest=_place(words, at.WHERE_SLOWEST, words[at.SLOWEST_SAMPLE]),
        node=_text(words[at.WHERE + 1 : at.WHERE + at.TEXT_WORDS]) if words[at.WHERE] == at.ON_NODE else "",
        times=tuple(words[at.TIMES : at.CACHE]),
        cache_counts=CacheCounts(*words[at.CACHE : at.LINE].tolist()),
    )


def _place(words: memoryview, area: int, sample: int) -> str:
    """Where `sample` is stored, if that is what the area tells."""
    return _text(words[area + 1 : area + at.TEXT_WORDS]) if words[area] == sample else ""


def bucket_ns(bucket: int) -> tuple[float, float]:
    """Which times a bucket of `LoaderLine.times` holds: from, and up to."""

    def lower(number: int) -> float:
        return (2 + number % 2) * 2.0 ** (at.SHORTEST_BITS - 2 + number // 2)

    return lower(bucket) if bucket else 0.0, lower(bucket + 1)


def _text(words: memoryview) -> str:
    return bytes(words).rstrip(b"\0").decode("utf-8", "replace")
