"""The update rule where no golden run shows it: without a gradient, and where gradients are smaller than the limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from blobfeed.trainer.net import WeightEntry
from blobfeed.trainer.prototxt import SolverParameter, message_class
from blobfeed.trainer.solving import SGD
from torch import nn


def learnt(weights: nn.Parameter) -> list[WeightEntry]:
    layer: Any = SimpleNamespace(blobs=[weights])
    return [WeightEntry(layer, 0)]


def solver(**fields: object) -> SolverParameter:
    message: SolverParameter = message_class(SolverParameter)(**fields)
    return message


def test_weights_without_a_gradient_still_decay_and_keep_their_momentum() -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    sgd = SGD(learnt(parameter), solver(momentum=0.5, weight_decay=0.1))
    parameter.grad = torch.tensor([1.0])
    sgd.update(1.0)
    sgd.forget_gradients()
    sgd.update(1.0)
    first = 1 - 1.1
    assert parameter.item() == pytest.approx(first - (0.5 * 1.1 + 0.1 * first))


@pytest.mark.parametrize("gradient", [0.0, 0.25])
def test_a_gradient_within_the_limit_stays_as_it_is(gradient: float) -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    parameter.grad = torch.tensor([gradient])
    SGD(learnt(parameter), solver(clip_gradients=0.5)).update(1.0)
    assert parameter.item() == 1 - gradient
