"""The base of the layer types: made from a LayerParameter, with weights, and a forward over torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ...workers.base.checks import nearest
from ..prototxt.errors import NetError, PrototxtError
from ..prototxt.prototxt import Document
from ..prototxt.schema import FillerParameter, LayerParameter, NetParameter, ParamSpec, Phase
from .blobs import Blob, Shape
from .fillers import FILLERS, filled

ANY = range(1, 1_000_000)
"""As many bottoms or tops as the prototxt names, at least one."""

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class LayerContext:
    """What a layer is made from: its position in a prototxt, and its net's phase, device and random generators."""

    net: Document[NetParameter]
    position: int
    phase: Phase
    device: torch.device
    weights_generator: torch.Generator
    """Draws the first weights, on the CPU."""
    dropout_generator: torch.Generator
    """Draws during forward, on the device."""
    data_seed: int
    """Of the order of samples, of crops and of mirroring, in Caffe's own data layers."""

    @property
    def param(self) -> LayerParameter:
        return self.net.message.layer[self.position]

    @property
    def where(self) -> str:
        """For messages: file:line:column, layer 'name'."""
        return f"{self.net.where('layer', self.position)}: layer {self.param.name!r}"

    @property
    def folder(self) -> Path:
        return self.net.path.parent

    def unsupported(self, text: str, *field: str | int) -> PrototxtError:
        """An error about what the prototxt says, at the line of `field` of this layer."""
        return self.net.error(f"layer {self.param.name!r}: {text}", "layer", self.position, *field)

    def misfit(self, text: str) -> NetError:
        """An error about data that does not fit the layer."""
        return NetError(f"{self.where} ({self.param.type}): {text}")


class Layer:
    """Base of the layer types."""

    forward: Callable[..., Tensors]
    """Takes the bottoms' tensors and returns the tops'."""

    fields: ClassVar[tuple[str, ...]] = ()
    """The `..._param` fields of LayerParameter that this type reads; any other is refused."""
    bottoms: ClassVar[range] = range(1, 2)
    tops: ClassVar[range] = range(1, 2)
    in_place: ClassVar[bool] = False
    """Whether the top may have the name of the bottom."""
    is_loss: ClassVar[bool] = False
    """Whether the first top has weight 1 in the objective if no loss_weight is given."""

    def __init__(self, context: LayerContext) -> None:
        self.context = context
        self.param = context.param
        self.blobs: list[Tensor] = []
        """The weights, in the order of the layer's `param { ... }`."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Make the weights and give the tops their first shapes."""
        shapes = [blob.shape for blob in bottom]
        self.make_weights(*shapes)
        for blob, shape in zip(top, self.top_shapes(*shapes), strict=True):
            blob.reshape(*shape)

    def make_weights(self, *bottom: Shape) -> None:
        """Call `add_weights` for each of the layer's weights; most layers have none."""

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        """The tops' shapes; raises if the bottoms do not fit. By default a forward on torch's meta device tells."""
        blobs, self.blobs = self.blobs, [blob.detach().to("meta") for blob in self.blobs]
        try:
            tops = self.forward(*(torch.empty(shape, device="meta") for shape in bottom))
        except (RuntimeError, IndexError) as error:
            reason, _, _ = str(error).partition("\n")
            raise self.context.misfit(f"bottoms of shapes {', '.join(map(str, bottom))}: {reason}") from error
        finally:
            self.blobs = blobs
        return [tuple(top.shape) for top in tops]

    def add_weights(self, shape: Shape, filler: FillerParameter, *field: str) -> None:
        """Append weights of `shape`; `field` is the path to the filler, for the error about an unknown type."""
        if filler.type not in FILLERS:
            raise self.context.unsupported(
                f"filler type {filler.type!r} is not supported{nearest(filler.type, FILLERS)}; "
                f"the known ones are {', '.join(FILLERS)}",
                *field,
                "type",
            )
        weights = filled(shape, filler, self.context.weights_generator).to(self.context.device)
        spec = self.spec(len(self.blobs))
        # Like Caffe: no gradient for weights that the solver does not update.
        self.blobs.append(weights.requires_grad_(spec is None or spec.lr_mult != 0))

    def spec(self, index: int) -> ParamSpec | None:
        """The multipliers of weights `index`, if the prototxt gives any."""
        return self.param.param[index] if index < len(self.param.param) else None

    def axis(self, axis: int, shape: Shape, *field: str) -> int:
        """`axis` counted from the front; raises if `shape` has no such axis."""
        if not -len(shape) <= axis < len(shape):
            raise self.context.unsupported(f"a bottom of shape {shape} has no axis {axis}", *field)
        return axis % len(shape)

    def need_axes(self, count: int, shape: Shape) -> None:
        if len(shape) != count:
            raise self.context.misfit(f"needs a bottom of {count} axes, got shape {shape}")


LAYER_TYPES: dict[str, type[Layer]] = {}
"""By the name in `type:`; filled by importing `trainer.layer_types`."""


def layer_type(name: str) -> Callable[[type[Layer]], type[Layer]]:
    """Class decorator: this is the layer type `name`."""

    def register(layer_class: type[Layer]) -> type[Layer]:
        LAYER_TYPES[name] = layer_class
        return layer_class

    return register
