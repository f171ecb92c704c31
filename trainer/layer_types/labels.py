"""Scores against labels: the layout that SoftmaxWithLoss and Accuracy share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .blobs import Shape
from .layer import Layer


def check_labels(layer: Layer, axis: int, scores: Shape, labels: Shape) -> None:
    """One label for each place of `scores` outside the axis of the classes; raises NetError."""
    places = math.prod(scores) // max(scores[axis], 1)
    if math.prod(labels) != places:
        raise layer.context.misfit(
            f"scores of shape {scores} with the classes on axis {axis} need {places} labels, "
            f"got labels of shape {labels}"
        )


@dataclass(frozen=True)
class Judged:
    """`scores`: shape (places, classes). `labels`: shape (places,) int64. `counts`: (places,) bool, not ignored."""

    scores: Tensor
    labels: Tensor
    counts: Tensor


def arrange(layer: Layer, scores: Tensor, labels: Tensor, axis: int, ignored: int | None) -> Judged:
    """Bring both to one row for each place; raises NetError for a label that is no class.

    On CUDA the host does not wait to hear of it: such a label is left out there, and `layer.check` raises the error.
    """
    classes = scores.shape[axis]
    rows = scores.movedim(axis, -1).reshape(-1, classes)
    flat = labels.reshape(-1).long()
    counts = torch.ones_like(flat, dtype=torch.bool) if ignored is None else flat != ignored
    wrong = counts & ((flat < 0) | (flat >= classes))
    place = wrong.to(torch.uint8).argmax().reshape(1)
    first = torch.cat([wrong.gather(0, place).long(), flat.gather(0, place)]) if len(flat) else flat.new_zeros(2)

    def check(first: Tensor) -> None:
        is_wrong, label = first.tolist()
        if is_wrong:
            raise layer.context.misfit(
                f"label {label} is no class: there are scores for {classes} classes, 0 to {classes - 1}"
            )

    layer.check_later(first, check)
    return Judged(rows, flat.masked_fill(wrong, 0), counts & ~wrong)
