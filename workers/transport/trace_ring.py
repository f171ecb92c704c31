"""The file that a trace is written into while the pipeline runs: for each process a ring of its last spans, mapped.

A process that is killed leaves in it what it has written so far, and no process waits for a disk or for another one.
The space is allocated at the start: a full disk is an error then, and not a SIGBUS later.

    header | the trainer's ring | the assembler's ring | one for each loader of this machine | the sampler's
    a ring: how many spans were ever written | RECORDS of them, each of 8 words
"""

from __future__ import annotations

import enum
import fcntl
import itertools
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from ..base.errors import BlobfeedError, ParameterError
from ..base.files import allocate, check_replaceable
from .status_board import SAMPLE, About, Activity, LoaderStatus

RECORDS: Final = 1 << 15
SUFFIX: Final = ".ring"

_MAGIC: Final = 0x626C_6F62_7472_0003
_HEADER: Final = struct.Struct("7q256s")
_RECORD: Final = struct.Struct("8q")
_RECORD_BYTES: Final = _RECORD.size
_HEADER_BYTES: Final = 4096
_RING_BYTES: Final = _HEADER_BYTES + RECORDS * _RECORD_BYTES
_KIND_BITS: Final = 8
_WRITTEN: Final = [int(activity) for activity in Activity if activity not in (Activity.ABSENT, Activity.WAITING)]
_ORDERS: Final = tuple(tuple(sorted(_WRITTEN, key=first.__ne__)) for first in map(int, Activity))
"""All activities that are written, each of them once in front."""

_DECODING: Final = int(Activity.DECODING)

_LINES: Final = 2
"""The first ring of a line of the status board."""

NO_WAIT_NS: Final = 20_000
"""What looking at a batch that is there takes at most: a shorter wait is none."""

