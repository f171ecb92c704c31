"""A net: the layers of a prototxt that its phase includes, run in the order in which they are written.

It is a torch module. Each layer with weights is a submodule under its own name, so `state_dict()` has Caffe's names
with numbers: "conv1.0", "conv1.1".
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...layers.multi_process_input_layer import MultiProcessInputLayer
from ...layers.torch_blob import Blob
from ...workers.base import ParameterError, close_all
from .. import layer_types  # noqa: F401  registers the layer types
from ..layer_types import (
    LAYER_TYPES,
    DataParameters,
    Generators,
    Layer,
    LayerContext,
    PythonLayer,
    Tensors,
    no_data_parameters,
    significant,
)
from ..prototxt import Document, NetError, NetParameter, NetState, Phase, SnapshotError, included_layers, read_prototxt
from .model_files import read_weights
from .weights import WeightEntry, Weights
from .wiring import check_wiring, without_effect

Call = Callable[[Layer, Sequence[Tensor]], Tensors]
"""Runs a layer over its bottoms; returns its tops."""


class Step:
    """One layer's part of a forward, looked up once instead of at every iteration."""

    def __init__(self, layer: Layer, bottoms: Sequence[Blob], tops: Sequence[Blob]) -> None:
        self.layer = layer
        self.bottoms = list(layer.param.bottom)
        self.tops = list(zip(layer.param.top, tops, loss_weights(layer), strict=True))
        """The name, the blob and the loss weight of each top."""
        self.stopped = [nth for nth, goes_on in enumerate(layer.param.propagate_down) if not goes_on]
        self.forced = [nth for nth, goes_on in enumerate(layer.param.propagate_down) if goes_on]
        """Bottoms that get a gradient, also if they depend on no weights."""
        self.begins_graph = layer.context.net.message.force_backward and not self.bottoms
        self.shapes: list[torch.Size] | None = [torch.Size(blob.shape) for blob in bottoms]
        self.takes_inputs = not self.bottoms and not layer.blobs
        """The caller of the net may give its tops instead."""

    def run(self, values: dict[str, Tensor], call: Call | None = None, *, is_traced: bool = False) -> Tensors:
        bottom = [values[name] for name in self.bottoms]
        shapes = [tensor.shape for tensor in bottom]
        if not is_traced and shapes != self.shapes:
            self.layer.top_shapes(*map(tuple, shapes))  # raises if these rows do not fit
            self.shapes = shapes
        for nth in self.stopped:
            bottom[nth] = bottom[nth].detach()
        for nth in self.forced:
            bottom[nth] = with_gradient(bottom[nth])
        tops: Tensors = call(self.layer, bottom) if call else self.layer(*bottom)
        return tuple(map(with_gradient, tops)) if self.begins_graph else tops


