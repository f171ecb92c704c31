"""The share of right answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .blobs import Shape
from .labels import arrange, check_labels
from .layer import Layer, Tensors, layer_type

_FIELD = "accuracy_param"


@layer_type("Accuracy")
class Accuracy(Layer):
    """Bottoms: scores (batch, classes, ...) and labels (batch, ...). Top: right answers / labels not ignored."""

    fields = (_FIELD,)
    bottoms = range(2, 3)

    def _axis(self, shape: Shape) -> int:
        return self.axis(self.param.accuracy_param.axis, shape, _FIELD, "axis")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        axis = self._axis(bottom[0])
        check_labels(self, axis, *bottom)
        if not 1 <= self.param.accuracy_param.top_k <= bottom[0][axis]:
            raise self.context.unsupported(
                f"top_k must lie between 1 and the {bottom[0][axis]} classes, got {self.param.accuracy_param.top_k}",
                _FIELD,
                "top_k",
            )
        return [()]

    @torch.no_grad()
    def forward(self, scores: Tensor, labels: Tensor) -> Tensors:
        options = self.param.accuracy_param
        ignored = options.ignore_label if options.HasField("ignore_label") else None
        judged = arrange(self, scores, labels, self._axis(tuple(scores.shape)), ignored)
        own = judged.scores.gather(1, judged.labels.masked_fill(~judged.counts, 0).unsqueeze(1))
        # As many other classes as have a score no lower: a tie is no right answer, so a net that says the same of all
        # classes knows nothing.
        better = (judged.scores >= own).sum(1) - 1
        right = (better < options.top_k) & judged.counts
        return (right.sum() / judged.counts.sum().clamp(min=1),)