_GATHERED_NS: Final = 2_000_000
"""A loader's spans of the same kind are written as one until so long has passed: a record for each sample of some
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
    TAKEN = 8
    """The trainer has taken the first batch of a slot: three spans in one record, which is in the file alone. It begins
    when the batch was asked for and ends when it was taken; `group` is the batch's number, `task` how long the step
    before took, and `sample` when the batch was there, both in nanoseconds."""
    SLOT = 9
    """A fill and a full in one record, which is in the file alone; `sample` says when the one became the other."""
    END = 10
    """The trainer has closed the pipeline, and `group` would have been the next batch: in the file alone, too."""
    START = 16 + Activity.STARTING
    IDLE = 16 + Activity.WAITING
    READ = 16 + Activity.READING
    DECODE = 16 + Activity.DECODING
    POSTPROCESS = 16 + Activity.POSTPROCESSING
    SAMPLE = 16 + Activity.SAMPLING


class Run(NamedTuple):
    """What was traced. `epoch_ns`: what to add to time.monotonic_ns() for nanoseconds since 1970."""

    epoch_ns: int
    first_batch: int
    about: About


class Span(NamedTuple):
    """For FILL and FULL `loader` is the slot, and `task` how many batches it has. What is not known is -1, tasks and
    rows 0."""

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

    def __init__(self, words: memoryview, ring: int) -> None:
        self._words = words
        self._position = (_HEADER_BYTES + ring * _RING_BYTES) // 8
        self._first = 8 * self._position + _HEADER_BYTES
        self._written = words[self._position]
        self._pid = os.getpid()

    def write(
        self,
        kind: int,
        begun_ns: int,
        ended_ns: int,
        rows: int = 0,
        loader: int = -1,
        group: int = -1,
        task: int = 0,
        sample: int = -1,
    ) -> None:
        written = self._written
        _RECORD.pack_into(
            self._words, self._first + written % RECORDS * _RECORD_BYTES, begun_ns, ended_ns - begun_ns,
            kind | rows << _KIND_BITS, self._pid, loader, group, task, sample,
        )  # fmt: skip
        self._words[self._position] = self._written = written + 1


class TraceRing:
    """The whole file; `path` is that of the trace, beside which it lies."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 0)
        self._words = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, trace: Path, run: Run, lines: int) -> Self:
        """`lines`: how many loaders this machine has at most, and one for the sampler. Raises ParameterError."""
        path = ring_of(trace)
        what = f"parameter 'trace' is {str(trace)!r}"
        try:
            check_replaceable(path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ParameterError(f"{what}: {path} cannot be written: {error.strerror}: name a file that can") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            allocate(descriptor, _HEADER_BYTES + (_LINES + lines) * _RING_BYTES)
            ring = cls(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise ParameterError(f"{what}: another pipeline writes into {path}: name a file for each") from None
        except OSError as error:
            os.close(descriptor)
            path.unlink()
            raise ParameterError(f"{what}: no space for {path}: {error.strerror}: name a file elsewhere") from None
        *numbers, source = run.about
        _HEADER.pack_into(
            ring._memory, 0, _MAGIC, _LINES + lines, run.epoch_ns, *numbers, run.first_batch, source.encode()[:256]
        )
        return ring

    def trainer(self) -> TraceWriter:
        return TraceWriter(self._words, 0)

    def assembler(self) -> TraceWriter:
        return TraceWriter(self._words, 1)

    def line(self, number: int) -> TraceWriter:
        """For the loader with that line of the status board; the last one is for the sampler."""
        return TraceWriter(self._words, _LINES + number)

    def close(self) -> None:
        self._words.release()
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
    _, rings, epoch, trainer, slots, batches_per_slot, first, source = _HEADER.unpack_from(data)
    if len(data) < (whole := _HEADER_BYTES + rings * _RING_BYTES):
        raise BlobfeedError(f"{path} is cut short: it has {len(data):,} of {whole:,} bytes; copy it to its end")
    about = About(trainer, slots, batches_per_slot, source.rstrip(b"\0").decode(errors="replace"))
    trainers, assembler, *lines = (_records(data, ring) for ring in range(rings))
    of_trainer = _of_trainer(list(trainers), batches_per_slot)
    spans = itertools.chain(of_trainer, _of_slots(assembler), *map(_with_tasks, lines))
    return Run(epoch, first, about), spans


def _records(data: bytes, ring: int) -> Iterator[Span]:
    at = _HEADER_BYTES + ring * _RING_BYTES
    written = int.from_bytes(data[at : at + 8], sys.byteorder)
    # The place of the oldest is the one that is being written, or was when its process was killed.
    for number in range(max(0, written - RECORDS + 1), written):
        where = at + _HEADER_BYTES + number % RECORDS * _RECORD_BYTES
        begun, duration, packed, *rest = _RECORD.unpack_from(data, where)
        yield Span(begun, duration, Kind(packed & 0xFF), packed >> _KIND_BITS, *rest)


def _with_tasks(parts: Iterable[Span]) -> Iterator[Span]:
    """`parts` of tasks, and what they tell: how long each task took, and that the loader had none in between."""
    pid, ended = 0, 0
    for (its_pid, task), group in itertools.groupby(parts, lambda span: (span.pid, span.task)):
        listed = list(group)
        first, last = listed[0], listed[-1]
        if task:
            if pid == its_pid and first.begun_ns > ended:
                idle_ns = first.begun_ns - ended
                yield Span(ended, idle_ns, Kind.IDLE, rows=0, pid=pid, loader=first.loader, group=-1, task=0, sample=-1)
            duration_ns = last.begun_ns + last.duration_ns - first.begun_ns
            yield first._replace(duration_ns=duration_ns, kind=Kind.TASK, rows=0, sample=-1)
        yield from listed
        pid, ended = its_pid, last.begun_ns + last.duration_ns


def _of_trainer(records: Sequence[Span], in_slot: int) -> Iterator[Span]:
    """What lies in records of the kind TAKEN. The step was that of the record before; `rows`: of batches.

    If the trainer died, its last record stands for what was left of its slot; the first one is of a slot's first batch,
    if none was overwritten.
    """
    before, its_batches = 0, in_slot
    first = next((record.group for record in records if record.kind is Kind.TAKEN), 0)
    for record, after in itertools.zip_longest(records, records[1:]):
        if record.kind is Kind.END:
            yield record._replace(kind=Kind.STEP, group=before, rows=its_batches)
            continue
        if record.kind is not Kind.TAKEN:
            yield record
            continue
        number, step_ns, there_ns = record.group, record.task, record.sample
        asked_ns, taken_ns = record.begun_ns, record.begun_ns + record.duration_ns
        batches = in_slot - (number - first) % in_slot if after is None else max(1, after.group - number)
        span = record._replace(rows=batches, task=0, sample=-1)
        if step_ns:
            yield span._replace(
                begun_ns=asked_ns - step_ns, duration_ns=step_ns, kind=Kind.STEP, group=before, rows=its_batches
            )
        if there_ns - asked_ns > NO_WAIT_NS:
            yield span._replace(duration_ns=there_ns - asked_ns, kind=Kind.WAIT)
        yield span._replace(begun_ns=there_ns, duration_ns=taken_ns - there_ns, kind=Kind.COPY)
        before, its_batches = number, batches


def _of_slots(records: Iterable[Span]) -> Iterator[Span]:
    for record in records:
        if record.kind is not Kind.SLOT:
            yield record
            continue
        begun_ns, full_ns, end_ns = record.begun_ns, record.sample, record.begun_ns + record.duration_ns
        span = record._replace(sample=-1)
        yield span._replace(kind=Kind.FILL, duration_ns=full_ns - begun_ns)
        yield span._replace(kind=Kind.FULL, begun_ns=full_ns, duration_ns=end_ns - full_ns)


class TracedStatus(LoaderStatus):
    """A loader's line of the status board that also writes the loader's spans.

    It looks at the times that the line adds up anyway, when a task begins or ends and about every two milliseconds: so
    `write`, which is called for each sample, costs nothing more. What was shorter is gathered.
    """

    def __init__(self, words: memoryview, trace: TraceWriter) -> None:
        super().__init__(words)
        self._trace = trace
        self._loader = -1
        self._group = -1
        self._task = 0
        self._next_board_ns = 0
        self._from_ns = 0
        """What happened before is written, or not worth it. 0: nothing happens until the next `write`."""
        self._first = 0
        """What the loader did first from then on, with which samples."""
        self._first_sample = -1
        self._first_rows = 1
        self._seen = [0] * len(Activity)
        """Of the line's times, what is written."""
        self._seen_samples = 0
        self._long_ns = _GATHERED_NS

    def begin(self, loader: int, pid: int) -> None:
        self._loader = loader
        super().begin(loader, pid)

    def begin_task(self, task: int, group: int = -1) -> None:
        super().begin_task(task, group)
        if task == self._task:
            return
        if self._task:
            now = time.monotonic_ns()
            if now - self._since > self._long_ns:
                self._note_long()
            self._write_spans(now)
        self._task, self._group = task, group
        self._from_ns, self._next_sum = 0, 0 if task else self._next_board_ns

    def _note_long(self) -> None:
        """A slow sample is a span of its own: gathered with those before it, it would have the name of the first."""
        if 0 < self._from_ns < self._since:
            self._write_spans(self._since)
            self._begin_spans(self._since)

    def _sum_up(self, now: int) -> None:
        self._write_spans(now)
        if now > self._next_board_ns:
            super()._sum_up(now)
            self._next_board_ns, self._seen_samples = self._next_sum, 0
        self._next_sum = now + _GATHERED_NS
        self._begin_spans(now)

    def _begin_spans(self, now: int) -> None:
        self._from_ns, self._first, self._first_rows = now, self._activity, self._rows
        self._first_sample = self._words[SAMPLE]
        self._seen = self._spent.copy()

    def _write_spans(self, now: int) -> None:
        """Each kind of work since the last call as one span, the one that was first in front."""
        if not (begun := self._from_ns):
            return
        seen, spent, first = self._seen, self._spent.copy(), self._first
        spent[self._activity] += now - self._since
        rows = self._samples_since(now) if spent[_DECODING] > seen[_DECODING] else self._first_rows
        for activity in _ORDERS[first]:
            if took := spent[activity] - seen[activity]:
                sample = self._first_sample if activity in (first, _DECODING) else -1
                self._trace.write(
                    16 + activity, begun, begun + took, rows if sample >= 0 else 0, self._loader, self._group,
                    self._task, sample,
                )  # fmt: skip
                begun += took

    def _samples_since(self, now: int) -> int:
        """How many have been decoded since the last call."""
        samples = sum(self._times)
        if self._activity == _DECODING and now > self._since:
            samples += 1  # the last one of a task is counted when something else begins
        before, self._seen_samples = self._seen_samples, samples
        return samples - before
