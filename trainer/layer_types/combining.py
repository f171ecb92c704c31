"""Several blobs into one, one into several, and rows picked out of blobs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from ..prototxt.schema import EltwiseOp
from .blobs import Shape
from .layer import ANY, Layer, LayerContext, Tensors, layer_type


@layer_type("Concat")
class Concat(Layer):
    fields = ("concat_param",)
    bottoms = ANY

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        options = self.param.concat_param
        self._axis = options.concat_dim if options.HasField("concat_dim") else options.axis

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        first = bottom[0]
        axis = self.axis(self._axis, first, "concat_param")
        for shape in bottom:
            if len(shape) != len(first) or _without(shape, axis) != _without(first, axis):
                raise self.context.misfit(
                    f"bottoms may differ only in axis {axis}, got shapes {', '.join(map(str, bottom))}"
                )
        return [(*first[:axis], sum(shape[axis] for shape in bottom), *first[axis + 1 :])]

    def forward(self, *bottom: Tensor) -> Tensors:
        return (torch.cat(bottom, self._axis),)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


@layer_type("Slice")
class Slice(Layer):
    """Cuts the bottom along an axis, at the slice points or into parts of equal size."""

    fields = ("slice_param",)
    tops = ANY

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        options = self.param.slice_param
        self._axis = options.slice_dim if options.HasField("slice_dim") else options.axis
        self._points, tops = list(options.slice_point), len(self.param.top)
        if self._points and len(self._points) != tops - 1:
            raise context.unsupported(
                f"needs one slice_point less than its {tops} tops, got {len(self._points)}", "slice_param"
            )

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        size = bottom[0][self.axis(self._axis, bottom[0], "slice_param")]
        cuts = [0, *self._points, size]
        if any(first >= second for first, second in itertools.pairwise(cuts)):
            raise self.context.unsupported(f"slice points must rise from 1 to {size - 1}", "slice_param")
        if not self._points and size % len(self.param.top):
            raise self.context.misfit(f"an axis of {size} cannot be cut into {len(self.param.top)} equal parts")
        return super().top_shapes(*bottom)

    def forward(self, bottom: Tensor) -> Tensors:
        if self._points:
            return torch.tensor_split(bottom, self._points, self._axis)
        return torch.tensor_split(bottom, len(self.param.top), self._axis)


@layer_type("Eltwise")
class Eltwise(Layer):
    fields = ("eltwise_param",)
    bottoms = range(2, ANY.stop)
    in_place = True

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        options = self.param.eltwise_param
        self._operation, self._coefficients = options.operation, list(options.coeff)
        if self._coefficients and len(self._coefficients) != len(self.param.bottom):
            raise context.unsupported(
                f"needs one coeff for each of its {len(self.param.bottom)} bottoms, got {len(self._coefficients)}",
                "eltwise_param",
                "coeff",
            )
        if self._coefficients and self._operation != EltwiseOp.SUM:
            raise context.unsupported("coeff works only with operation: SUM", "eltwise_param", "coeff")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        if len(set(bottom)) > 1:
            raise self.context.misfit(f"all bottoms must have the same shape, got {', '.join(map(str, bottom))}")
        return [bottom[0]]

    def forward(self, *bottom: Tensor) -> Tensors:
        if self._operation == EltwiseOp.PROD:
            return (functools.reduce(torch.mul, bottom),)
        if self._operation == EltwiseOp.MAX:
            # Not torch.maximum: it halves the gradient between equal numbers; Caffe gives it to the later bottom.
            return (functools.reduce(lambda first, second: torch.where(first > second, first, second), bottom),)
        if self._coefficients:
            bottom = tuple(factor * each for factor, each in zip(self._coefficients, bottom, strict=True))
        return (functools.reduce(torch.add, bottom),)


@layer_type("Split")
class Split(Layer):
    tops = ANY

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom,) * len(self.param.top)


@layer_type("Filter")
class Filter(Layer):
    """Keeps the rows of the other bottoms for which the last bottom, of shape (batch,), is not 0."""

    bottoms = range(2, ANY.stop)
    tops = ANY

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        if len(self.param.top) != len(self.param.bottom) - 1:
            raise context.unsupported(f"needs one top for each bottom but the last, got {len(self.param.top)}")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        if len({shape[:1] for shape in bottom}) > 1:
            raise self.context.misfit(
                f"all bottoms must have the same number of rows, got shapes {', '.join(map(str, bottom))}"
            )
        return bottom[:-1]  # at most; each forward shows how many rows are left

    def forward(self, *bottom: Tensor) -> Tensors:
        kept = bottom[-1].reshape(-1).nonzero().squeeze(1)
        return tuple(each.index_select(0, kept) for each in bottom[:-1])


@layer_type("BatchReindex")
class BatchReindex(Layer):
    """Picks rows of the first bottom; the second, of shape (rows,), has their numbers."""

    bottoms = range(2, 3)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [(*bottom[1][:1], *bottom[0][1:])]

    def forward(self, rows: Tensor, numbers: Tensor) -> Tensors:
        chosen = numbers.reshape(-1).long()
        if chosen.numel() and not (int(chosen.min()) >= 0 and int(chosen.max()) < len(rows)):
            raise self.context.misfit(f"row numbers must lie between 0 and {len(rows) - 1}, got {chosen.tolist()}")
        return (rows.index_select(0, chosen),)
