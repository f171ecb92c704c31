"""How weights begin. Names and formulas are Caffe's; the random numbers are torch's."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..prototxt.schema import FillerParameter, VarianceNorm

_Filler = Callable[[FillerParameter, Tensor, torch.Generator], object]


def _constant(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> Tensor:
    return weights.fill_(filler.value)


def _uniform(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> Tensor:
    return weights.uniform_(filler.min, filler.max, generator=generator)


def _gaussian(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> Tensor:
    return weights.normal_(filler.mean, filler.std, generator=generator)


def _xavier(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> Tensor:
    limit = math.sqrt(3.0 / _fan(filler, weights))
    return weights.uniform_(-limit, limit, generator=generator)


def _msra(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> Tensor:
    return weights.normal_(0.0, math.sqrt(2.0 / _fan(filler, weights)), generator=generator)


def _fan(filler: FillerParameter, weights: Tensor) -> float:
    """Inputs, outputs or their average, per weight: shape (outputs, inputs, ...) or, for a vector, (outputs,)."""
    fan_in = weights.numel() / weights.shape[0]
    fan_out = weights.numel() / weights.shape[1] if weights.dim() > 1 else weights.numel()
    if filler.variance_norm == VarianceNorm.AVERAGE:
        return (fan_in + fan_out) / 2
    return fan_out if filler.variance_norm == VarianceNorm.FAN_OUT else fan_in


FILLERS: dict[str, _Filler] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "xavier": _xavier,
    "msra": _msra,
}


def filled(shape: tuple[int, ...], filler: FillerParameter, generator: torch.Generator) -> Tensor:
    """New weights on the CPU: a seed gives the same net on every device."""
    weights = torch.empty(shape)
    FILLERS[filler.type](filler, weights, generator)
    return weights
