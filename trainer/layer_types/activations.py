"""Functions of each number by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..prototxt.descriptors import message_class
from ..prototxt.schema import FillerParameter, Phase
from .blobs import Shape
from .layer import Layer, LayerContext, Tensors, layer_type


class Elementwise(Layer):
    """Base: the top has the shape of the bottom and may be in place."""

    in_place = True

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [bottom[0]]


@layer_type("AbsVal")
class AbsVal(Elementwise):
    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom.abs(),)


@layer_type("BNLL")
class BNLL(Elementwise):
    """log(1 + exp(x))."""

    def forward(self, bottom: Tensor) -> Tensors:
        return (functional.softplus(bottom),)


@layer_type("Clip")
class Clip(Elementwise):
    fields = ("clip_param",)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        for name in ("min", "max"):
            if not self.param.clip_param.HasField(name):
                raise context.unsupported(f"clip_param needs {name!r}", "clip_param")
        self._limits = self.param.clip_param.min, self.param.clip_param.max

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom.clamp(*self._limits),)


@layer_type("Dropout")
class Dropout(Elementwise):
    """Sets a share of the numbers to zero and scales up the others; does nothing in phase TEST."""

    fields = ("dropout_param",)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        self._ratio = self.param.dropout_param.dropout_ratio
        if not 0 < self._ratio < 1:
            raise context.unsupported(
                f"dropout_ratio must lie between 0 and 1, got {self._ratio:g}", "dropout_param", "dropout_ratio"
            )

    def forward(self, bottom: Tensor) -> Tensors:
        if self.context.phase == Phase.TEST:
            return (bottom,)
        # Not torch's own dropout: it takes no generator, and a snapshot must hold the generator's state.
        draws = torch.empty_like(bottom).uniform_(generator=self.context.dropout_generator)
        return (bottom * draws.ge_(self._ratio).div_(1 - self._ratio),)


@layer_type("ELU")
class ELU(Elementwise):
    fields = ("elu_param",)

    def forward(self, bottom: Tensor) -> Tensors:
        return (functional.elu(bottom, self.param.elu_param.alpha),)


@layer_type("Exp")
class Exp(Elementwise):
    """base ^ (shift + scale · x); base -1 means e."""

    fields = ("exp_param",)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        options = self.param.exp_param
        factor = _log_of_base(context, options.base, "exp_param")
        self._shift, self._scale = options.shift * factor, options.scale * factor

    def forward(self, bottom: Tensor) -> Tensors:
        return ((self._shift + self._scale * bottom).exp(),)


@layer_type("Log")
class Log(Elementwise):
    """The logarithm of shift + scale · x; base -1 means e."""

    fields = ("log_param",)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        self._options = self.param.log_param
        self._factor = 1 / _log_of_base(context, self._options.base, "log_param")

    def forward(self, bottom: Tensor) -> Tensors:
        return ((self._options.shift + self._options.scale * bottom).log() * self._factor,)


def _log_of_base(context: LayerContext, base: float, field: str) -> float:
    if base != -1 and (base <= 0 or base == 1):
        raise context.unsupported(f"base must be -1 (for e) or positive and not 1, got {base:g}", field, "base")
    return 1.0 if base == -1 else math.log(base)


@layer_type("Power")
class Power(Elementwise):
    """(shift + scale · x) ^ power."""

    fields = ("power_param",)

    def forward(self, bottom: Tensor) -> Tensors:
        options = self.param.power_param
        inner = options.shift + options.scale * bottom
        return (inner if options.power == 1 else inner.pow(options.power),)


@layer_type("PReLU")
class PReLU(Elementwise):
    """A ReLU whose slope for negative numbers is learnt, one for each channel or one for all."""

    fields = ("prelu_param",)

    def make_weights(self, *bottom: Shape) -> None:
        options = self.param.prelu_param
        filler = options.filler if options.HasField("filler") else message_class(FillerParameter)(value=0.25)
        shape = () if options.channel_shared else (bottom[0][self.axis(1, bottom[0], "prelu_param")],)
        self.add_weights(shape, filler, "prelu_param", "filler")

    def forward(self, bottom: Tensor) -> Tensors:
        return (functional.prelu(bottom, self.blobs[0].view(-1)),)


@layer_type("ReLU")
class ReLU(Elementwise):
    fields = ("relu_param",)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        self._slope = self.param.relu_param.negative_slope

    def forward(self, bottom: Tensor) -> Tensors:
        return (functional.leaky_relu(bottom, self._slope) if self._slope else functional.relu(bottom),)


@layer_type("Sigmoid")
class Sigmoid(Elementwise):
    fields = ("sigmoid_param",)

    def forward(self, bottom: Tensor) -> Tensors:
        return (torch.sigmoid(bottom),)


@layer_type("Swish")
class Swish(Elementwise):
    """x · sigmoid(beta · x)."""

    fields = ("swish_param",)

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom * torch.sigmoid(self.param.swish_param.beta * bottom),)


@layer_type("TanH")
class TanH(Elementwise):
    fields = ("tanh_param",)

    def forward(self, bottom: Tensor) -> Tensors:
        return (torch.tanh(bottom),)


@layer_type("Threshold")
class Threshold(Elementwise):
    """1 for numbers above the threshold, else 0; has no gradient."""

    fields = ("threshold_param",)

    def forward(self, bottom: Tensor) -> Tensors:
        return ((bottom > self.param.threshold_param.threshold).to(bottom.dtype),)
