"""The file that a trace is written into while the pipeline runs: for each process a ring of its last spans, mapped.

A process that is killed leaves in it what it has written so far, and no process waits for a disk or for another one.
The space is allocated at the start: a full disk is an error then, and not a SIGBUS later.

    header | the trainer's ring | the assembler's ring | one for each line of the status board
    a ring: how many spans were ever written | RECORDS of them, each of 8 words
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from ..base.errors import BlobfeedError, ParameterError
from .status_board import Activity, LoaderStatus

RECORDS: Final = 1 << 15
SUFFIX: Final = ".ring"

_MAGIC: Final = 0x626C_6F62_7472_0001
_HEADER: Final = struct.Struct("8q256s")
_RECORD: Final = struct.Struct("8q")
_POSITION: Final = struct.Struct("q")
_HEADER_BYTES: Final = 4096
_RING_BYTES: Final = _HEADER_BYTES + RECORDS * _RECORD.size
_KIND_BITS: Final = 8
_BATCH: Final = 8
"""In place of a kind: wait, copy and step of a batch."""

_NO_WAIT_NS: Final = 20_000
"""What looking at a batch that is there takes at most: a shorter wait is none."""

_GATHERED_NS: Final = 1_000_000
"""Adjacent spans of the same kind are written as one until that has lasted so long: a record for each sample of some
microseconds would cost more than the sample, and would soon fill the ring."""


class Kind(enum.IntEnum):
    """What a span is. Those of loaders are 16 and its Activity."""

    WAIT = 1
    COPY = 2
    STEP = 3
    TASK = 4
    FILL = 5
    FULL = 6
    DEATH = 7
    START = 16 + Activity.STARTING
    IDLE = 16 + Activity.WAITING
    READ = 16 + Activity.READING
    DECODE = 16 + Activity.DECODING
    POSTPROCESS = 16 + Activity.POSTPROCESSING
    SAMPLE = 16 + Activity.SAMPLING


class Run(NamedTuple):
    """What was traced. `epoch_ns`: what to add to time.monotonic_ns() for nanoseconds since 1970."""

    epoch_ns: int
    trainer: int
    batch_size: int
    slots: int
    batches_per_slot: int
    first_batch: int
    source: str


class Span(NamedTuple):
    """`loader`: for FILL and FULL the slot. What is not known is -1, tasks and rows 0."""

    begun_ns: int
    duration_ns: int
    kind: Kind
    rows: int
    pid: int
    loader: int
    group: int
    task: int
    sample: int


class TraceWriter:
    """One process's ring."""

    def __init__(self, memory: mmap.mmap, ring: int) -> None:
        self._memory = memory
        self._at = _HEADER_BYTES + ring * _RING_BYTES
        (self._written,) = _POSITION.unpack_from(memory, self._at)
        self._pid = os.getpid()

    def write(
        self,
        kind: Kind,
        begun_ns: int,
        ended_ns: int,
        *,
        rows: int = 0,
        loader: int = -1,
        group: int = -1,
        task: int = 0,
        sample: int = -1,
    ) -> None:
        where = self._at + _HEADER_BYTES + self._written % RECORDS * _RECORD.size
        packed = kind | rows << _KIND_BITS
        _RECORD.pack_into(
            self._memory, where, begun_ns, ended_ns - begun_ns, packed, self._pid, loader, group, task, sample
        )
        self._written += 1
        _POSITION.pack_into(self._memory, self._at, self._written)

    def write_batch(self, number: int, step_ns: int, asked_ns: int, there_ns: int, taken_ns: int) -> None:
        """The trainer has taken a batch: for so long it did something else before it asked for it."""
        where = self._at + _HEADER_BYTES + self._written % RECORDS * _RECORD.size
        _RECORD.pack_into(
            self._memory, where, asked_ns, taken_ns - asked_ns, _BATCH, self._pid, -1, number, step_ns, there_ns
        )
        self._written += 1
        _POSITION.pack_into(self._memory, self._at, self._written)


