"""A net in training: iterations, tests, and snapshots to resume from."""

from __future__ import annotations

import collections
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ...layers.multi_process_input_layer import MultiProcessInputLayer
from ...workers.base import Closing, EndOfData, close_all
from ..layer_types import DataParameters, Generators, no_data_parameters
from ..net import Net, go_back, read_weights, write_weights
from ..prototxt import Document, SnapshotError, SnapshotFormat, SolverError, SolverParameter
from . import snapshot as snapshots
from .caffe_files import is_caffe_state, read_state, write_state
from .lr_policy import current_step, learning_rate
from .snapshot import Snapshot
from .solver_file import choose_device, read_solver, read_test_nets, read_train_net, snapshot_prefix
from .updates import SOLVER_TYPES

_log = logging.getLogger("blobfeed")


class Scores(dict[str, float]):
    """By output: its mean over the iterations of a test; for each number of an output of several, as `name[0]`."""

    def __str__(self) -> str:
        return ", ".join(f"{name} = {value:.6g}" for name, value in self.items())


_MOST_NUMBERS = 1000
"""The most numbers of a scored output: there may be as many classes, but maps and features say nothing in a line."""


_DataStates = list[dict[str, dict[str, int | str]]]
"""Of each net, by layer, where its data stand."""


class Solver(Closing):
    """Trains the net that a solver prototxt names. Use it as a context manager, or call `close()`.

    The constructor sets up the train net, then the test nets, which share its weights. It starts no processes.
    `device`: "cpu" or "cuda"; with None, solver_mode and the machine decide. `data_parameters`: for the layers of the
    train net that are fed by loaders.
    """

    def __init__(
        self,
        document: Document[SolverParameter],
        device: str | None = None,
        data_parameters: DataParameters = no_data_parameters,
    ) -> None:
        self.document, self.param = document, document.message
        self.prefix = str(snapshot_prefix(self.param.snapshot_prefix, document.path))
        self.device = choose_device(device, self.param)
        self.iteration = 0
        self.callbacks: list[tuple[Callable[[], object], Callable[[], object]]] = []
        """Called in each step: the first before the forward, the second when the gradients are there."""
        self.samples = 0
        """Those that training has taken, since the solver was made."""
        self._has_diverged = False
        self._before_test: tuple[int, _DataStates] = (-1, [])
        """The iteration of the last test that was due, and where its data stood."""
        self._losses: collections.deque[Tensor] = collections.deque(maxlen=self.param.average_loss)
        seed = self.param.random_seed if self.param.random_seed >= 0 else int.from_bytes(os.urandom(4), "little")
        # A run that resumes must find its data in the same order, so that is no accident of the start.
        data_seed = max(0, self.param.random_seed)
        self._generators = Generators.seeded(seed, self.device, data_seed)
        self.test_nets: list[Net] = []
        self.train_net = Net(*read_train_net(document), self.device, self._generators, data_parameters)
        try:
            for source in read_test_nets(document):
                net = Net(*source, self.device, Generators.seeded(seed, self.device, data_seed))
                self.test_nets.append(net)
                net.share_weights(self.train_net)
            for paths in self.param.weights:
                for name in paths.split(","):
                    self.load_weights(document.beside(name.strip()))
        except BaseException:
            self.close()
            raise
        self._updates = SOLVER_TYPES[self.param.type](list(self.train_net.learnt()), self.param)

    @classmethod
    def from_file(cls, path: str | Path, device: str | None = None) -> Self:
        return cls(read_solver(Path(path)), device)

    @property
    def rate(self) -> float:
        """The learning rate of the next update."""
        return learning_rate(self.param, self.iteration)

    @property
    def samples_per_step(self) -> int:
        return self.train_net.batch_size * int(self.param.iter_size)

    def step(self) -> Tensor:
        """One iteration: `iter_size` batches forward and backward, one update. Returns the loss, without axes."""
        self._updates.forget_gradients()
        for on_start, _ in self.callbacks:
            on_start()
        loss = torch.zeros((), device=self.device)
        for _ in range(self.param.iter_size):
            objective = self.train_net.objective()
            if not objective.requires_grad:
                raise SolverError(
                    f"{self.train_net.document.path}: nothing to train: no loss depends on learnt weights"
                )
            go_back([objective], [None])
            loss += objective.detach()
        loss /= self.param.iter_size
        for _, on_gradients_ready in self.callbacks:
            on_gradients_ready()
        self.update()
        self._losses.append(loss)
        self.iteration += 1
        self.samples += self.samples_per_step
        return loss

    def update(self) -> None:
        """Update the weights by their gradients."""
        self._updates.update(self.rate, self.iteration)

    def loss(self) -> float:
        """The mean of the last `average_loss` iterations' losses; waits for the device.

        Raises NetError if a layer has found a number there, such as a label, that it cannot use.
        """
        self.train_net.check()
        loss = float(torch.stack(list(self._losses)).mean()) if self._losses else math.nan
        if self._losses and not (math.isfinite(loss) or self._has_diverged):
            self._has_diverged = True
            _log.warning("iteration %d: the loss is %s: lower base_lr, or set clip_gradients", self.iteration, loss)
        return loss

    def stall_s(self) -> float:
        """Seconds that training has waited for data, summed over the layers that count them."""
        return sum(float(statistics.stall_s) for statistics in self.data_statistics().values())

    def data_statistics(self) -> dict[str, Any]:
        """The statistics of the train net's layers that are fed by loaders, by the layer's name."""
        layers = self.train_net.user_layers().items()
        return {name: layer.statistics() for name, layer in layers if hasattr(layer, "statistics")}

    @property
    def test_is_due(self) -> bool:
        interval = self.param.test_interval
        return bool(interval and self.iteration % interval == 0 and (self.iteration or self.param.test_initialization))

    @property
    def snapshot_is_due(self) -> bool:
        return bool(self.param.snapshot and self.iteration % self.param.snapshot == 0)

    def test(self, give_up: Callable[[], bool] = lambda: False) -> list[Scores]:
        """Each test net's outputs, as means over its test_iter batches; stops early when `give_up` returns true."""
        results = []
        if self.test_is_due:
            self._before_test = self.iteration, [net.data_states() for net in self.test_nets]
        for net, iterations in zip(self.test_nets, self.param.test_iter, strict=True):
            net.share_weights(self.train_net)  # as Caffe does: a script may have given either net other weights
            scores = mean_outputs(net, iterations, give_up, with_loss=self.param.test_compute_loss)
            if scores is None:
                break
            results.append(scores)
        return results

    def check_snapshots(self) -> None:
        """Raises SnapshotError if snapshots could not be written."""
        snapshots.check_writable(self.prefix)

    def save(self) -> Path:
        """Write a snapshot; returns its path. If the solver gives a snapshot_format, write Caffe's files beside it."""
        self.train_net.check()  # nothing is written that wrong labels had a part in
        path, model = Path(f"{self.prefix}_iter_{self.iteration}.pt"), self.caffe_path("caffemodel")
        state = Snapshot(
            iteration=self.iteration,
            history=[each.to("cpu", copy=True) for each in self._history_of_all()],
            learned_net=str(model),
            current_step=current_step(self.param, self.iteration),
            weights=self.train_net.weights(),
            losses=[float(loss) for loss in self._losses],
            train_data=self.train_net.data_states(),
            test_data=self._test_data(),
            dropout={self.device.type: self._generators.dropout.get_state()},
            solver_type=self.param.type,
            fillers=[net.generators.fillers.get_state() for net in (self.train_net, *self.test_nets)],
        )
        snapshots.save(state, path)
        if self.param.HasField("snapshot_format"):
            net = self.train_net
            name, with_diff = net.document.message.name, self.param.snapshot_diff
            write_weights(model, state.weights, net.layers, name, with_diff=with_diff)
            write_state(self.caffe_path("solverstate"), state)
        return path

    def _test_data(self) -> _DataStates:
        """Return where the test data stand, or stood before this iteration's test: whoever resumes here repeats it."""
        iteration, before = self._before_test
        return before if iteration == self.iteration else [net.data_states() for net in self.test_nets]

    def caffe_path(self, kind: str) -> Path:
        """The path of Caffe's "caffemodel" or "solverstate" at this iteration."""
        suffix = ".h5" if self.param.snapshot_format == SnapshotFormat.HDF5 else ""
        return Path(f"{self.prefix}_iter_{self.iteration}.{kind}{suffix}")

    def load_weights(self, path: str | Path) -> None:
        """Begin with the weights in a file, for the layers whose names it has, also those that only test nets have."""
        weights = read_weights(Path(path))
        self.train_net.load_weights(weights, str(path), some=True)
        for net in self.test_nets:
            if net.layers.keys() & weights.keys():
                net.load_weights(weights, str(path), some=True)

    def restore(self, path: str | Path) -> None:
        """Resume from a snapshot or a .solverstate, before the first step; raises SnapshotError.

        A .solverstate does not hold the position in the data: data layers begin at the start, or, with
        `resume: snapshot`, behind the batches of its iterations.
        """
        path = Path(path)
        is_caffes = is_caffe_state(path)
        state = read_state(path) if is_caffes else snapshots.load(path)
        if is_caffes:
            model = Path(state.learned_net)
            if not model.exists():  # it may be relative to where Caffe ran
                model = path.parent / model.name
            self.train_net.load_weights(read_weights(model), str(model))
        else:
            self._check_type(state.solver_type, path)
            self.train_net.check_layers(state.weights, str(path))
            self.train_net.load_weights(state.weights, str(path))
        self._restore_history(state.history, path)
        self._before_test = -1, []
        try:
            self.train_net.load_data_states(state.train_data, str(path))
        except SnapshotError as error:
            raise SnapshotError(
                f"{error}; --weights takes only its weights, and the data begin at their start"
            ) from None
        for net, states in zip(self.test_nets, state.test_data, strict=False):
            try:
                net.load_data_states(states, str(path))
            except SnapshotError as error:  # other test data are no reason to train anew
                _log.warning("%s; the test data stay where they are", error)
        for net, drawn in zip((self.train_net, *self.test_nets), state.fillers, strict=False):
            net.generators.fillers.set_state(drawn)
        if self.device.type in state.dropout:
            self._generators.dropout.set_state(state.dropout[self.device.type])
        self._losses.extend(torch.tensor(loss, device=self.device) for loss in state.losses)
        self.iteration = state.iteration
        if is_caffes:
            self._begin_data(path)

    def _begin_data(self, path: Path) -> None:
        """Have the layers with `resume: snapshot` go on at the iteration of `path`; warn if others could elsewhere."""
        begun_anew = set(self.train_net.data_states())
        for name, layer in self.train_net.user_layers().items():
            if isinstance(layer, MultiProcessInputLayer) and layer.plan.parameters.resume == "snapshot":
                said, taken = layer.plan.parameters.batches_per_iteration, self.param.iter_size
                if said != taken:
                    raise SnapshotError(
                        f"{path}: layer {name!r} has batches_per_iteration: {said} and the solver iter_size: {taken}, "
                        f"so its data would go on elsewhere: set batches_per_iteration: {taken} in its param_str"
                    )
                layer.restore(self.iteration)
                begun_anew.discard(name)
        ours = path.with_name(path.name.partition(".solverstate")[0] + ".pt")
        if begun_anew and ours.exists():
            _log.warning(
                "%s does not hold the position in the data, which begin at their start; to go on where they stood, "
                "resume from %s",
                *(path, ours),
            )

    def _check_type(self, stored: str, path: Path) -> None:
        own = self.param.type
        if stored and stored != own and {stored, own} != {"SGD", "Nesterov"}:  # those two keep the same history
            raise SnapshotError(
                f"{path} was made by a solver of type {stored}, and this one is of type {own}, which cannot go on from "
                f'its history: set type: "{stored}", or begin anew with its weights (--weights)'
            )

    def _history_of_all(self) -> list[Tensor]:
        """The history as Caffe keeps it: zeros for weights that are not learnt."""
        histories = iter(self._updates.history)
        every = self.train_net.all_weights() * self._updates.histories
        return [next(histories) if weights.requires_grad else torch.zeros_like(weights) for weights in every]

    def _restore_history(self, history: list[Tensor], path: Path) -> None:
        every = self.train_net.all_weights() * self._updates.histories
        if len(history) != len(every):
            raise SnapshotError(
                f"{path} holds {len(history)} blobs of history, but a solver of type {self.param.type} has "
                f"{len(every)} for the net of {self.train_net.document.path}"
            )
        learnt = [stored for stored, weights in zip(history, every, strict=True) if weights.requires_grad]
        for own, stored in zip(self._updates.history, learnt, strict=True):
            if own.numel() != stored.numel():
                raise SnapshotError(
                    f"{path} holds a history of shape {tuple(stored.shape)} for weights of shape {tuple(own.shape)} in "
                    f"the net of {self.train_net.document.path}: it was made with another net"
                )
            own.copy_(stored.reshape(own.shape))

    def close(self) -> None:
        """End what the nets' layers have running."""
        close_all(*(net.close for net in (self.train_net, *self.test_nets)))


