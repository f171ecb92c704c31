"""Functions of each number by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .blobs import Shape
from .layer import Layer, Tensors, layer_type


class Elementwise(Layer):
    """Base: the top has the shape of the bottom and may be in place."""

    in_place = True

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [bottom[0]]


def elementwise(name: str, function: Callable[[Any, Tensor], Tensor]) -> None:
    """Make the layer type `name`, which computes `function` of its options and its bottom."""

    def forward(self: Elementwise, bottom: Tensor) -> Tensors:
        return (function(self.options, bottom),)

    layer_type(name)(type(name, (Elementwise,), {"forward": forward}))


elementwise("AbsVal", lambda options, x: x.abs())
elementwise("BNLL", lambda options, x: functional.softplus(x))
elementwise("ELU", lambda options, x: functional.elu(x, options.alpha))
elementwise("Power", lambda options, x: (options.shift + options.scale * x).pow(options.power))
elementwise(
    "ReLU",
    lambda options, x: functional.leaky_relu(x, slope) if (slope := options.negative_slope) else functional.relu(x),
)
elementwise("Sigmoid", lambda options, x: torch.sigmoid(x))
elementwise("Swish", lambda options, x: x * torch.sigmoid(options.beta * x))
elementwise("TanH", lambda options, x: torch.tanh(x))
elementwise("Threshold", lambda options, x: (x > options.threshold).to(x.dtype))  # without a gradient


@layer_type("Clip")
class Clip(Elementwise):
    def read_options(self) -> None:
        for name in ("min", "max"):
            if not self.options.HasField(name):
                raise self.wrong(f"clip_param needs {name!r}")
        self._limits = self.options.min, self.options.max

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom.clamp(*self._limits),)


@layer_type("Dropout")
class Dropout(Elementwise):
    """Sets a share of the numbers to zero and scales up the others; does nothing in phase TEST, or after `eval()`."""

    def read_options(self) -> None:
        self._ratio = self.options.dropout_ratio
        if not 0 <= self._ratio < 1:
            raise self.wrong(f"dropout_ratio must be at least 0 and below 1, got {self._ratio:g}", "dropout_ratio")

    def forward(self, bottom: Tensor) -> Tensors:
        if not self.training:
            return (bottom,)
        # Not torch's own dropout: it takes no generator, and a snapshot must hold the generator's state.
        draws = torch.empty_like(bottom).uniform_(generator=self.context.generators.dropout)
        return (bottom * draws.ge_(self._ratio).div_(1 - self._ratio),)


@layer_type("Exp")
class Exp(Elementwise):
    """base ^ (shift + scale · x); base -1 means e."""

    def read_options(self) -> None:
        options = self.options
        factor = _log_of_base(self)
        self._shift, self._scale = options.shift * factor, options.scale * factor

    def forward(self, bottom: Tensor) -> Tensors:
        return ((self._shift + self._scale * bottom).exp(),)


@layer_type("Log")
class Log(Elementwise):
    """The logarithm of shift + scale · x; base -1 means e."""

    def read_options(self) -> None:
        self._factor = 1 / _log_of_base(self)

    def forward(self, bottom: Tensor) -> Tensors:
        return ((self.options.shift + self.options.scale * bottom).log() * self._factor,)


def _log_of_base(layer: Layer) -> float:
    base = layer.options.base
    if base != -1 and (base <= 0 or base == 1):
        raise layer.wrong(f"base must be -1 (for e) or positive and not 1, got {base:g}", "base")
    return 1.0 if base == -1 else math.log(base)


@layer_type("PReLU")
class PReLU(Elementwise):
    """A ReLU whose slope for negative numbers is learnt, one for each channel or one for all."""

    def make_weights(self, *bottom: Shape) -> None:
        options = self.options
        shape = () if options.channel_shared else (bottom[0][self.axis(1, bottom[0])],)
        self.add_weights(shape, "filler", 0.25)

    def forward(self, bottom: Tensor) -> Tensors:
        return (functional.prelu(bottom, self.blobs[0].view(-1)),)
