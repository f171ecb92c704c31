"""The reports of a training that runs, and the requests to it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from .solver import Scores, Solver


@dataclass
class Meter:
    """Speed between two readings."""

    time_s: float
    samples: int = 0
    stall_s: float = 0.0

    def read(self, time_s: float, samples: int, stall_s: float) -> tuple[float, float]:
        """Samples per second and the share of the time spent waiting, since the last reading."""
        passed = max(time_s - self.time_s, 1e-9)
        speed, share = (samples - self.samples) / passed, min((stall_s - self.stall_s) / passed, 1.0)
        self.time_s, self.samples, self.stall_s = time_s, samples, stall_s
        return speed, share


class LineReporter:
    """A line every `display` iterations."""

    def __init__(self) -> None:
        self._samples = 0
        self._has_diverged = False
        self._meter = Meter(time.monotonic())

    def stepped(self, solver: Solver) -> None:
        """An iteration is done."""
        self._samples += solver.samples_per_step
        self._show(solver)

    def tested(self, solver: Solver, number: int, scores: Scores) -> None:
        """Test net `number` has been scored."""
        self.say(f"iteration {solver.iteration}: test net {number}: {scores_text(scores)}")

    def _show(self, solver: Solver) -> None:
        display = solver.param.display
        if display and solver.iteration % display == 0:
            last = f"/{solver.param.max_iter}" if solver.param.max_iter else ""
            stall_s = solver.stall_s()
            speed, share = self._meter.read(time.monotonic(), self._samples, stall_s)
            self.say(
                f"iteration {solver.iteration}{last}: loss {self._loss_of(solver):.6g}, "
                f"rate {solver.rate:.6g}, {speed:,.0f} samples/s, stall {stall_s:.2f} s ({share:.1%} of the time)"
            )

    def _loss_of(self, solver: Solver) -> float:
        loss = solver.loss()
        if not math.isfinite(loss) and not self._has_diverged:
            self._has_diverged = True
            self.say(f"iteration {solver.iteration}: the loss is {loss}: lower base_lr, or set clip_gradients")
        return loss

    def say(self, text: str) -> None:
        """Show a line that stays."""
        print(text, flush=True)

    def close(self) -> None:
        """End the reports."""


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


def scores_text(scores: Scores) -> str:
    return ", ".join(f"{name} = {value:.6g}" for name, value in scores.items())
