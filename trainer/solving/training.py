"""What the commands run: training with its tests, snapshots and stops; scoring a trained net."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Self

import torch

from ...workers.base.errors import EndOfData
from ..layer_types.layer import Generators
from ..net.graph import Net
from ..prototxt.errors import PrototxtError
from ..prototxt.phases import State
from ..prototxt.prototxt import read_prototxt
from ..prototxt.schema import NetParameter, Phase
from .caffe_files import read_weights
from .progress import LineReporter
from .solver import Scores, Solver, mean_outputs
from .solver_file import choose_device

_STOPS = (signal.SIGINT, signal.SIGTERM)


class Effect(StrEnum):
    """What a signal does to training."""

    STOP = "stop"
    SNAPSHOT = "snapshot"
    NONE = "none"


class StopRequest:
    """Within its context, signals ask to stop after the iteration, or to save a snapshot, or do nothing.

    A second Ctrl-C (or SIGTERM) after one that asked to stop raises KeyboardInterrupt.
    """

    def __init__(self, sigint: Effect = Effect.STOP, sighup: Effect = Effect.SNAPSHOT) -> None:
        self.requested = False
        self._snapshot_wanted = False
        self._effects: dict[int, Effect] = {signal.SIGINT: sigint, signal.SIGHUP: sighup, signal.SIGTERM: Effect.STOP}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self._effects}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        effect = self._effects[number]
        if effect is Effect.STOP:
            self.requested = True
            for each in _STOPS:
                signal.signal(each, signal.default_int_handler)
            # Written last, so that a reader can rely on it. Not by print: the signal may have interrupted a print,
            # whose buffer cannot be entered twice.
            os.write(2, b"\nstopping after this iteration; press Ctrl-C again to stop at once\n")
        elif effect is Effect.SNAPSHOT:
            self._snapshot_wanted = True

    def take_snapshot(self) -> bool:
        """Whether a snapshot was asked for since the last call."""
        wanted, self._snapshot_wanted = self._snapshot_wanted, False
        return wanted

    def __call__(self) -> bool:
        return self.requested


def train(solver: Solver, reporter: LineReporter, stop: StopRequest) -> None:
    """Train up to max_iter, until the data ends, or until `stop`; then save, unless snapshot_after_train is false."""
    solver.check_snapshots()
    without_effect = list(solver.train_net.without_effect)
    if solver.param.HasField("layer_wise_reduce"):
        without_effect.append("layer_wise_reduce")
    if without_effect:
        reporter.say(f"fields without effect here: {', '.join(without_effect)}")
    run(solver, reporter, stop, solver.param.max_iter)
    _finish(solver, reporter, stop)


def run(solver: Solver, reporter: LineReporter, stop: StopRequest, last: int) -> None:
    """Train up to iteration `last`, until the data ends, or until `stop`, with the tests and snapshots in between."""
    while solver.iteration < last and not stop():
        _test_if_due(solver, reporter, stop)
        if stop():
            break
        try:
            solver.step()
        except EndOfData as end:
            reporter.say(f"the data ended after iteration {solver.iteration}: {end}")
            break
        reporter.stepped(solver)
        if stop.take_snapshot() or solver.snapshot_is_due:
            _save(solver, reporter)


def _finish(solver: Solver, reporter: LineReporter, stop: StopRequest) -> None:
    if stop():
        reporter.say(f"stopped after iteration {solver.iteration}, as asked")
    wanted = stop() or solver.param.snapshot_after_train
    if wanted and not (solver.snapshot_is_due and solver.iteration):
        _save(solver, reporter)
    for name, counted in solver.data_statistics().items():
        if sentence := getattr(counted, "diagnosis", ""):
            reporter.say(f"data of layer {name!r}: {sentence}")
    if not stop():  # last, since scripts take the scores from the last lines
        _test_if_due(solver, reporter, stop)


def _test_if_due(solver: Solver, reporter: LineReporter, stop: StopRequest) -> None:
    if solver.test_is_due:
        for number, scores in enumerate(solver.test(stop)):
            reporter.tested(solver, number, scores)


def _save(solver: Solver, reporter: LineReporter) -> None:
    path = solver.save()
    written = path if not solver.param.HasField("snapshot_format") else f"{path} and {solver.caffe_path('solverstate')}"
    reporter.say(f"snapshot: {written}")


def score_net(
    model: Path, weights: Path, iterations: int, device: str | None = None, level: int = 0, stages: Collection[str] = ()
) -> Scores:
    """The means of the outputs of the net of prototxt `model` in phase TEST, with the weights of a file."""
    loaded = read_weights(weights)
    with contextlib.closing(open_net(model, State(Phase.TEST, level, stages), device)) as net:
        net.load_weights(loaded, str(weights))
        scores = mean_outputs(net, iterations)
        if not scores:
            raise PrototxtError(f"{model}: in phase TEST the net has no output of one number, such as an accuracy")
        return scores


def open_net(model: Path, state: State, device: str | None = None) -> Net:
    """The net of prototxt `model`, whose own `state` comes before the one that is given."""
    document = read_prototxt(model, NetParameter)
    where = choose_device(device)
    return Net(document, state.merged(document.message.state), where, Generators.seeded(0, where))


def choose_threads(asked: int | None, cores: int, environment: Mapping[str, str]) -> int | None:
    """How many threads torch computes with: the last bits of a sum depend on it. None: as OMP_NUM_THREADS says.

    By default all `cores` but one, which is left to the processes that make the data: torch's threads wait for each
    other at every operation, so one that shares its core slows down all. On two busy cores a small net was 3 times
    faster with one thread.
    """
    if asked is not None:
        return asked
    return None if environment.get("OMP_NUM_THREADS") else max(1, cores - 1)


def fix_threads(asked: int | None) -> None:
    """Set torch's number of threads in this process."""
    threads = choose_threads(asked, len(os.sched_getaffinity(0)), os.environ)
    if threads is not None:
        torch.set_num_threads(threads)
