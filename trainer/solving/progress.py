"""The reports of a training that runs, and the requests to it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ...workers.base import close_all
from .solver import Solver


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


EVENTS = {
    "unread options": "--iterations and --phase change nothing in training: max_iter says how long it takes",
    "unread fields": "fields without effect here: {fields}",
    "step": "iteration {iteration}{last}: loss {loss:.6g}, rate {rate:.6g}, {samples_per_s:,.0f} samples/s, "
    "stall {stall_s:.2f} s ({stall_share:.1%} of the time)",
    "divergence": "iteration {iteration}: the loss is {loss}: lower base_lr, or set clip_gradients",
    "test": "iteration {iteration}: test net {number}: {scores}",
    "snapshot": "snapshot: {files}",
    "end of data": "the data ended after iteration {iteration}: {reason}",
    "stop": "stopped after iteration {iteration}, as asked",
    "diagnosis": "data of layer {layer!r}: {sentence}",
}
"""Everything that a training reports: by kind of event, its line, with the names of its values."""


class Output:
    """A place that events go to. This one prints their lines: of the steps, one every `display` iterations."""

    def __init__(self) -> None:
        self.meter = Meter(time.monotonic())

    def takes_step(self, solver: Solver) -> bool:
        """True if the iteration that is just done is to be put."""
        display = solver.param.display
        return bool(display and solver.iteration % display == 0)

    def put(self, kind: str, values: Mapping[str, Any]) -> None:
        """Take an event of EVENTS."""
        print(EVENTS[kind].format(**values), flush=True)

    def close(self) -> None:
        """End the output."""


class Reporter:
    """Hands the events of a training to `outputs`."""

    def __init__(self, *outputs: Output) -> None:
        self._outputs = outputs
        self._samples = 0
        self._has_diverged = False

    def put(self, kind: str, **values: object) -> None:
        for output in self._outputs:
            output.put(kind, values)

    def stepped(self, solver: Solver) -> None:
        """Report the iteration that is just done to the outputs that take it; only that waits for the device."""
        self._samples += solver.samples_per_step
        for output in self._outputs:
            if output.takes_step(solver):
                self._put_step(solver, output)

    def _put_step(self, solver: Solver, output: Output) -> None:
        iteration, loss, stall_s = solver.iteration, solver.loss(), solver.stall_s()
        if not math.isfinite(loss) and not self._has_diverged:
            self._has_diverged = True
            self.put("divergence", iteration=iteration, loss=loss)
        speed, share = output.meter.read(time.monotonic(), self._samples, stall_s)
        values = {"iteration": iteration, "loss": loss, "rate": solver.rate, "samples_per_s": speed}
        last = f"/{solver.param.max_iter}" if solver.param.max_iter else ""
        output.put("step", {**values, "last": last, "stall_s": stall_s, "stall_share": share})

    def close(self) -> None:
        close_all(*(output.close for output in self._outputs))


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
