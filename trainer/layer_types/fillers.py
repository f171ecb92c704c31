"""The first values of weights. Names and formulas are Caffe's; the random numbers are torch's."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..prototxt import FillerParameter, VarianceNorm

_Filler = Callable[[FillerParameter, Tensor, torch.Generator], object]


def _fan(filler: FillerParameter, weights: Tensor) -> float:
    """The fan in, fan out or their average. `weights`: shape (outputs, inputs, ...), (outputs,) or ()."""
    fan_in = weights.numel() / weights.shape[0] if weights.dim() else 1
    fan_out = weights.numel() / weights.shape[1] if weights.dim() > 1 else weights.numel()
    if filler.variance_norm == VarianceNorm.AVERAGE:
        return (fan_in + fan_out) / 2
    return fan_out if filler.variance_norm == VarianceNorm.FAN_OUT else fan_in


def _gaussian(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> None:
    weights.normal_(filler.mean, filler.std, generator=generator)
    if filler.sparse >= 0:
        share = min(filler.sparse / weights.shape[0], 1.0)
        weights.mul_(torch.empty_like(weights).bernoulli_(share, generator=generator))


def _xavier(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> None:
    limit = math.sqrt(3.0 / _fan(filler, weights))
    weights.uniform_(-limit, limit, generator=generator)


def _positive_unitball(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> None:
    rows = weights.uniform_(0, 1, generator=generator).view(weights.shape[0] if weights.dim() else 1, -1)
    rows.div_(rows.sum(1, keepdim=True))


def _bilinear(filler: FillerParameter, weights: Tensor, generator: torch.Generator) -> None:
    """Bilinear interpolation, for a Deconvolution that enlarges; shape (outputs, inputs, edge, edge)."""
    if weights.dim() != 4 or weights.shape[2] != weights.shape[3]:
        raise ValueError("bilinear is for weights of four axes with a square kernel")
    edge = weights.shape[-1]
    factor = math.ceil(edge / 2)
    center = (edge - 1) / (2.0 * factor)
    row = 1 - (torch.arange(edge) / factor - center).abs()
    weights.copy_(torch.outer(row, row))


FILLERS: dict[str, _Filler] = {
    "constant": lambda filler, weights, generator: weights.fill_(filler.value),
    "uniform": lambda filler, weights, generator: weights.uniform_(filler.min, filler.max, generator=generator),
    "gaussian": _gaussian,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": lambda filler, weights, generator: weights.normal_(
        0.0, math.sqrt(2.0 / _fan(filler, weights)), generator=generator
    ),
    "bilinear": _bilinear,
}