class Net(nn.Module):
    """A torch module with `blobs` by name and `layers` in order: `net(data=images)` gives its outputs by name.

    `prototxt`: a file. `phase`: "TRAIN" or "TEST", which chooses the layers; after that, `train()` and `eval()` change
    only Dropout, BatchNorm and stochastic pooling, as in torch. `weights`: a .caffemodel, its HDF5 form, a snapshot or
    a state_dict, for the layers whose names it has; the others begin with what their fillers draw, from torch's own
    random numbers unless `generators` are given. Raises PrototxtError, at the line of what is wrong; SnapshotError if
    the weights do not fit.
    """

    def __init__(
        self,
        prototxt: str | Path | Document[NetParameter],
        phase: str | Phase | NetState,
        device: str | torch.device = "cpu",
        generators: Generators | None = None,
        data_parameters: DataParameters = no_data_parameters,
        *,
        level: int = 0,
        stages: Iterable[str] = (),
        weights: str | Path | None = None,
    ) -> None:
        super().__init__()
        document = prototxt if isinstance(prototxt, Document) else read_prototxt(Path(prototxt), NetParameter)
        state = phase if isinstance(phase, NetState) else _state(document, phase, level, stages)
        if generators is None:
            generators = Generators.seeded(int(torch.randint(2**31, ())), torch.device(device))
        self.training = state.phase == Phase.TRAIN
        positions = included_layers(document, state)
        own = [document.message.layer[position] for position in positions]
        phases = [Phase(layer.phase) if layer.HasField("phase") else state.phase for layer in own]
        contexts = [
            LayerContext(document, position, phase, generators, data_parameters)
            for position, phase in zip(positions, phases, strict=True)
        ]
        check_wiring(contexts)
        if document.message.debug_info:
            raise document.error("debug_info is not supported: leave it out", "debug_info")
        self.without_effect = without_effect(contexts)
        """Fields that are set but change nothing here."""
        self.document = document
        self.generators = generators
        self.blobs: dict[str, Blob] = {}
        self.layers: dict[str, Layer] = {}
        self.values: dict[str, Tensor] = {}
        """The tensors of the last forward, by blob, with autograd's graph."""
        self.steps: list[Step] = []
        """One for each layer, in order."""
        self._weights = Weights()
        self._feeders: dict[str, MultiProcessInputLayer] = {}
        try:
            for context in contexts:
                self._add(context)
            if weights is not None:
                self.load_weights(read_weights(Path(weights)), str(weights), some=True)
        except BaseException:
            self.close()  # layers above the one that failed may already hold something
            raise
        self.output_names = _outputs(list(self.layers.values()))
        self.loss_weights = {name: weight for step in self.steps for name, _, weight in step.tops}
        """By blob: its share in the objective."""
        weighted = {name for name, weight in self.loss_weights.items() if weight}
        self._returned = sorted({*self.output_names} | weighted)

    def _add(self, context: LayerContext) -> None:
        layer = LAYER_TYPES[context.param.type](context)
        layer.feeders = self._feeders
        if isinstance(layer, PythonLayer) and isinstance(layer.user_layer, MultiProcessInputLayer):
            self._feeders.update(dict.fromkeys(context.param.top, layer.user_layer))
        key = context.param.name
        while key in self.layers:  # both losses of Caffe's autoencoder are called "loss"
            key += "'"
        self.layers[key] = layer
        self._register(key, layer)
        for name in context.param.top:
            self.blobs.setdefault(name, Blob(self.device))
        bottom, top = ([self.blobs[name] for name in names] for names in (context.param.bottom, context.param.top))
        layer.setup(bottom, top)
        if key != context.param.name and layer.blobs:
            raise context.prototxt_error("a layer above has the same name, and weights are found by the name", "name")
        self._weights.add(layer)
        self.steps.append(Step(layer, bottom, top))
        if len(context.param.param) > len(layer.blobs):
            raise context.prototxt_error(
                f"has {len(layer.blobs)} weight blobs, but `param` is given {len(context.param.param)} times",
                "param",
                len(layer.blobs),
            )

    def __getstate__(self) -> dict[str, Any]:
        """For a copy of the module: without the graph of the last forward."""
        return {**self.__dict__, "values": {}}

    def _register(self, key: str, layer: Layer) -> None:
        """Make `layer` a submodule called `key`. torch reads a dot in a name as a way down, so this goes it."""
        home: nn.Module = self
        *way, last = key.split(".")
        for name in way:
            home = home._modules.setdefault(name, nn.Module()) or home
        if (placed := home._modules.get(last)) is not None:  # the way to layers above, such as "b.conv" for a layer "b"
            layer._modules.update(placed._modules)
        home._modules[last] = layer  # not by add_module, which refuses names that torch uses, such as "type"

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Run every layer. Returns the outputs and all tops with a loss_weight by name, with autograd's graph.

        `inputs`: tensors for tops of Input layers, all of them, and of data layers, which then do not read. The batch
        may have another size than in the prototxt. Without any, the net computes with what stands in its blobs and
        what its data layers read. Raises NetError for names that do not fit.
        """
        values, _ = self.run(inputs)
        return {name: values[name] for name in self._returned}

    def objective(self, **inputs: Tensor) -> Tensor:
        """Run every layer, as `forward` does. Returns the sum of the tops, each times its loss_weight: no axes."""
        _, terms = self.run(inputs)
        return functools.reduce(torch.add, terms) if terms else torch.zeros((), device=self.device)

    def run(
        self, inputs: Mapping[str, Tensor], layers: slice = slice(None), call: Call | None = None
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Run `layers`, or all, each by `call` if that is given.

        Returns all values of the net, and the terms of the objective.
        """
        if inputs:
            self._check_inputs(inputs)
        is_traced = torch.compiler.is_compiling()  # then no tensor may stay here, and sizes may be symbols
        values: dict[str, Tensor] = {} if is_traced else self.values
        terms: list[Tensor] = []
        for step in self.steps[layers]:
            given = inputs and step.takes_inputs and all(name in inputs for name, _, _ in step.tops)
            tops = [inputs[name] for name, _, _ in step.tops] if given else step.run(values, call, is_traced=is_traced)
            for (name, blob, weight), tensor in zip(step.tops, tops, strict=True):
                values[name] = tensor
                if not is_traced:
                    blob.adopt(tensor)
                if weight:
                    number = tensor.sum() if tensor.dim() else tensor
                    terms.append(number if weight == 1 else weight * number)
        return values, terms

    def _check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        for step in self.steps:
            names = [name for name, _, _ in step.tops]
            is_given = step.takes_inputs and (step.layer.param.type == "Input" or inputs.keys() & {*names})
            if is_given and (missing := [name for name in names if name not in inputs]):
                raise NetError(f"{step.layer.context.where}: no tensor for its top {missing[0]!r}: give it as well")
        known = [name for step in self.steps if step.takes_inputs for name, _, _ in step.tops]
        if unknown := [name for name in inputs if name not in known]:
            raise NetError(
                f"{self.document.path}: the net takes no tensor {unknown[0]!r}; it takes {', '.join(known) or 'none'}"
            )

    @property
    def device(self) -> torch.device:
        return self.generators.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Do what `to`, `cuda`, `cpu` and the like ask for; raises NetError if Python layers would have to move."""
        device = fn(torch.empty(0, device=self.device)).device
        if device != self.device and (layers := self.user_layers()):
            raise NetError(
                f"{self.layers[next(iter(layers))].context.where}: was set up on {self.device} and cannot move to "
                f"{device}: make the net there, by device={str(device)!r}"
            )
        if device != self.device:
            self.check()
        # torch makes a new buffer for each layer, also of one that layers share.
        buffers = {each: fn(each) for each in self.buffers()}
        super()._apply(  # type: ignore[no-untyped-call]
            lambda tensor: buffers[tensor] if tensor in buffers else fn(tensor), recurse
        )
        if device != self.device:
            self.generators.move(device)
            for blob in self.blobs.values():
                blob.move(device)
        return self

    def check(self) -> None:
        """Raise what was wrong with values that only the device has seen; waits for it."""
        for layer in self.layers.values():
            layer.check()

    def outputs(self) -> dict[str, Tensor]:
        """The blobs that no layer takes, as the last forward left them."""
        return {name: self.blobs[name].tensor for name in self.output_names}

    def learnt(self) -> Iterable[WeightEntry]:
        """The weights to update, in the order of the layers; shared ones once."""
        return (entry for entry in self._weights.entries if entry.weights.requires_grad)

    @property
    def batch_size(self) -> int:
        """Rows in the first blob of the net at the last forward."""
        first = next(iter(self.blobs.values()))
        return first.shape[0] if first.shape else 1

    def user_layers(self) -> dict[str, Any]:
        """The objects of the Python layers, by the layer's name."""
        return {name: layer.user_layer for name, layer in self.layers.items() if isinstance(layer, PythonLayer)}

    def share_weights(self, other: Net) -> None:
        """Use the same weights as `other`, in the layers that have the same name there; not the same gradients."""
        for name, layer in self.layers.items():
            if name in other.layers and len(layer.blobs):
                check_shapes(layer, list(other.layers[name].blobs), f"the net of {other.document.path}")
                for own, theirs in zip(layer.blobs, other.layers[name].blobs, strict=True):
                    own.data = theirs.data  # the tensor stays the one that a solver updates

    def weights(self) -> dict[str, list[Tensor]]:
        """A copy of all weights on the CPU, by layer."""
        return {
            name: [weights.detach().to("cpu", copy=True) for weights in layer.blobs]
            for name, layer in self.layers.items()
            if len(layer.blobs)
        }

    def all_weights(self) -> list[Tensor]:
        """Every weight blob of the net, in the order of the layers; shared ones once."""
        return [entry.weights for entry in self._weights.entries]

    def check_layers(self, weights: Mapping[str, object], source: str) -> None:
        """Raises SnapshotError unless `weights` are of the net's layers, in order: history is kept by position."""
        own = [name for name, layer in self.layers.items() if layer.blobs]
        for mine, theirs in itertools.zip_longest(own, weights):
            if mine != theirs:
                raise SnapshotError(
                    f"{source} has the weights of {_said(theirs)} where the net of {self.document.path} has those of "
                    f"{_said(mine)}: give the layers the names and the order that they had, or begin anew with these "
                    "weights (--weights)"
                )

    def load_weights(self, weights: Mapping[str, Sequence[Tensor]], source: str, *, some: bool = False) -> None:
        """Copy `weights`, by layer; raises SnapshotError if a layer has other shapes there, or has none.

        `some`: a layer that has none there keeps its own; at least one must have some.
        """
        names = [name for name, layer in self.layers.items() if layer.blobs]
        if some and names and not set(names) & weights.keys():
            raise SnapshotError(
                f"{source} has weights for none of the layers {', '.join(names)}; it has those of {', '.join(weights)}"
            )
        filled, missing, state = set[int](), torch.empty(0), dict[str, Tensor]()
        for name in names:
            layer = self.layers[name]
            memory = {own.data_ptr() for own in layer.blobs}
            # Caffe's HDF5 files have shared weights once, in their first layer.
            if name in weights:
                pairs = itertools.zip_longest(layer.blobs, weights[name], fillvalue=missing)
                given = [each if each.numel() or own.data_ptr() not in filled else own for own, each in pairs]
                advice = "; to train this layer from its filler, give it another name" if some else ""
                check_shapes(layer, given, source, advice, leading_ones=True)
                state |= {f"{name}.{nth}": each for nth, each in enumerate(given)}
                filled |= memory
            elif not some and not memory <= filled:
                raise SnapshotError(f"{source} has no weights for {layer.context.where}")
        self.load_state_dict(state, strict=False)

    def data_states(self) -> dict[str, dict[str, int | str]]:
        """The position in its data of each Python layer that has a state."""
        layers = self.user_layers().items()
        return {name: dict(layer.state_dict()) for name, layer in layers if hasattr(layer, "state_dict")}

    def load_data_states(self, states: dict[str, dict[str, int | str]], source: str) -> None:
        """Let each Python layer go on where it was; raises SnapshotError for a state that fits none; then all stay."""
        layers = self.user_layers()
        if unknown := [name for name in states if name not in layers]:
            raise SnapshotError(
                f"{source} has the position in the data of layer {unknown[0]!r}, which the net of {self.document.path} "
                "does not have: give its data layer that name"
            )
        before, moved = self.data_states(), list[str]()
        for name, state in states.items():
            if hasattr(layers[name], "load_state_dict"):
                try:
                    layers[name].load_state_dict(state)
                except ParameterError as error:
                    for earlier in moved:
                        layers[earlier].load_state_dict(before[earlier])
                    raise SnapshotError(f"{source}, data of {self.layers[name].context.where}: {error}") from None
                moved.append(name)

    def close(self) -> None:
        """End what Python layers have running; all of them, even where one fails."""
        close_all(*(layer.close for layer in self.user_layers().values() if hasattr(layer, "close")))


