"""The diagnosis: one sentence that says why the trainer waits, with its reason. Pure."""

from __future__ import annotations

import enum
import math

import msgspec

from ..workers.transport import BUSY, Activity
from .intervals import Interval, SlowSample

STALL_SHARE = 0.05
"""The share of the time that the trainer may wait before something else than the trainer limits the speed."""

MANY_TIMES = 40
"""The multiple of the median from which on a single sample is named."""

_STUCK_S = 2.0
_DEATHS_S = 60.0
"""Loaders die often if there is more than one death in so many seconds."""

_MOST = 0.5
_NO_CORE = 0.3
_MORE_LOADERS = 64

_NET, _NO_GAIN = "the net is the bottleneck", "so faster data gain nothing"

_VERB = {Activity.READING: "read", Activity.DECODING: "decode", Activity.POSTPROCESSING: "postprocess"}


class Blame(enum.StrEnum):
    """The part that limits the speed."""

    STARTING = "starting"
    DEATHS = "deaths"
    STUCK = "stuck"
    TRAINER = "trainer"
    SAMPLE = "sample"
    SAMPLER = "sampler"
    PREFETCH = "prefetch"
    CORES = "cores"
    STORAGE = "storage"
    LOADERS = "loaders"


class Diagnosis(msgspec.Struct, frozen=True):
    blame: Blame
    sentence: str


def diagnose(seen: Interval, cores: int) -> Diagnosis:
    """Return the diagnosis of an interval; `cores`: the cores that the pipeline's processes may use."""
    if seen.in_process:
        blame = Blame.TRAINER if seen.stall_share < STALL_SHARE else Blame.LOADERS
        return Diagnosis(blame, _sentence_in_process(seen.seconds, seen.stall_s))
    if seen.deaths > 1 and seen.seconds < seen.deaths * _DEATHS_S:
        return Diagnosis(
            Blame.DEATHS,
            f"loaders die: {seen.deaths} in {seen.seconds:,.0f} s, the last one: {seen.last_death}",
        )
    present = seen.present
    if present is not None and seen.waiting_s and present.seconds > max(_STUCK_S, MANY_TIMES * seen.median_s):
        times = f", {present.seconds / seen.median_s:,.0f} times the median" if seen.median_s else ""
        return Diagnosis(
            Blame.STUCK,
            f"loader {present.loader} is stuck: it has been in {_VERB[present.activity]} for {present.seconds:.1f} s"
            f"{times}: {_named(present)}; the trainer waits",
        )
    if not seen.begun:
        return Diagnosis(Blame.STARTING, f"starting: there is no batch yet, and {_count(seen.loaders, 'loader')}")
    if seen.stall_share < STALL_SHARE:
        full = f" ({seen.slots_full} of {seen.slots} slots are full)" if seen.slots else ""
        waits = f"it waits {_percent(seen.stall_share)} of the time{full}"
        return Diagnosis(Blame.TRAINER, f"{_NET}: {waits}, {_NO_GAIN}")
    return _of_a_stall(seen, cores)


def _sentence_in_process(seconds: float, making_s: float) -> str:
    """The sentence of a pipeline without loaders: the trainer makes the batches itself, which has taken `making_s`."""
    share = min(1.0, making_s / seconds) if seconds > 0 else 0.0
    if share < STALL_SHARE:
        return f"{_NET}: reading takes {_percent(share)} of each step, {_NO_GAIN}"
    return (
        f"the trainer makes its batches itself, which takes {_percent(share)} of the time: loaders would do that "
        "beside it, if cores are free (num_loaders)"
    )


def _of_a_stall(seen: Interval, cores: int) -> Diagnosis:
    """The trainer waits."""
    waits = f"the trainer waits {_percent(seen.stall_share)} of the time"
    slow = seen.slowest
    if slow is not None and seen.median_s and slow.seconds >= max(MANY_TIMES * seen.median_s, 0.1 * seen.stall_s):
        return Diagnosis(
            Blame.SAMPLE,
            f"one sample takes {slow.seconds / seen.median_s:,.0f} times the median, {slow.seconds:.3g} s: "
            f"{_named(slow)}; {waits}",
        )
    idle = seen.share(Activity.WAITING)
    drawing_s = seen.spent_s[Activity.SAMPLING]
    if idle + seen.share(Activity.SAMPLING) > _MOST and drawing_s > _MOST * seen.seconds:
        return Diagnosis(
            Blame.SAMPLER,
            f"the sampler is the bottleneck: it takes {_percent(drawing_s / seen.seconds)} of the time to draw "
            f"epochs, and {waits}: make it faster, or draw longer epochs",
        )
    if idle > _MOST:
        return Diagnosis(
            Blame.PREFETCH,
            f"too little is prefetched: loaders have no task {_percent(idle)} of their time, and still {waits}: raise "
            "prefetch_batches",
        )
    return _of_busy_loaders(seen, cores, waits)


def _of_busy_loaders(seen: Interval, cores: int, waits: str) -> Diagnosis:
    main = max(BUSY, key=lambda activity: seen.spent_s[activity])
    what, measured = _VERB[main], seen.measured_s
    delay = min(1.0, seen.delay_s / measured) if measured else 0.0
    waiting = max(0.0, 1.0 - (seen.cpu_s + seen.delay_s) / measured) if measured else 0.0
    if delay > max(_NO_CORE, waiting):
        return Diagnosis(
            Blame.CORES,
            f"the cores are the bottleneck: loaders could work and get no core {_percent(delay)} of their time, with "
            f"{_count(seen.loaders, 'loader')} on {_count(cores, 'core')}; {waits}: fewer threads beside them, more "
            f"cores, or less work in {what}",
        )
    if waiting > _MOST:
        whose = "storage is the bottleneck" if main is Activity.READING else f"{what} waits for something else"
        return Diagnosis(
            Blame.STORAGE,
            f"{whose}: {_percent(waiting)} of {what} is waiting and not computing; {waits}: "
            f"{_more(seen, _MORE_LOADERS)} to wait at the same time, or data that lie nearer",
        )
    return Diagnosis(
        Blame.LOADERS,
        f"loaders are the bottleneck: {what} takes {_percent(seen.share(main))} of their time, and {waits}: "
        f"{_advice(seen, cores, what)}",
    )


def _advice(seen: Interval, cores: int, what: str) -> str:
    free = cores - seen.loaders - 1
    if free <= 0:
        return f"no core is free of {cores}, so less work in {what}: smaller pictures, or a cache of what it makes"
    return f"{_more(seen, free)}, or less work in {what}"


def _more(seen: Interval, most: int) -> str:
    """Return in words how many more loaders would do the work in the time in which the trainer does not wait."""
    stalled = min(1.0, seen.stall_s / seen.seconds)
    wanted = math.ceil(max(1, seen.loaders) * stalled / max(1 - stalled, 1 / _MORE_LOADERS))
    return f"{_count(max(1, min(wanted, most)), 'more loader')}"


def _named(slow: SlowSample) -> str:
    if slow.index < 0:
        return "a whole batch"
    among = f"one of {slow.rows} from index {slow.index} on" if slow.rows > 1 else f"index {slow.index}"
    return f"{among}, {slow.where}" if slow.where else among


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.1f} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
