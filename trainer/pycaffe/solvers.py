"""pycaffe's solvers: steps, tests and snapshots as `caffe train` does them, with the nets at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..prototxt import SnapshotFormat
from ..solving import Solver as Training
from ..solving import StopRequest, fix_threads, printing, read_solver, run, train
from . import mode
from .net import Net


class Solver:
    """The solver that `type` in the prototxt names, or the one that the class is named after."""

    type: ClassVar[str | None] = None

    def __init__(self, solver_file: str | Path) -> None:
        document = read_solver(Path(solver_file), self.type)
        self.param: Any = document.message
        if not self.param.HasField("snapshot_format"):
            self.param.snapshot_format = SnapshotFormat.BINARYPROTO  # else no files of Caffe's would be written
        if torch.get_num_threads() >= len(os.sched_getaffinity(0)):  # the user has not asked for fewer
            fix_threads(None)
        self._training = Training(document, mode.apply(self.param))
        self._watchers = [printing(self._training)]
        self.net = Net.of(self._training.train_net)
        self.test_nets = [Net.of(net) for net in self._training.test_nets]
        for net in self.test_nets:
            net.share_with(self.net)

    @property
    def iter(self) -> int:
        """The iterations done."""
        return self._training.iteration

    def step(self, iterations: int) -> None:
        """Train, also past max_iter; test, display and save when the prototxt says so."""
        self._begin()
        if self.param.snapshot:
            self._training.check_snapshots()
        run(self._training, self._watchers, StopRequest(), self.iter + iterations)

    def solve(self, resume: str | Path | None = None) -> None:
        """Train up to max_iter, save and test."""
        self._begin()
        if resume is not None:
            self.restore(resume)
        train(self._training, self._watchers, StopRequest())

    def _begin(self) -> None:
        self.net.upload()
        for net in (self.net, *self.test_nets):
            net.stepwise.forget()

    def add_callback(self, on_start: Callable[[], object], on_gradients_ready: Callable[[], object]) -> None:
        """Have them called in each step, before the forward and before the update; they may write to blobs."""
        self._training.callbacks += [(on_start, on_gradients_ready), (self.net.upload, self.net.upload)]

    def apply_update(self) -> None:
        """Update the weights by their `diff`, after `net.forward()` and `net.backward()`. Counts no iteration."""
        self._begin()
        self._training.update()

    def snapshot(self) -> None:
        """Write `<prefix>_iter_<n>` .caffemodel, .solverstate, and .pt, which also has the position in the data."""
        self.net.upload()
        self._training.check_snapshots()
        self._training.save()

    def restore(self, path: str | Path) -> None:
        """Resume from a .solverstate, a .solverstate.h5 or a .pt."""
        self.net.upload()
        self._training.restore(path)

    def close(self) -> None:
        """Close the Python layers, and the processes of those that have some."""
        self._training.close()


def _solver(kind: str) -> type[Solver]:
    return type(f"{kind}Solver", (Solver,), {"type": kind, "__doc__": f"A solver of type {kind}."})


SGDSolver, NesterovSolver, AdaGradSolver = _solver("SGD"), _solver("Nesterov"), _solver("AdaGrad")
RMSPropSolver, AdaDeltaSolver, AdamSolver = _solver("RMSProp"), _solver("AdaDelta"), _solver("Adam")
get_solver = Solver