def _state(document: Document[NetParameter], phase: str | Phase, level: int, stages: Iterable[str]) -> NetState:
    if isinstance(phase, str) and phase not in Phase.__members__:
        raise NetError(f"{document.path}: phase must be 'TRAIN' or 'TEST', got {phase!r}")
    own = document.message.state.stage
    return NetState(Phase[phase] if isinstance(phase, str) else Phase(phase), level, frozenset((*stages, *own)))


def _said(name: str | None) -> str:
    return "no layer" if name is None else f"layer {name!r}"


def go_back(tops: Sequence[Tensor], diffs: Sequence[Tensor | None], *, retain_graph: bool = False) -> None:
    """Run torch's backward from `tops`, which have the gradients `diffs`; None stands for 1."""
    # On this thread, also on CUDA: a Python layer's backward may rely on the thread of its forward.
    with torch.autograd.set_multithreading_enabled(False):
        torch.autograd.backward(tops, diffs, retain_graph=retain_graph)


def with_gradient(tensor: Tensor) -> Tensor:
    """`tensor`, as one that gets a gradient."""
    # detach: requires_grad_ must not mark a blob's own memory, which the next batch is written to.
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


def loss_weights(layer: Layer) -> list[float]:
    """One for each top: as given, else 1 for the first top of a loss and 0 for the others."""
    if len(layer.param.loss_weight):
        return list(layer.param.loss_weight)
    return [1.0 if layer.is_loss and nth == 0 else 0.0 for nth in range(len(layer.param.top))]


def check_shapes(
    layer: Layer, others: Sequence[Tensor], source: str, advice: str = "", *, leading_ones: bool = False
) -> None:
    """Raises SnapshotError unless `others` have the shapes of the layer's weights; `leading_ones` may differ."""
    own_shapes = [tuple(weights.shape) for weights in layer.blobs]
    other_shapes = [tuple(weights.shape) for weights in others]
    reduced = significant if leading_ones else tuple
    if [*map(reduced, own_shapes)] != [*map(reduced, other_shapes)]:
        raise SnapshotError(
            f"{layer.context.where}: its weights have the shapes {own_shapes}, those in {source} {other_shapes}: "
            f"they belong to another net{advice}"
        )


def _outputs(layers: Sequence[Layer]) -> list[str]:
    """Names of the blobs that no layer takes, in the order of the alphabet, as in Caffe: scripts take the first."""
    open_tops: set[str] = set()
    for layer in layers:
        open_tops.difference_update(layer.param.bottom)
        open_tops.update(layer.param.top)
    return sorted(open_tops)
