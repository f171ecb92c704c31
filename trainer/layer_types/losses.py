"""Scores and probabilities against labels or targets: the losses, and Accuracy."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..prototxt import HingeNorm, Message, NormalizationMode, read_blob
from .blobs import Shape
from .functions import alike, loss
from .layer import Layer, Tensors, layer_type

_log = logging.getLogger("blobfeed")

_SMALLEST = 1e-20
"""Caffe raises smaller probabilities to this before it takes their logarithm."""


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
    """`scores`: (rows, classes, inner), `labels`: (rows, inner) int64, -1 if ignored; without `inner` if that is 1."""

    scores: Tensor
    labels: Tensor
    all_count: bool
    """No label is ignored."""

    @property
    def counted(self) -> Tensor | int:
        return self.labels.numel() if self.all_count else (self.labels >= 0).sum()

    @property
    def safe_labels(self) -> Tensor:
        """The labels, with class 0 for those that are ignored."""
        return self.labels if self.all_count else self.labels.clamp(min=0)


def arrange(layer: Layer, scores: Tensor, labels: Tensor, axis: int, ignored: int | None) -> Judged:
    """Arrange scores and labels by row.

    Raises NetError if a label names no class. On CUDA `Layer.check` raises it later, and until then the label counts as
    ignored. As in Caffe, the fraction of a label is cut off; on the CPU each layer logs the first such label.
    """
    classes, labels = scores.shape[axis], labels.detach()
    rows = math.prod(scores.shape[:axis])
    inner = () if scores.numel() == rows * classes else (-1,)
    arranged, flat = scores.reshape(rows, classes, *inner), labels.reshape(rows, *inner).long()
    if layer.is_on_host(flat) and not layer.has_warned:
        whole = flat.view(labels.shape).to(labels.dtype)
        if not torch.equal(whole, labels) and (cut := labels[(whole != labels) & labels.isfinite()]).numel():
            layer.has_warned = True
            _log.warning("%s: label %g is not a whole number; its fraction is cut off", layer.context.where, cut[0])
    if layer.is_on_host(flat) and flat.numel():  # the usual case without masks: they took 6 % of LeNet's forward
        low, high = (float(bound) for bound in labels.aminmax())  # NaN if there is one, which is no number between
        if low > -1 and high < classes and (ignored is None or not int(low) <= ignored <= int(high)):
            return Judged(arranged, flat, True)
    counts = torch.ones_like(flat, dtype=torch.bool) if ignored is None else flat != ignored
    wrong = counts & ((flat < 0) | (flat >= classes) | labels.reshape(flat.shape).isnan())
    why = f"label {{}} names no class: there are scores for {classes} classes, 0 to {classes - 1}"
    layer.refuse(labels, wrong, why, bottom=1)
    return Judged(arranged, flat.masked_fill(~counts | wrong, -1), False)


def ignored_label(options: Message) -> int | None:
    return options.ignore_label if options.HasField("ignore_label") else None


def normalized(
    total: Tensor,
    counted: Tensor | int,
    shape: Shape,
    options: Message,
    default: NormalizationMode = NormalizationMode.VALID,
) -> Tensor:
    """`total` divided as loss_param says, by at least 1: the loss of a batch of ignored labels is 0.

    `counted`: how many of the labels, of `shape`, are not ignored.
    """
    mode = default
    if options.HasField("normalization"):
        mode = NormalizationMode(options.normalization)
    elif options.HasField("normalize"):
        mode = NormalizationMode.VALID if options.normalize else NormalizationMode.BATCH_SIZE
    if mode == NormalizationMode.VALID:
        return total / (counted.clamp(min=1) if isinstance(counted, Tensor) else max(counted, 1))
    if mode == NormalizationMode.FULL:
        return total / max(math.prod(shape), 1)
    return total / max(shape[0], 1) if mode == NormalizationMode.BATCH_SIZE else total


class _ScoreLoss(Layer):
    """Base: scores (batch, classes, ...) and labels (batch, ...). Tops: the loss, and probabilities if wanted."""

    bottoms = range(2, 3)
    tops = range(1, 3)
    is_loss = True

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        self._axis = self.axis(bottom[0])
        check_labels(self, self._axis, *bottom[:2])
        return [(), bottom[0]][: self.top_count]

    def forward(self, scores: Tensor, labels: Tensor, *more: Tensor) -> Tensors:
        options = self.param.loss_param
        judged = arrange(self, scores, labels, self._axis, ignored_label(options))
        total = self._total(judged, functional.log_softmax(judged.scores, 1), *more)
        loss = normalized(total, judged.counted, judged.labels.shape, options)
        return (loss, torch.softmax(scores, self._axis)) if self.top_count > 1 else (loss,)

    def _total(self, judged: Judged, logarithms: Tensor, *more: Tensor) -> Tensor:
        """The sum over all labels, from the logarithms of the probabilities."""
        raise NotImplementedError


@layer_type("SoftmaxWithLoss")
class SoftmaxWithLoss(_ScoreLoss):
    fields = ("softmax_param", "loss_param")

    def _total(self, judged: Judged, logarithms: Tensor, *more: Tensor) -> Tensor:
        return functional.nll_loss(logarithms, judged.labels, ignore_index=-1, reduction="sum")


@layer_type("InfogainLoss")
class InfogainLoss(_ScoreLoss):
    """SoftmaxWithLoss with a matrix (classes, classes): its row for the label weighs the logarithms of all classes.

    The matrix is the third bottom or in the file `source`.
    """

    fields = ("loss_param",)
    bottoms = range(2, 4)

    def read_options(self) -> None:
        self._matrix: Tensor | None = None
        if len(self.param.bottom) < 3:
            path = self.context.net.beside(self.options.source)
            try:
                self._matrix = torch.from_numpy(read_blob(path.read_bytes())).to(self.context.device)
            except (OSError, ValueError) as error:
                raise self.wrong(f"needs a third bottom, or a matrix in the file `source`; {path}: {error}") from error

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        tops = super().top_shapes(*bottom)
        classes = bottom[0][self._axis]
        shape = bottom[2] if self._matrix is None else tuple(self._matrix.shape)
        if math.prod(shape) != classes**2:
            raise self.context.misfit(f"{classes} classes need a matrix of {classes} x {classes}, got shape {shape}")
        return tops

    def _total(self, judged: Judged, logarithms: Tensor, *more: Tensor) -> Tensor:
        (matrix,) = more or (self._matrix,)
        assert matrix is not None, "read_options has read it if it is not a bottom"
        gains = matrix.to(logarithms.device).view(judged.scores.shape[1], -1)[judged.safe_labels].movedim(-1, 1)
        limited = logarithms + (logarithms.clamp(min=math.log(_SMALLEST)) - logarithms).detach()
        return -(gains * limited * (judged.labels >= 0).unsqueeze(1)).sum()


class _RowLoss(Layer):
    """Base: predictions (batch, classes), with as many axes as they like, and labels."""

    bottoms = range(2, 3)
    is_loss = True

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        if len(bottom[0]) < 2:
            raise self.context.misfit(f"needs a first bottom of shape (samples, classes, ...), got {bottom[0]}")
        check_labels(self, 1, (bottom[0][0], math.prod(bottom[0][1:])), bottom[1])
        return [()]


@layer_type("MultinomialLogisticLoss")
class MultinomialLogisticLoss(_RowLoss):
    """Minus the mean logarithm of the labels' probabilities."""

    def forward(self, probabilities: Tensor, labels: Tensor) -> Tensors:
        judged = arrange(self, probabilities.flatten(1), labels, 1, None)
        chosen = judged.scores.gather(1, judged.safe_labels.unsqueeze(1))
        return (-chosen.clamp(min=_SMALLEST).log().sum() / len(judged.labels),)


