"""A net: the layers of a prototxt that its phase includes, run in the order in which they are written."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...layers.torch_blob import Blob
from ...workers.base.closing import close_all
from ...workers.base.errors import ParameterError
from .. import layer_types  # noqa: F401  registers the layer types
from ..layer_types.blobs import Shape
from ..layer_types.layer import (
    LAYER_TYPES,
    DataParameters,
    Generators,
    Layer,
    LayerContext,
    Tensors,
    no_data_parameters,
)
from ..layer_types.python import PythonLayer
from ..prototxt.errors import SnapshotError
from ..prototxt.phases import State, included_layers
from ..prototxt.prototxt import Document
from ..prototxt.schema import NetParameter, Phase
from .learnt import Learnt, Weights
from .wiring import check_wiring, without_effect


class Step:
    """One layer's part of a forward, looked up once instead of at every iteration."""

    def __init__(self, layer: Layer, tops: Sequence[Blob]) -> None:
        self.layer = layer
        self.bottoms = list(layer.param.bottom)
        self.tops = list(zip(layer.param.top, tops, loss_weights(layer), strict=True))
        """The name, the blob and the loss weight of each top."""
        self.stopped = [nth for nth, goes_on in enumerate(layer.param.propagate_down) if not goes_on]
        self.forced = [nth for nth, goes_on in enumerate(layer.param.propagate_down) if goes_on]
        """Bottoms that get a gradient, also if they depend on no weights."""
        self.begins_graph = layer.context.net.message.force_backward and not self.bottoms
        self.shapes: list[torch.Size] | None = None

    def run(self, values: dict[str, Tensor]) -> Tensors:
        bottom = [values[name] for name in self.bottoms]
        shapes = [tensor.shape for tensor in bottom]
        if shapes != self.shapes:
            self.layer.top_shapes(*map(tuple, shapes))  # raises if these rows do not fit
            self.shapes = shapes
        for nth in self.stopped:
            bottom[nth] = bottom[nth].detach()
        for nth in self.forced:
            bottom[nth] = with_gradient(bottom[nth])
        tops = self.layer.forward(*bottom)
        return tuple(map(with_gradient, tops)) if self.begins_graph else tops


