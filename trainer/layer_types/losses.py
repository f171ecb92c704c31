"""What is made small: SoftmaxWithLoss and EuclideanLoss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..prototxt.schema import NormalizationMode
from .blobs import Shape
from .labels import Judged, arrange, check_labels
from .layer import Layer, Tensors, layer_type


@layer_type("SoftmaxWithLoss")
class SoftmaxWithLoss(Layer):
    """Bottoms: scores (batch, classes, ...) and labels (batch, ...). Tops: the loss, and probabilities if wanted."""

    fields = ("loss_param", "softmax_param")
    bottoms = range(2, 3)
    tops = range(1, 3)
    is_loss = True

    def _axis(self, shape: Shape) -> int:
        return self.axis(self.param.softmax_param.axis, shape, "softmax_param", "axis")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        check_labels(self, self._axis(bottom[0]), *bottom)
        return [(), bottom[0]][: len(self.param.top)]

    def forward(self, scores: Tensor, labels: Tensor) -> Tensors:
        options = self.param.loss_param
        axis = self._axis(tuple(scores.shape))
        ignored = options.ignore_label if options.HasField("ignore_label") else None
        judged = arrange(self, scores, labels, axis, ignored)
        targets = judged.labels if ignored is None else judged.labels.masked_fill(~judged.counts, -1)
        logarithms = functional.log_softmax(judged.scores, 1)
        total = functional.nll_loss(logarithms, targets, ignore_index=-1, reduction="sum")
        loss = total / self._normalizer(judged, math.prod(scores.shape[:axis]))
        return (loss, torch.softmax(scores, axis)) if len(self.param.top) > 1 else (loss,)

    def _normalizer(self, judged: Judged, batch: int) -> float | Tensor:
        """What the sum is divided by: never less than 1, so that a batch of ignored labels has the loss 0."""
        mode = self.param.loss_param.normalization
        if mode == NormalizationMode.VALID:
            return judged.counts.sum().clamp(min=1)
        if mode == NormalizationMode.FULL:
            return max(len(judged.labels), 1)
        return max(batch, 1) if mode == NormalizationMode.BATCH_SIZE else 1


@layer_type("EuclideanLoss")
class EuclideanLoss(Layer):
    """Half the mean over the batch of the squared distance of its two bottoms, which have one shape (batch, ...)."""

    bottoms = range(2, 3)
    is_loss = True

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        if bottom[0][:1] != bottom[1][:1] or math.prod(bottom[0]) != math.prod(bottom[1]):
            raise self.context.misfit(f"its bottoms must have one shape, got {bottom[0]} and {bottom[1]}")
        return [()]

    def forward(self, first: Tensor, second: Tensor) -> Tensors:
        difference = first - second.view_as(first)
        return (difference.square().sum() / (2 * len(first)),)
