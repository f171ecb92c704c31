"""The work of a pipeline between two readings of its status board. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from ..workers.transport import BUSY, Activity, Count, Line
from .reading import Reading, bucket_ns


class SlowSample(msgspec.Struct, frozen=True):
    """A sample that took `seconds`, or has taken them so far; the first of `rows` if that many were read together."""

    seconds: float
    index: int
    rows: int
    where: str


class PresentSample(SlowSample, frozen=True):
    """A sample that `loader` is making now."""

    loader: int
    activity: Activity


class Interval(msgspec.Struct, frozen=True):
    """Times in seconds; those of loaders are sums over all loaders."""

    seconds: float
    """Since the first batch at the earliest."""
    batches: int
    samples: int
    stall_s: float
    """The time that the trainer waited, without the wait for the first batch."""
    waiting_s: float
    """The length of its present wait, 0 if it does not wait."""
    begun: bool
    """True after the first batch."""
    loaders: int
    slots: int
    """0 if it is not known."""
    slots_full: int
    deaths: int
    last_death: str
    spent_s: tuple[float, ...]
    """The time of all loaders, by Activity."""
    measured_s: float
    """The part of the loaders' busy time of which it is known that they had a core for `cpu_s`, and wanted one for
    `delay_s`; in the rest they waited for something else."""
    cpu_s: float
    delay_s: float
    median_s: float
    """The median time of a sample since the start; 0 if none is known. With remote loaders alone, that of a task."""
    slowest: SlowSample | None
    """The slowest sample ever, if it fell into this interval. A remote loader reports whole tasks only."""
    present: PresentSample | None
    """The sample that a loader has been busy with for longest."""
    in_process: bool
    """True without loaders: `stall_s` is the time that the trainer has taken to make its batches."""

    @property
    def stall_share(self) -> float:
        return min(1.0, self.stall_s / self.seconds) if self.seconds > 0 else 0.0

    def share(self, activity: Activity) -> float:
        whole = sum(self.spent_s)
        return self.spent_s[activity] / whole if whole else 0.0


def interval(now: Reading, before: Reading | None = None) -> Interval:
    """Return the interval between two readings of the same board; without `before`, the one from the start."""
    first_batch = now.header.counts[Count.FIRST_BATCH_NS]
    from_ns = 0 if before is None else before.now_ns

    def grown(count: Count) -> int:
        return now.header.counts[count] - (0 if before is None else before.header.counts[count])

    stall_ns = _stall_ns(now) - (0 if before is None else _stall_ns(before))
    waiting_since = now.header.counts[Count.WAITING_SINCE]
    loaders = now.lines
    old = {} if before is None else {line.number: line for line in before.lines}
    local = [line for line in loaders if not line.node]
    return Interval(
        seconds=max(0, now.now_ns - max(first_batch or now.header.begun_ns, from_ns)) / 1e9,
        batches=grown(Count.BATCHES),
        samples=grown(Count.SAMPLES),
        stall_s=max(0, stall_ns) / 1e9,
        waiting_s=(now.now_ns - waiting_since) / 1e9 if waiting_since else 0.0,
        begun=bool(first_batch or now.header.counts[Count.BATCHES]),
        loaders=len(now.running),
        slots=now.header.slots,
        slots_full=now.header.counts[Count.SLOTS_FULL],
        deaths=grown(Count.LOADER_DEATHS),
        last_death=now.header.last_death,
        spent_s=tuple(_sum(loaders, old, partial(_spent, each)) for each in Activity),
        measured_s=_sum(loaders, old, lambda line: line.measured_ns),
        cpu_s=_sum(loaders, old, lambda line: line.cpu_ns),
        delay_s=_sum(loaders, old, lambda line: line.delay_ns),
        median_s=median_s([line.times for line in local or loaders]),
        slowest=_slowest(local, from_ns),
        present=_present(now),
        in_process=now.in_process,
    )


def _stall_ns(reading: Reading) -> int:
    counts = reading.header.counts
    since = counts[Count.WAITING_SINCE]
    now_waiting = reading.now_ns - since if since and counts[Count.FIRST_BATCH_NS] else 0
    return counts[Count.WAITED_NS] - counts[Count.START_NS] + now_waiting


def _spent(activity: Activity, line: Line) -> int:
    return line.spent_ns[activity]


def _sum(lines: Sequence[Line], old: dict[int, Line], of: Callable[[Line], int]) -> float:
    total = sum(of(line) - (of(old[line.number]) if line.number in old else 0) for line in lines)
    return max(0, total) / 1e9


def median_s(times: Sequence[Iterable[int]]) -> float:
    """Return the median of all histograms together, in seconds, exact to a few per cent; 0 if they are empty."""
    buckets: list[int] = [sum(counts) for counts in zip(*times, strict=True)]
    wanted: float = sum(buckets) / 2
    for bucket, count in enumerate(buckets):
        if count and wanted <= count:
            low, high = bucket_ns(bucket)
            return (low + (high - low) * wanted / count) / 1e9
        wanted -= count
    return 0.0


def _slowest(lines: Sequence[Line], from_ns: int) -> SlowSample | None:
    line = max(lines, key=lambda line: line.slowest_ns, default=None)
    if line is None or not line.slowest_ns or line.slowest_at_ns < from_ns:
        return None
    sample = line.slowest_sample
    return SlowSample(line.slowest_ns / 1e9, sample, line.slowest_rows, line.place_slowest.of(sample))


def _present(reading: Reading) -> PresentSample | None:
    busy = [line for line in reading.running if line.state.activity in BUSY]
    line = min(busy, key=lambda line: line.state.since, default=None)
    if line is None:
        return None
    state = line.state
    where = line.place.of(state.sample)
    return PresentSample(reading.now_ns / 1e9 - state.since, state.sample, 1, where, state.loader, state.activity)
