"""Rates and updates where no golden run shows them: at the ends of a policy's range, and without a gradient."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from blobfeed.trainer.net import WeightEntry
from blobfeed.trainer.prototxt import SolverParameter, message_class
from blobfeed.trainer.solving import SGD, learning_rate
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


def rate(iteration: int, **fields: object) -> float:
    return learning_rate(solver(base_lr=0.5, max_iter=1000, **fields), iteration)


def test_the_rate_is_0_where_the_formula_has_no_number() -> None:
    assert rate(0, lr_policy="sigmoid", gamma=0.75, stepsize=100_000) == pytest.approx(0)
    assert rate(1001, lr_policy="poly", power=0.9) == 0


def test_a_rate_that_grows_past_all_numbers_is_infinite_as_in_caffe() -> None:
    assert rate(1023, lr_policy="exp", gamma=2.0) == 0.5 * 2.0**1023
    assert rate(1024, lr_policy="exp", gamma=2.0) == math.inf
