"""Stochastic gradient descent, with Caffe's order of operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..net.learnt import Learnt
from ..prototxt.schema import SolverParameter


class SGD:
    """Updates weights by their gradients. `history` holds the last update of each."""

    def __init__(self, learnt: Sequence[Learnt], solver: SolverParameter) -> None:
        self._learnt = learnt
        self._solver = solver
        self.history = [torch.zeros_like(each.weights, requires_grad=False) for each in learnt]

    def forget_gradients(self) -> None:
        for each in self._learnt:
            each.weights.grad = None

    @torch.no_grad()
    def update(self, rate: float) -> None:
        """Update by the gradients that `iter_size` backward passes have summed."""
        gradients = [
            torch.zeros_like(each.weights) if each.weights.grad is None else each.weights.grad for each in self._learnt
        ]
        self._clip(gradients)
        for each, gradient, history in zip(self._learnt, gradients, self.history, strict=True):
            if self._solver.iter_size > 1:
                gradient.div_(self._solver.iter_size)
            self._decay(each, gradient)
            history.mul_(self._solver.momentum).add_(gradient, alpha=rate * each.lr_mult)
            each.weights.sub_(history)

    def _clip(self, gradients: Sequence[Tensor]) -> None:
        # Before the division by iter_size: in Caffe the limit holds for the sum.
        limit = self._solver.clip_gradients
        if limit >= 0 and gradients:
            norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
            factor = torch.where(norm > limit, limit / norm, 1.0)  # computed on the device: `if` would wait for it
            for gradient in gradients:
                gradient.mul_(factor)

    def _decay(self, each: Learnt, gradient: Tensor) -> None:
        decay = self._solver.weight_decay * each.decay_mult
        if decay:
            pull = each.weights.sign() if self._solver.regularization_type == "L1" else each.weights
            gradient.add_(pull, alpha=decay)
