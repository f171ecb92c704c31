"""Scores against labels or targets: SoftmaxWithLoss, EuclideanLoss and Accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..prototxt.schema import NormalizationMode
from .blobs import Shape
from .layer import Layer, Tensors, layer_type


def check_labels(layer: Layer, axis: int, scores: Shape, labels: Shape) -> None:
    """Raises NetError unless there is one label for each position of `scores`; `axis` is the one of the classes."""
    positions = math.prod(scores) // max(scores[axis], 1)
    if math.prod(labels) != positions:
        raise layer.context.misfit(
            f"scores of shape {scores} with the classes on axis {axis} need {positions} labels, "
            f"got labels of shape {labels}"
        )


@dataclass(frozen=True)
class Judged:
    """`scores`: (positions, classes). `labels`: (positions,) int64. `counts`: (positions,) bool, False if ignored."""

    scores: Tensor
    labels: Tensor
    counts: Tensor


def arrange(layer: Layer, scores: Tensor, labels: Tensor, axis: int, ignored: int | None) -> Judged:
    """Bring both to one row for each position; raises NetError if a label names no class."""
    classes = scores.shape[axis]
    rows = scores.movedim(axis, -1).reshape(-1, classes)
    flat = labels.reshape(-1).long()
    counts = torch.ones_like(flat, dtype=torch.bool) if ignored is None else flat != ignored
    wrong = counts & ((flat < 0) | (flat >= classes))
    if wrong.any():
        raise layer.context.misfit(
            f"label {int(flat[wrong][0])} names no class: there are scores for {classes} classes, 0 to {classes - 1}"
        )
    return Judged(rows, flat, counts)


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
    """Half the mean over the batch of the squared distance between its two bottoms, of one shape (batch, ...)."""

    bottoms = range(2, 3)
    is_loss = True

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        if bottom[0][:1] != bottom[1][:1] or math.prod(bottom[0]) != math.prod(bottom[1]):
            raise self.context.misfit(f"its bottoms must have one shape, got {bottom[0]} and {bottom[1]}")
        return [()]

    def forward(self, first: Tensor, second: Tensor) -> Tensors:
        difference = first - second.view_as(first)
        return (difference.square().sum() / (2 * len(first)),)


@layer_type("Accuracy")
class Accuracy(Layer):
    """Bottoms: scores (batch, classes, ...) and labels (batch, ...). Top: the share of right answers."""

    fields = ("accuracy_param",)
    bottoms = range(2, 3)

    def _axis(self, shape: Shape) -> int:
        return self.axis(self.param.accuracy_param.axis, shape, "accuracy_param", "axis")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        axis = self._axis(bottom[0])
        check_labels(self, axis, *bottom)
        if not 1 <= self.param.accuracy_param.top_k <= bottom[0][axis]:
            raise self.context.unsupported(
                f"top_k must lie between 1 and the {bottom[0][axis]} classes, got {self.param.accuracy_param.top_k}",
                "accuracy_param",
                "top_k",
            )
        return [()]

    @torch.no_grad()
    def forward(self, scores: Tensor, labels: Tensor) -> Tensors:
        options = self.param.accuracy_param
        ignored = options.ignore_label if options.HasField("ignore_label") else None
        judged = arrange(self, scores, labels, self._axis(tuple(scores.shape)), ignored)
        own = judged.scores.gather(1, judged.labels.masked_fill(~judged.counts, 0).unsqueeze(1))
        # Classes that score at least as high as the label: a tie is not a right answer, so a net that gives all classes
        # the same score is right about nothing.
        better = (judged.scores >= own).sum(1) - 1
        right = (better < options.top_k) & judged.counts
        return (right.sum() / judged.counts.sum().clamp(min=1),)
