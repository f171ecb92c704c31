"""A net: the layers of a prototxt that a phase lets in, run in the order in which they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...workers.base.closing import close_all
from .. import layer_types
from ..layer_types.blobs import Blob
from ..layer_types.layer import LAYER_TYPES, Layer, LayerContext
from ..layer_types.python import HasClose, HasState, PythonLayer
from ..prototxt.errors import SnapshotError
from ..prototxt.phases import State, included_layers
from ..prototxt.prototxt import Document
from ..prototxt.schema import NetParameter
from .wiring import check_wiring

assert layer_types.__all__, "imported for the layer types that it registers"


@dataclass(frozen=True)
class Generators:
    """Where a net's random numbers come from."""

    weights: torch.Generator
    dropout: torch.Generator

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> Generators:
        return cls(torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed + 1))


@dataclass(frozen=True)
class Learnt:
    """Weights that the solver moves, and how fast."""

    weights: nn.Parameter
    lr_mult: float
    decay_mult: float


class Net:
    """`blobs` by name and `layers` in order, on one device.

    `forward` runs all the layers and gives the objective, a tensor without axes; `objective.backward()` is torch's own.
    """

    def __init__(
        self, document: Document[NetParameter], state: State, device: torch.device, generators: Generators
    ) -> None:
        positions = included_layers(document, state)
        if not positions:
            raise document.error(f"no layer is in the net in phase {state.phase.name}")
        check_wiring(document, positions)
        self.document = document
        self.device = device
        self.blobs: dict[str, Blob] = {}
        self.layers: dict[str, Layer] = {}
        try:
            for position in positions:
                self._add(LayerContext(document, position, state.phase, device, generators.weights, generators.dropout))
        except BaseException:
            self.close()  # layers above the one that failed may hold something already
            raise
        self.output_names = _outputs(list(self.layers.values()))

    def _add(self, context: LayerContext) -> None:
        layer = LAYER_TYPES[context.param.type](context)
        self.layers[context.param.name] = layer
        for name in context.param.top:
            self.blobs.setdefault(name, Blob(self.device))
        layer.setup(self._named(context.param.bottom), self._named(context.param.top))
        if len(context.param.param) > len(layer.blobs):
            raise context.unsupported(
                f"has {len(layer.blobs)} kinds of weights, and `param` is given {len(context.param.param)} times",
                "param",
                len(layer.blobs),
            )

    def _named(self, names: Sequence[str]) -> list[Blob]:
        return [self.blobs[name] for name in names]

    def forward(self) -> Tensor:
        """Run every layer; the sum of the tops weighed by their loss_weight, on the net's device, without axes."""
        values: dict[str, Tensor] = {}
        objective = torch.zeros((), device=self.device)
        for layer in self.layers.values():
            bottom = [values[name] for name in layer.param.bottom]
            layer.top_shapes(*(tuple(tensor.shape) for tensor in bottom))  # raises where these rows do not fit
            tops: tuple[Tensor, ...] = layer(*bottom)
            for name, tensor, weight in zip(layer.param.top, tops, loss_weights(layer), strict=True):
                values[name] = tensor
                self.blobs[name].adopt(tensor.detach())
                objective = objective + weight * tensor.sum() if weight else objective
        return objective

    def check(self) -> None:
        """Raise what was wrong with values that only the device has seen; waits for it."""
        for layer in self.layers.values():
            layer.check()

    def outputs(self) -> dict[str, Tensor]:
        """The blobs that no layer took, as the last forward left them."""
        return {name: self.blobs[name].tensor for name in self.output_names}

    def learnt(self) -> Iterator[Learnt]:
        """The weights that are to be moved, in the order of the layers."""
        for layer in self.layers.values():
            for index, weights in enumerate(layer.blobs):
                spec = layer.spec(index)
                if weights.requires_grad:
                    yield Learnt(weights, spec.lr_mult if spec else 1.0, spec.decay_mult if spec else 1.0)

    @property
    def batch_size(self) -> int:
        """Rows in the first blob of the net at the last forward."""
        first = next(iter(self.blobs.values()))
        return first.shape[0] if first.shape else 1

    def python_layers(self) -> dict[str, PythonLayer]:
        return {name: layer for name, layer in self.layers.items() if isinstance(layer, PythonLayer)}

    def share_weights(self, other: Net) -> None:
        """Use the very weights of `other` in the layers that have the same name there."""
        for name, layer in self.layers.items():
            if name in other.layers and len(layer.blobs):
                check_shapes(layer, list(other.layers[name].blobs), f"the net of {other.document.path}")
                layer.blobs = other.layers[name].blobs

    def weights(self) -> dict[str, list[Tensor]]:
        """A copy of all weights on the CPU, by layer."""
        return {
            name: [weights.detach().to("cpu", copy=True) for weights in layer.blobs]
            for name, layer in self.layers.items()
            if len(layer.blobs)
        }

    @torch.no_grad()
    def load_weights(self, weights: dict[str, list[Tensor]], source: str) -> None:
        """Copy `weights`, by layer; raises SnapshotError where a layer has none there, or of other shapes."""
        for name, layer in self.layers.items():
            if len(layer.blobs):
                if name not in weights:
                    raise SnapshotError(f"{source} has no weights for {layer.context.where}")
                check_shapes(layer, weights[name], source)
                for own, loaded in zip(layer.blobs, weights[name], strict=True):
                    own.copy_(loaded)

    def data_states(self) -> dict[str, dict[str, int | str]]:
        """Where each Python layer that can tell stands in its data."""
        layers = {name: layer.user_layer for name, layer in self.python_layers().items()}
        return {name: dict(layer.state_dict()) for name, layer in layers.items() if isinstance(layer, HasState)}

    def load_data_states(self, states: dict[str, dict[str, int | str]]) -> None:
        for name, layer in self.python_layers().items():
            if name in states and isinstance(layer.user_layer, HasState):
                layer.user_layer.load_state_dict(states[name])

    def close(self) -> None:
        """End what Python layers have running; all of them, even where one fails."""
        layers = [layer.user_layer for layer in self.python_layers().values()]
        close_all(*(layer.close for layer in layers if isinstance(layer, HasClose)))


def loss_weights(layer: Layer) -> list[float]:
    """One for each top: as given, else 1 for the first top of a loss and 0 for all others."""
    if len(layer.param.loss_weight):
        return list(layer.param.loss_weight)
    return [1.0 if layer.is_loss and nth == 0 else 0.0 for nth in range(len(layer.param.top))]


def check_shapes(layer: Layer, others: Sequence[Tensor], source: str) -> None:
    """Raises SnapshotError unless `others` have the shapes of the layer's weights."""
    own_shapes = [tuple(weights.shape) for weights in layer.blobs]
    other_shapes = [tuple(weights.shape) for weights in others]
    if own_shapes != other_shapes:
        raise SnapshotError(
            f"{layer.context.where}: its weights have the shapes {own_shapes}, those in {source} {other_shapes}: "
            "they belong to another net"
        )


def _outputs(layers: Sequence[Layer]) -> list[str]:
    """Names of the blobs that nobody takes, in the order in which they are made."""
    open_tops: dict[str, None] = {}
    for layer in layers:
        for name in layer.param.bottom:
            open_tops.pop(name, None)
        open_tops.update(dict.fromkeys(layer.param.top))
    return list(open_tops)
