"""Layer types that are functions of their options and bottoms, without weights and state: a row each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .layer import ANY, Elementwise, Layer, Tensors, layer_type


def row(name: str, function: Callable[..., Tensor], base: type[Layer] = Elementwise, **facts: object) -> None:
    """Make the layer type `name`: its top is `function` of its options and bottoms. `facts`: class attributes."""

    def forward(self: Layer, *bottom: Tensor) -> Tensors:
        return (function(self.options, *bottom),)

    layer_type(name)(type(name, (base,), {"__doc__": function.__doc__, "forward": forward, **facts}))


def _log_of_base(options: Any) -> float:
    return 1.0 if options.base == -1 else math.log(options.base)


def _mvn(options: Any, x: Tensor) -> Tensor:
    """Gives each channel of each sample mean 0 and variance 1, or each sample (across_channels)."""
    rows = x.reshape(*x.shape[: 1 if options.across_channels else 2], -1)
    rows = rows - rows.mean(-1, keepdim=True)
    if options.normalize_variance:
        # 1e-30: the root of 0 has no gradient, and a constant channel has the variance 0.
        rows = rows / ((rows.square().mean(-1, keepdim=True) + 1e-30).sqrt() + options.eps)
    return rows.view(x.shape)


def axis_of(options: Any, older: str) -> int:
    """The option `axis`, or `older`, its name in older files."""
    return int(getattr(options, older if options.HasField(older) else "axis"))


# Each number by itself.
row("AbsVal", lambda options, x: x.abs())
row("BNLL", lambda options, x: functional.softplus(x))
row("Clip", lambda options, x: x.clamp(options.min, options.max))
row("ELU", lambda options, x: functional.elu(x, options.alpha))
row("Exp", lambda options, x: ((options.shift + options.scale * x) * _log_of_base(options)).exp())
row("Log", lambda options, x: (options.shift + options.scale * x).log() * (1 / _log_of_base(options)))
row("Power", lambda options, x: (options.shift + options.scale * x).pow(options.power))
row(
    "ReLU",
    lambda options, x: functional.leaky_relu(x, slope) if (slope := options.negative_slope) else functional.relu(x),
)
row("Sigmoid", lambda options, x: torch.sigmoid(x))
row("Swish", lambda options, x: x * torch.sigmoid(options.beta * x))
row("TanH", lambda options, x: torch.tanh(x))
row("Threshold", lambda options, x: (x > options.threshold).to(x.dtype))  # without a gradient

# Over axes, in the same shape.
row("MVN", _mvn)
row("Softmax", lambda options, x: torch.softmax(x, options.axis), axes=("axis",))

# Into other shapes.
row("Concat", lambda options, *x: torch.cat(x, axis_of(options, "concat_dim")), Layer, bottoms=ANY)
row("Tile", lambda options, x: torch.cat([x] * options.tiles, options.axis), Layer, axes=("axis",))
