"""Training with its tests, snapshots and stops; scoring a trained net."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ...workers.base import EndOfData
from ..layer_types import Generators
from ..net import Net, read_weights
from ..prototxt import Phase, PrototxtError
from .progress import Event, StopRequest, Watcher, tell
from .solver import Scores, Solver, mean_outputs
from .solver_file import choose_device


def train(solver: Solver, watchers: Sequence[Watcher], stop: StopRequest) -> None:
    """Train up to max_iter, until the data ends, or until `stop`; then save, unless snapshot_after_train is false."""
    if not solver.param.HasField("max_iter"):  # only a script that counts its steps does without
        raise solver.document.error("max_iter is needed")
    solver.check_snapshots()
    without_effect = list(solver.train_net.without_effect)
    if solver.param.HasField("layer_wise_reduce"):
        without_effect.append("layer_wise_reduce")
    if without_effect:
        tell(watchers, Event(f"fields without effect here: {', '.join(without_effect)}"))
    has_ended = True
    with _until_end_of_data(solver, watchers):
        has_ended = run(solver, watchers, stop, solver.param.max_iter)
    _finish(solver, watchers, stop)
    # Last, since scripts take the scores from the last lines. Where the data has ended, `run` has tested.
    if not (stop() or has_ended):
        with _until_end_of_data(solver, watchers):
            _test_if_due(solver, watchers, stop)


def run(solver: Solver, watchers: Sequence[Watcher], stop: StopRequest, last: int) -> bool:
    """Train up to iteration `last`, until the data ends, or until `stop`, with the tests and snapshots in between.

    Returns whether the data has ended. Raises EndOfData if that of a test has.
    """
    while solver.iteration < last and not stop():
        _test_if_due(solver, watchers, stop)
        if stop():
            break
        try:
            solver.step()
        except EndOfData as end:
            _tell_end(solver, watchers, end)
            return True
        tell(watchers, Event())
        if stop.snapshot_wanted or solver.snapshot_is_due:
            stop.snapshot_wanted = False
            _save(solver, watchers)
    return False


@contextlib.contextmanager
def _until_end_of_data(solver: Solver, watchers: Sequence[Watcher]) -> Iterator[None]:
    """Reports the end of a test's data, where this block ends."""
    try:
        yield
    except EndOfData as end:
        _tell_end(solver, watchers, end)


def _tell_end(solver: Solver, watchers: Sequence[Watcher], reason: EndOfData) -> None:
    tell(watchers, Event(f"the data ended after iteration {solver.iteration}: {reason}"))


def _finish(solver: Solver, watchers: Sequence[Watcher], stop: StopRequest) -> None:
    if stop():
        tell(watchers, Event(f"stopped after iteration {solver.iteration}, as asked"))
    wanted = stop() or solver.param.snapshot_after_train
    if wanted and not (solver.snapshot_is_due and solver.iteration):
        _save(solver, watchers)
    for name, counted in solver.data_statistics().items():
        if sentence := getattr(counted, "diagnosis", ""):
            tell(watchers, Event(f"data of layer {name!r}: {sentence}"))


def _test_if_due(solver: Solver, watchers: Sequence[Watcher], stop: StopRequest) -> None:
    if solver.test_is_due:
        for number, scores in enumerate(solver.test(stop)):
            line = f"iteration {solver.iteration}: test net {number}: {scores}"
            tell(watchers, Event(line, number, scores))


def _save(solver: Solver, watchers: Sequence[Watcher]) -> None:
    path = solver.save()
    written = path if not solver.param.HasField("snapshot_format") else f"{path} and {solver.caffe_path('solverstate')}"
    tell(watchers, Event(f"snapshot: {written}"))


def score_net(
    model: Path, weights: Path, iterations: int, device: str | None = None, level: int = 0, stages: Collection[str] = ()
) -> Scores:
    """The means of the outputs of the net of prototxt `model` in phase TEST, with the weights of a file."""
    loaded, where = read_weights(weights), choose_device(device)
    net = Net(model, Phase.TEST, where, Generators.seeded(0, where), level=level, stages=stages)
    with contextlib.closing(net):
        net.load_weights(loaded, str(weights))
        scores = mean_outputs(net, iterations)
        if not scores:
            raise PrototxtError(
                f"{model}: in phase TEST the net has no output of up to 1000 numbers, such as an accuracy"
            )
        return scores
