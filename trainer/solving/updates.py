"""The update rules of Caffe's solvers, with Caffe's order of operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..net import WeightEntry
from ..prototxt import SolverParameter


class SGD:
    """Updates weights by their gradients. `history` holds what an update needs of those before it."""

    histories: ClassVar[int] = 1
    """Blobs of history for each weight blob: the first ones of all weights, then the second ones."""
    takes_momentum: ClassVar[bool] = True

    def __init__(self, learnt: Sequence[WeightEntry], solver: SolverParameter) -> None:
        self._solver = solver
        self._weights = [each.weights for each in learnt]
        self._lr_mults = [each.lr_mult for each in learnt]
        self._decays = [solver.weight_decay * each.decay_mult for each in learnt]
        self.history = [torch.zeros_like(weights, requires_grad=False) for weights in self._weights * self.histories]

    def forget_gradients(self) -> None:
        for weights in self._weights:
            weights.grad = None

    @torch.no_grad()
    def update(self, rate: float, iteration: int = 0) -> None:
        """Update by the gradients that `iter_size` backward passes have summed, after `iteration` updates."""
        if not self._weights:
            return
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in self._weights]
        self._clip(gradients)
        if self._solver.iter_size > 1:
            torch._foreach_div_(gradients, float(self._solver.iter_size))
        self._decay(gradients)
        self._move(gradients, [rate * lr_mult for lr_mult in self._lr_mults], iteration)

    def _clip(self, gradients: Sequence[Tensor]) -> None:
        # Before the division by iter_size: in Caffe the limit holds for the sum.
        limit = self._solver.clip_gradients
        if limit >= 0:
            norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
            factor = torch.where(norm > limit, limit / norm, 1.0)  # computed on the device: `if` would wait for it
            for gradient in gradients:
                gradient.mul_(factor)

    def _decay(self, gradients: Sequence[Tensor]) -> None:
        for weights, gradient, decay in zip(self._weights, gradients, self._decays, strict=True):
            if decay:
                gradient.add_(weights.sign() if self._solver.regularization_type == "L1" else weights, alpha=decay)

    def _move(self, gradients: list[Tensor], rates: list[float], iteration: int) -> None:
        self._remember(gradients, rates)
        torch._foreach_sub_(self._weights, self.history)

    def _remember(self, gradients: list[Tensor], rates: list[float]) -> None:
        torch._foreach_mul_(gradients, rates)
        torch._foreach_mul_(self.history, self._solver.momentum)
        torch._foreach_add_(self.history, gradients)

    def _subtract(self, steps: list[Tensor], rates: list[float]) -> None:
        torch._foreach_mul_(steps, rates)
        torch._foreach_sub_(self._weights, steps)


class Nesterov(SGD):
    def _move(self, gradients: list[Tensor], rates: list[float], iteration: int) -> None:
        momentum = self._solver.momentum
        torch._foreach_add_(self._weights, self.history, alpha=momentum)
        self._remember(gradients, rates)
        torch._foreach_add_(self._weights, self.history, alpha=-(1 + momentum))


class AdaGrad(SGD):
    takes_momentum = False

    def _move(self, gradients: list[Tensor], rates: list[float], iteration: int) -> None:
        torch._foreach_addcmul_(self.history, gradients, gradients)
        self._divide(gradients, rates)

    def _divide(self, gradients: list[Tensor], rates: list[float]) -> None:
        roots = torch._foreach_sqrt(self.history)
        torch._foreach_add_(roots, self._solver.delta)
        torch._foreach_div_(gradients, roots)
        self._subtract(gradients, rates)


class RMSProp(AdaGrad):
    def _move(self, gradients: list[Tensor], rates: list[float], iteration: int) -> None:
        torch._foreach_mul_(self.history, self._solver.rms_decay)
        torch._foreach_addcmul_(self.history, gradients, gradients, value=1 - self._solver.rms_decay)
        self._divide(gradients, rates)


class AdaDelta(SGD):
    """History: of the squared gradients, then of the squared updates."""

    histories = 2

    def _move(self, gradients: list[Tensor], rates: list[float], iteration: int) -> None:
        momentum, delta = self._solver.momentum, self._solver.delta
        squares, updates = self.history[: len(gradients)], self.history[len(gradients) :]
        torch._foreach_mul_(squares, momentum)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - momentum)
        steps = torch._foreach_add(updates, delta)
        torch._foreach_div_(steps, torch._foreach_add(squares, delta))
        torch._foreach_sqrt_(steps)
        torch._foreach_mul_(steps, gradients)
        torch._foreach_mul_(updates, momentum)
        torch._foreach_addcmul_(updates, steps, steps, value=1 - momentum)
        self._subtract(list(steps), rates)


class Adam(SGD):
    """History: of the gradients, then of their squares."""

    histories = 2

    def _move(self, gradients: list[Tensor], rates: list[float], iteration: int) -> None:
        first, second, delta = self._solver.momentum, self._solver.momentum2, self._solver.delta
        means, squares = self.history[: len(gradients)], self.history[len(gradients) :]
        torch._foreach_mul_(means, first)
        torch._foreach_add_(means, gradients, alpha=1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, delta)
        steps = torch._foreach_div(means, roots)
        correction = math.sqrt(1 - second ** (iteration + 1)) / (1 - first ** (iteration + 1))
        self._subtract(list(steps), [rate * correction for rate in rates])


SOLVER_TYPES: dict[str, type[SGD]] = {each.__name__: each for each in (SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam)}
"""By the name in `type:`, in the order of the numbers that `solver_type` had."""
