"""The first values of weights. Names and formulas are Caffe's; the random numbers are torch's."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..prototxt.schema import FillerParameter, VarianceNorm

_Filler = Callable[[FillerParameter, Tensor, torch.Generator], object]


def _fan(filler: FillerParameter, weights: Tensor) -> float:
    """The fan in, fan out or their average. `weights`: shape (outputs, inputs, ...) or (outputs,)."""
    fan_in = weights.numel() / weights.shape[0]
    fan_out = weights.numel() / weights.shape[1] if weights.dim() > 1 else weights.numel()
    if filler.variance_norm == VarianceNorm.AVERAGE:
        return (fan_in + fan_out) / 2
    return fan_out if filler.variance_norm == VarianceNorm.FAN_OUT else fan_in


def _xavier(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> Tensor:
    limit = math.sqrt(3.0 / _fan(filler, weights))
    return weights.uniform_(-limit, limit, generator=generator)


FILLERS: dict[str, _Filler] = {
    "constant": lambda filler, weights, generator: weights.fill_(filler.value),
    "uniform": lambda filler, weights, generator: weights.uniform_(filler.min, filler.max, generator=generator),
    "gaussian": lambda filler, weights, generator: weights.normal_(filler.mean, filler.std, generator=generator),
    "xavier": _xavier,
    "msra": lambda filler, weights, generator: weights.normal_(
        0.0, math.sqrt(2.0 / _fan(filler, weights)), generator=generator
    ),
}


def filled(shape: tuple[int, ...], filler: FillerParameter, generator: torch.Generator) -> Tensor:
    """New weights, drawn on the CPU so that a seed gives the same net on every device."""
    weights = torch.empty(shape)
    FILLERS[filler.type](filler, weights, generator)
    return weights