@layer_type("HingeLoss")
class HingeLoss(_RowLoss):
    """The sum over classes of max(0, 1 - x) for the label and max(0, 1 + x) for others, or its square; batch mean."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensors:
        judged = arrange(self, scores.flatten(1), labels, 1, None)
        signs = torch.ones_like(judged.scores).scatter_(1, judged.safe_labels.unsqueeze(1), -1.0)
        margins = (1 + signs * judged.scores).relu()
        if self.options.norm == HingeNorm.L2:
            margins = margins.square()
        return (margins.sum() / len(scores),)


def _sigmoid_cross_entropy(scores: Tensor, targets: Tensor, options: Message) -> Tensor:
    """The cross entropy of the sigmoid of the first bottom and the probabilities in the second."""
    targets, ignored = alike(scores, targets).to(scores.dtype), ignored_label(options)
    counts = torch.ones_like(targets) if ignored is None else (targets.trunc() != ignored).to(targets.dtype)
    total = functional.binary_cross_entropy_with_logits(scores, targets, counts, reduction="sum")
    return normalized(total, counts.sum(), counts.shape, options, NormalizationMode.BATCH_SIZE)


loss("SigmoidCrossEntropyLoss", _sigmoid_cross_entropy, "options", bottoms=range(2, 3), fields=("loss_param",))


@layer_type("Accuracy")
class Accuracy(_ScoreLoss):
    """Bottoms: scores (batch, classes, ...) and labels (batch, ...). Top: the share of right answers.

    The second top has that share for each class.
    """

    is_loss = False

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        super().top_shapes(*bottom)
        classes = bottom[0][self._axis]
        if not 1 <= self.options.top_k <= classes:
            raise self.wrong(f"top_k must lie between 1 and the {classes} classes, got {self.options.top_k}", "top_k")
        return [(), (classes,)][: self.top_count]

    @torch.no_grad()
    def forward(self, scores: Tensor, labels: Tensor, *more: Tensor) -> Tensors:
        judged = arrange(self, scores, labels, self._axis, ignored_label(self.options))
        targets, counts = judged.safe_labels, judged.labels >= 0
        own = judged.scores.gather(1, targets.unsqueeze(1))
        # Classes that score at least as high as the label: a tie is not a right answer, so a net that gives all classes
        # the same score is right about nothing.
        better = (judged.scores >= own).sum(1) - 1
        right = (better < self.options.top_k) & counts
        share = right.sum() / counts.sum().clamp(min=1)
        if self.top_count == 1:
            return (share,)
        right_by_class, by_class = (
            torch.bincount(targets[which], minlength=judged.scores.shape[1]).to(scores.dtype)
            for which in (right, counts)
        )
        return share, right_by_class / by_class.clamp(min=1)
