"""The reports of a training that runs, and the requests to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

from .solver import Scores, Solver


class Event(NamedTuple):
    """An event of a training: its line, and of a test the net's number and scores; without a line, an iteration."""

    line: str = ""
    test: int = 0
    scores: Scores | None = None


Watcher = Callable[[Event], object]
"""Gets the events of a training as they come."""


def tell(watchers: Iterable[Watcher], event: Event) -> None:
    for watch in watchers:
        watch(event)


class Step(NamedTuple):
    """The numbers of an iteration; speed and stall are those of the time since another one was read."""

    loss: float
    rate: float
    samples_per_s: float
    stall_s: float
    stall_share: float


class Interval:
    """The time since a watcher has read the numbers of an iteration; at first, since it was made."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self._begin = self._now()

    def _now(self) -> tuple[float, int, float]:
        return time.monotonic(), self._solver.samples, self._solver.stall_s()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin[0]

    def read(self) -> Step:
        """Return the numbers of the iteration that is just done, and begin anew. Waits for the device."""
        loss, before = self._solver.loss(), self._begin
        self._begin = self._now()
        seconds, samples, stall_s = (now - then for now, then in zip(self._begin, before, strict=True))
        seconds = max(seconds, 1e-9)
        return Step(loss, self._solver.rate, samples / seconds, stall_s, min(stall_s / seconds, 1.0))


def printing(solver: Solver) -> Watcher:
    """Return a watcher that prints the lines of events, and of every `display`-th iteration its numbers."""
    interval, display, most = Interval(solver), solver.param.display, solver.param.max_iter

    def watch(event: Event) -> None:
        line = event.line
        if not line and display and solver.iteration % display == 0:
            step, of = interval.read(), f"/{most}" if most else ""
            line = (
                f"iteration {solver.iteration}{of}: loss {step.loss:.6g}, rate {step.rate:.6g}, "
                f"{step.samples_per_s:,.0f} samples/s, stall {step.stall_s:.2f} s ({step.stall_share:.1%} of the time)"
            )
        if line:
            print(line, flush=True)

    return watch


@dataclass
class StopRequest:
    """The requests to a training, which looks at them after each iteration: to stop, to save a snapshot."""

    requested: bool = False
    snapshot_wanted: bool = False

    def __call__(self) -> bool:
        return self.requested


@contextmanager
def asked_by_signals(sigint: str = "stop", sighup: str = "snapshot") -> Iterator[StopRequest]:
    """Within its context, signals ask to stop after the iteration, or to save a snapshot, or do nothing.

    A second Ctrl-C (or SIGTERM) after one that asked to stop raises KeyboardInterrupt.
    """
    asked = StopRequest()
    effects: dict[int, str] = {signal.SIGINT: sigint, signal.SIGHUP: sighup, signal.SIGTERM: "stop"}

    def note(number: int, frame: FrameType | None) -> None:
        if effects[number] == "stop":
            asked.requested = True
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, signal.default_int_handler)
            # Written last, so that a reader can rely on it. Not by print: the signal may have interrupted a print,
            # whose buffer cannot be entered twice.
            os.write(2, b"\nstopping after this iteration; press Ctrl-C again to stop at once\n")
        elif effects[number] == "snapshot":
            asked.snapshot_wanted = True

    before = {number: signal.signal(number, note) for number in effects}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
