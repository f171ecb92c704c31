"""The update rule against the same rule written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from blobfeed.trainer.net.learnt import Learnt
from blobfeed.trainer.prototxt.schema import SolverParameter, message_class
from blobfeed.trainer.solving.updates import SGD
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

Floats = NDArray[np.float64]


def solver(**fields: object) -> SolverParameter:
    message: SolverParameter = message_class(SolverParameter)(**fields)
    return message


def reference(
    weights: list[Floats],
    gradients: list[list[Floats]],
    rates: list[float],
    multipliers: list[tuple[float, float]],
    param: SolverParameter,
) -> list[Floats]:
    """V ← μV + α·lr_mult·(∇/iter_size + λ·decay_mult·(W or sign W)),  W ← W - V, the ∇ of all weights clipped first."""
    history = [np.zeros_like(each) for each in weights]
    for rate, step in zip(rates, gradients, strict=True):
        norm = np.sqrt(sum((gradient**2).sum() for gradient in step))
        clip = param.clip_gradients / norm if 0 <= param.clip_gradients < norm else 1.0
        for i, (lr_mult, decay_mult) in enumerate(multipliers):
            pull = np.sign(weights[i]) if param.regularization_type == "L1" else weights[i]
            gradient = step[i] * clip / param.iter_size + param.weight_decay * decay_mult * pull
            history[i] = param.momentum * history[i] + rate * lr_mult * gradient
            weights[i] = weights[i] - history[i]
    return weights


@settings(max_examples=60)
@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    decay=st.sampled_from([0.0, 0.01]),
    kind=st.sampled_from(["L1", "L2"]),
    clip=st.sampled_from([-1.0, 0.5, 100.0]),
    iter_size=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_updates_equal_the_reference(
    momentum: float, decay: float, kind: str, clip: float, iter_size: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    shapes, multipliers = [(3, 2), (4,)], [(1.0, 1.0), (2.0, 0.0)]
    start = [draw.normal(size=shape) for shape in shapes]
    gradients = [[draw.normal(size=shape) for shape in shapes] for _ in range(4)]
    rates = [0.1, 0.1, 0.05, 0.2]
    param = solver(
        momentum=momentum, weight_decay=decay, regularization_type=kind, clip_gradients=clip, iter_size=iter_size
    )
    parameters = [nn.Parameter(torch.tensor(each)) for each in start]
    names = "lr_mult", "decay_mult"
    learnt = [Learnt(p, "", dict(zip(names, m, strict=True))) for p, m in zip(parameters, multipliers, strict=True)]
    sgd = SGD(learnt, param)
    for rate, step in zip(rates, gradients, strict=True):
        sgd.forget_gradients()
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = torch.tensor(gradient)
        sgd.update(rate)
    for parameter, expected in zip(parameters, reference(start, gradients, rates, multipliers, param), strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-6)


def test_weights_without_a_gradient_still_decay_and_keep_their_momentum() -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    sgd = SGD([Learnt(parameter)], solver(momentum=0.5, weight_decay=0.1))
    parameter.grad = torch.tensor([1.0])
    sgd.update(1.0)
    sgd.forget_gradients()
    sgd.update(1.0)
    first = 1 - 1.1
    assert parameter.item() == pytest.approx(first - (0.5 * 1.1 + 0.1 * first))


def test_a_gradient_of_zero_is_not_divided_by_its_norm() -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    parameter.grad = torch.zeros(1)
    SGD([Learnt(parameter)], solver(clip_gradients=0.5)).update(1.0)
    assert parameter.item() == 1.0