class Net:
    """`blobs` by name and `layers` in order, on one device.

    `forward` runs all layers and returns the objective, a tensor without axes; `objective.backward()` is torch's own.
    """

    def __init__(
        self,
        document: Document[NetParameter],
        state: State,
        device: torch.device,
        generators: Generators,
        data_parameters: DataParameters = no_data_parameters,
    ) -> None:
        positions = included_layers(document, state)
        own = [document.message.layer[position] for position in positions]
        phases = [Phase(layer.phase) if layer.HasField("phase") else state.phase for layer in own]
        contexts = [
            LayerContext(document, position, phase, device, generators, data_parameters)
            for position, phase in zip(positions, phases, strict=True)
        ]
        check_wiring(contexts)
        if document.message.debug_info:
            raise document.error("debug_info is not supported: leave it out", "debug_info")
        self.without_effect = without_effect(contexts)
        """Fields that are set but change nothing here."""
        self.document = document
        self.device = device
        self.generators = generators
        self.blobs: dict[str, Blob] = {}
        self.layers: dict[str, Layer] = {}
        self.values: dict[str, Tensor] = {}
        """The tensors of the last forward, by blob, with autograd's graph."""
        self.steps: list[Step] = []
        """One for each layer, in order."""
        self._weights = Weights()
        try:
            for context in contexts:
                self._add(context)
        except BaseException:
            self.close()  # layers above the one that failed may already hold something
            raise
        self.output_names = _outputs(list(self.layers.values()))

    def _add(self, context: LayerContext) -> None:
        layer = LAYER_TYPES[context.param.type](context)
        key = context.param.name
        while key in self.layers:  # both losses of Caffe's autoencoder are called "loss"
            key += "'"
        self.layers[key] = layer
        for name in context.param.top:
            self.blobs.setdefault(name, Blob(self.device))
        bottom, top = ([self.blobs[name] for name in names] for names in (context.param.bottom, context.param.top))
        layer.setup(bottom, top)
        if key != context.param.name and layer.blobs:
            raise context.unsupported("a layer above has the same name, and weights are found by the name", "name")
        self._weights.add(layer)
        self.steps.append(Step(layer, top))
        if len(context.param.param) > len(layer.blobs):
            raise context.unsupported(
                f"has {len(layer.blobs)} weight blobs, but `param` is given {len(context.param.param)} times",
                "param",
                len(layer.blobs),
            )

    def forward(self) -> Tensor:
        """Run every layer. Returns the sum of the tops, each times its loss_weight: a tensor without axes."""
        terms: list[Tensor] = []
        for step in self.steps:
            for (name, blob, weight), tensor in zip(step.tops, step.run(self.values), strict=True):
                self.values[name] = tensor
                blob.adopt(tensor)
                if weight:
                    number = tensor.sum() if tensor.dim() else tensor
                    terms.append(number if weight == 1 else weight * number)
        return functools.reduce(torch.add, terms) if terms else torch.zeros((), device=self.device)

    def check(self) -> None:
        """Raise what was wrong with values that only the device has seen; waits for it."""
        for layer in self.layers.values():
            layer.check()

    def outputs(self) -> dict[str, Tensor]:
        """The blobs that no layer takes, as the last forward left them."""
        return {name: self.blobs[name].tensor for name in self.output_names}

    def learnt(self) -> Iterable[Learnt]:
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
        for view, shared in self._weights.views:  # perhaps of a layer that `other` does not have
            view.data = shared.data.reshape(view.shape)

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

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Sequence[Tensor]], source: str, *, some: bool = False) -> None:
        """Copy `weights`, by layer; raises SnapshotError if a layer has other shapes there, or has none.

        `some`: a layer that has none there keeps its own; at least one must have some.
        """
        names = [name for name, layer in self.layers.items() if layer.blobs]
        if some and names and not set(names) & weights.keys():
            raise SnapshotError(
                f"{source} has weights for none of the layers {', '.join(names)}; it has those of {', '.join(weights)}"
            )
        filled, missing = set[int](), torch.empty(0)
        for name in names:
            layer = self.layers[name]
            memory = {own.data_ptr() for own in layer.blobs}
            # Caffe's HDF5 files have shared weights once, in their first layer.
            if name in weights:
                pairs = itertools.zip_longest(layer.blobs, weights[name], fillvalue=missing)
                given = [each if each.numel() or own.data_ptr() not in filled else own for own, each in pairs]
                advice = "; to train this layer from its filler, give it another name" if some else ""
                check_shapes(layer, given, source, advice, leading_ones=True)
                for own, loaded in zip(layer.blobs, given, strict=True):
                    own.copy_(loaded.view(own.shape))
                filled |= memory
            elif not some and not memory <= filled:
                raise SnapshotError(f"{source} has no weights for {layer.context.where}")

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


def _said(name: str | None) -> str:
    return "no layer" if name is None else f"layer {name!r}"


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
    significant = _significant if leading_ones else tuple
    if [*map(significant, own_shapes)] != [*map(significant, other_shapes)]:
        raise SnapshotError(
            f"{layer.context.where}: its weights have the shapes {own_shapes}, those in {source} {other_shapes}: "
            f"they belong to another net{advice}"
        )


def _significant(shape: Shape) -> Shape:
    """`shape` without leading ones: files of before 2015 have four axes for everything."""
    first = next((nth for nth, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


def _outputs(layers: Sequence[Layer]) -> list[str]:
    """Names of the blobs that no layer takes, in the order of the alphabet, as in Caffe: scripts take the first."""
    open_tops: set[str] = set()
    for layer in layers:
        open_tops.difference_update(layer.param.bottom)
        open_tops.update(layer.param.top)
    return sorted(open_tops)
