"""What a layer type is: a torch module that is told its LayerParameter, and knows the shapes that it gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...workers.base.checks import nearest
from ..prototxt.errors import NetError, PrototxtError
from ..prototxt.prototxt import Document
from ..prototxt.schema import FillerParameter, LayerParameter, NetParameter, ParamSpec, Phase
from .blobs import Blob, Shape
from .fillers import FILLERS, filled

ANY = range(1, 1_000_000)
"""As many bottoms or tops as the prototxt names, but one at least."""

_MOST_UNCHECKED = 8
"""Checks of values on the device that may be open; further behind the host it seldom is."""


@dataclass(frozen=True)
class LayerContext:
    """What a layer is made from: its place in a prototxt, and the net's circumstances."""

    net: Document[NetParameter]
    position: int
    phase: Phase
    device: torch.device
    weights_generator: torch.Generator
    """Draws the first weights, on the CPU."""
    dropout_generator: torch.Generator
    """Draws during forward, on the device."""

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
        """An error about data that the layer met."""
        return NetError(f"{self.where} ({self.param.type}): {text}")


class Layer(nn.Module):
    """Base of the layer types. `forward` takes the bottoms' tensors and gives those of the tops."""

    fields: ClassVar[tuple[str, ...]] = ()
    """The `..._param` fields of LayerParameter that this type reads; any other is refused."""
    bottoms: ClassVar[range] = range(1, 2)
    tops: ClassVar[range] = range(1, 2)
    in_place: ClassVar[bool] = False
    """Whether the top may have the name of the bottom."""
    is_loss: ClassVar[bool] = False
    """Whether the first top counts with weight 1 in the objective where no loss_weight is given."""

    def __init__(self, context: LayerContext) -> None:
        super().__init__()
        self.context = context
        self.blobs = nn.ParameterList()
        """The weights, in the order in which the layer's `param { ... }` are meant."""
        self._unchecked: deque[tuple[HostCopy, Callable[[Tensor], None]]] = deque()

    @property
    def param(self) -> LayerParameter:
        return self.context.param

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Make the weights and give the tops their first shapes."""
        shapes = [blob.shape for blob in bottom]
        self.make_weights(*shapes)
        for blob, shape in zip(top, self.top_shapes(*shapes), strict=True):
            blob.reshape(*shape)

    def make_weights(self, *bottom: Shape) -> None:
        """`add_weights` for each of the layer's weights; most have none."""

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        """The tops' shapes; raises what does not fit. By default one top, shaped as the first bottom."""
        return [bottom[0]]

    def add_weights(self, shape: Shape, filler: FillerParameter, *field: str) -> None:
        """Append weights of `shape`; `field` leads to the filler, for the error that its type is unknown."""
        if filler.type not in FILLERS:
            raise self.context.unsupported(
                f"filler type {filler.type!r} is not supported{nearest(filler.type, FILLERS)}; "
                f"the known ones are {', '.join(FILLERS)}",
                *field,
                "type",
            )
        weights = filled(shape, filler, self.context.weights_generator).to(self.context.device)
        spec = self.spec(len(self.blobs))
        # Caffe computes no gradient for what would not be moved by it.
        self.blobs.append(nn.Parameter(weights, requires_grad=spec is None or spec.lr_mult != 0))

    def check_later(self, values: Tensor, check: Callable[[Tensor], None]) -> None:
        """Call `check(values)` on the host: at once on the CPU; on CUDA at a later forward, so that nothing waits."""
        self._unchecked.append((HostCopy(values), check))
        self.check(leave=_MOST_UNCHECKED)

    def check(self, *, leave: int = 0) -> None:
        """Make the checks whose values have come; waits until at most `leave` are left. Raises what they raise."""
        while len(self._unchecked) > leave or (self._unchecked and self._unchecked[0][0].has_come()):
            copy, check = self._unchecked.popleft()
            check(copy.wait())

    def spec(self, index: int) -> ParamSpec | None:
        """The multipliers of weights `index`, where the prototxt gives any."""
        return self.param.param[index] if index < len(self.param.param) else None

    def axis(self, axis: int, shape: Shape, *field: str) -> int:
        """`axis` counted from the front; raises where `shape` has no such axis."""
        if not -len(shape) <= axis < len(shape):
            raise self.context.unsupported(f"axis {axis} is none of a bottom of shape {shape}", *field)
        return axis % len(shape)

    def need_axes(self, count: int, shape: Shape) -> None:
        if len(shape) != count:
            raise self.context.misfit(f"needs a bottom of {count} axes, got shape {shape}")


class HostCopy:
    """A tensor's values on their way to the host; they are there at once if the tensor is."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._event: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def has_come(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._values


LAYER_TYPES: dict[str, type[Layer]] = {}
"""By the name that stands behind `type:`; filled by importing `trainer.layers`."""


def layer_type(name: str) -> Callable[[type[Layer]], type[Layer]]:
    """Class decorator: this is the layer type `name`."""

    def register(layer_class: type[Layer]) -> type[Layer]:
        LAYER_TYPES[name] = layer_class
        return layer_class

    return register


Tensors = tuple[Tensor, ...]