class TraceRing:
    """The whole file; `path` is that of the trace, beside which it lies."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 0)

    @classmethod
    def create(cls, trace: Path, run: Run, lines: int) -> Self:
        """`lines`: of the status board. Raises ParameterError."""
        path = ring_of(trace)
        what = f"parameter 'trace' is {str(trace)!r}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ParameterError(f"{what}: {path} cannot be written: {error.strerror}: name a file that can") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.posix_fallocate(descriptor, 0, _HEADER_BYTES + (2 + lines) * _RING_BYTES)
            ring = cls(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise ParameterError(f"{what}: another pipeline writes into {path}: name a file for each") from None
        except OSError as error:
            os.close(descriptor)
            path.unlink()
            raise ParameterError(f"{what}: no space for {path}: {error.strerror}: name a file elsewhere") from None
        _HEADER.pack_into(ring._memory, 0, _MAGIC, 2 + lines, *run[:-1], run.source.encode()[:256])
        return ring

    def trainer(self) -> TraceWriter:
        return TraceWriter(self._memory, 0)

    def assembler(self) -> TraceWriter:
        return TraceWriter(self._memory, 1)

    def line(self, number: int) -> TraceWriter:
        """For whoever has that line of the status board."""
        return TraceWriter(self._memory, 2 + number)

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)


def ring_of(trace: Path) -> Path:
    return trace.with_name(trace.name + SUFFIX)


def epoch_ns() -> int:
    """What to add to time.monotonic_ns() for nanoseconds since 1970."""
    return time.time_ns() - time.monotonic_ns()


def read_ring(path: Path) -> tuple[Run, Iterator[Span]]:
    """What a ring file holds, also one that is being written; raises BlobfeedError."""
    data = path.read_bytes()
    if len(data) < _HEADER_BYTES or _HEADER.unpack_from(data)[0] != _MAGIC:
        raise BlobfeedError(f"{path} is no trace of this version of blobfeed: expected a file that ends in {SUFFIX}")
    _, rings, epoch, trainer, batch_size, slots, batches_per_slot, first, source = _HEADER.unpack_from(data)
    text = source.rstrip(b"\0").decode(errors="replace")
    return Run(epoch, trainer, batch_size, slots, batches_per_slot, first, text), _spans(data, rings)


def _spans(data: bytes, rings: int) -> Iterator[Span]:
    for ring in range(rings):
        at = _HEADER_BYTES + ring * _RING_BYTES
        (written,) = _POSITION.unpack_from(data, at)
        for number in range(max(0, written - RECORDS), written):
            where = at + _HEADER_BYTES + number % RECORDS * _RECORD.size
            begun, duration, packed, *rest = _RECORD.unpack_from(data, where)
            if packed == _BATCH:
                yield from _of_batch(begun, begun + duration, *rest)
                continue
            yield Span(begun, duration, Kind(packed & 0xFF), packed >> _KIND_BITS, *rest)


def _of_batch(
    asked_ns: int, taken_ns: int, pid: int, _: int, number: int, step_ns: int, there_ns: int
) -> Iterator[Span]:
    """What `write_batch` has put into one record. The step was that of the batch before."""
    if step_ns:
        yield Span(asked_ns - step_ns, step_ns, Kind.STEP, 0, pid, -1, number - 1, 0, -1)
    if there_ns - asked_ns > _NO_WAIT_NS:
        yield Span(asked_ns, there_ns - asked_ns, Kind.WAIT, 0, pid, -1, number, 0, -1)
    yield Span(there_ns, taken_ns - there_ns, Kind.COPY, 0, pid, -1, number, 0, -1)


class TracedStatus(LoaderStatus):
    """A loader's line of the status board that also writes the loader's spans."""

    def __init__(self, words: memoryview, trace: TraceWriter) -> None:
        super().__init__(words)
        self._trace = trace
        self._loader = -1
        self._group = -1
        self._task = 0
        self._task_begun = 0
        self._task_rows = 0
        self._span_begun = 0
        self._span_sample = -1
        self._span_rows = 1
        self._span_activity = 0

    def begin(self, loader: int, pid: int) -> None:
        self._loader = loader
        super().begin(loader, pid)

    def begin_task(self, task: int, group: int = -1, rows: int = 0) -> None:
        super().begin_task(task, group, rows)
        now = time.monotonic_ns()
        if self._task and task != self._task:
            self._end_span(now)
            named = {"loader": self._loader, "group": self._group, "task": self._task}
            self._trace.write(Kind.TASK, self._task_begun, now, rows=self._task_rows, **named)
        if task != self._task:
            self._end_span(now)
            self._task_begun = now
        self._task, self._group, self._task_rows = task, group, rows

    def write(self, activity: int, sample: int = -1, rows: int = 1) -> None:
        super().write(activity, sample, rows)
        now = self._since
        if activity == self._span_activity and now - self._span_begun < _GATHERED_NS:
            self._span_rows += rows
            return
        self._end_span(now)
        self._span_activity, self._span_sample, self._span_rows = activity, sample, rows

    def _end_span(self, now: int) -> None:
        if self._span_activity and now > self._span_begun:
            self._trace.write(
                Kind(16 + self._span_activity),
                self._span_begun,
                now,
                rows=self._span_rows if self._span_sample >= 0 else 0,
                loader=self._loader,
                group=self._group,
                task=self._task,
                sample=self._span_sample,
            )
        self._span_begun, self._span_activity = now, 0
