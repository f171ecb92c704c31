"""The loop around a solver: when to test, to save and to stop."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Self

from ...workers.base.errors import EndOfData
from .progress import Reporter, scores_text
from .solver import Solver

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Within its context the first Ctrl-C (or SIGTERM) is a wish to stop; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for each in _SIGNALS:
            signal.signal(each, signal.default_int_handler)
        # After that, so that whoever has read it can rely on it. And not by print: the signal may have come in the
        # middle of one, and a buffer is not entered twice.
        os.write(2, b"\nstopping after this iteration; once more (Ctrl-C) stops at once\n")

    def __call__(self) -> bool:
        return self.requested


def train(solver: Solver, reporter: Reporter, stop: StopRequest) -> None:
    """Train up to max_iter, until the data ends, or until `stop`; a snapshot is left unless the solver declines it."""
    solver.check_snapshots()
    while solver.iteration < solver.param.max_iter and not stop():
        _test_if_due(solver, reporter, stop)
        if stop():
            break
        try:
            solver.step()
        except EndOfData as end:
            reporter.say(f"the data ended after iteration {solver.iteration}: {end}")
            break
        reporter.stepped(solver)
        if solver.snapshot_is_due:
            _save(solver, reporter)
    _finish(solver, reporter, stop)


def _finish(solver: Solver, reporter: Reporter, stop: StopRequest) -> None:
    if stop():
        reporter.say(f"stopped after iteration {solver.iteration}, as asked")
    wanted = stop() or solver.param.snapshot_after_train
    if wanted and not (solver.snapshot_is_due and solver.iteration):
        _save(solver, reporter)
    if not stop():
        _test_if_due(solver, reporter, stop)


def _test_if_due(solver: Solver, reporter: Reporter, stop: StopRequest) -> None:
    if solver.test_is_due:
        for number, scores in enumerate(solver.test(stop)):
            reporter.say(f"iteration {solver.iteration}: test net {number}: {scores_text(scores)}")


def _save(solver: Solver, reporter: Reporter) -> None:
    reporter.say(f"snapshot: {solver.save()}")