@torch.no_grad()
def mean_outputs(
    net: Net, iterations: int, give_up: Callable[[], bool] = lambda: False, *, with_loss: bool = False
) -> Scores | None:
    """The means of a net's outputs over `iterations` batches, or fewer if the data ends.

    `with_loss`: also the mean of the objective, as "total loss". None if `give_up` became true before the end. Raises
    EndOfData if there is no batch at all.
    """
    sums: dict[str, Tensor] = {}
    left_out: set[str] = set()
    """Outputs with too many numbers in any batch, or whose shape changes, so that their numbers have no means."""
    for seen in range(iterations):
        if give_up():
            return None
        try:
            objective = net.objective()
        except EndOfData:
            if not seen:
                raise
            iterations = seen
            break
        for name, output in {**net.outputs(), **({"total loss": objective} if with_loss else {})}.items():
            if output.numel() > _MOST_NUMBERS or sums.get(name, output).shape != output.shape:
                left_out.add(name)
            else:
                sums[name] = sums.get(name, 0.0) + output
    net.check()
    totals = numbers_of({name: total for name, total in sums.items() if name not in left_out})
    return Scores({name: total / iterations for name, total in totals.items()})


def numbers_of(outputs: Mapping[str, Tensor]) -> Scores:
    """Return each number of the outputs that have up to 1000: `loss`, or `per_class[0]`, `per_class[1]` and so on."""
    found = Scores()
    for name, output in outputs.items():
        if output.numel() == 1:
            found[name] = float(output)
        elif output.numel() <= _MOST_NUMBERS:
            found |= {f"{name}[{nth}]": number for nth, number in enumerate(output.flatten().tolist())}
    return found
