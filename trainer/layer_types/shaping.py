"""Blobs combined and cut, rows picked out of them, and axes that are reduced or given another shape."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..prototxt.schema import EltwiseOp, ReductionOp
from .blobs import Shape
from .functions import axis_of
from .layer import ANY, Layer, Tensors, layer_type


@layer_type("Slice")
class Slice(Layer):
    """Cuts the bottom along an axis, at the slice points or into parts of equal size."""

    tops = ANY

    def read_options(self) -> None:
        self._axis = axis_of(self.options, "slice_dim")
        self._points, tops = list(self.options.slice_point), self.top_count
        if self._points and len(self._points) != tops - 1:
            raise self.wrong(f"needs one slice_point less than its {tops} tops, got {len(self._points)}")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        size = bottom[0][self.axis(self._axis, bottom[0])]
        cuts = [0, *self._points, size]
        if any(first >= second for first, second in itertools.pairwise(cuts)):
            raise self.wrong(f"slice points must rise from 1 to {size - 1}")
        if not self._points and size % self.top_count:
            raise self.context.misfit(f"an axis of {size} cannot be cut into {self.top_count} equal parts")
        return super().top_shapes(*bottom)

    def forward(self, bottom: Tensor) -> Tensors:
        return torch.tensor_split(bottom, self._points or self.top_count, self._axis)


@layer_type("Eltwise")
class Eltwise(Layer):
    bottoms = range(2, ANY.stop)
    in_place = True

    def read_options(self) -> None:
        options = self.options
        self._operation, self._coefficients = options.operation, list(options.coeff)
        if self._coefficients and len(self._coefficients) != len(self.param.bottom):
            raise self.wrong(
                f"needs one coeff for each of its {len(self.param.bottom)} bottoms, got {len(self._coefficients)}",
                "coeff",
            )
        if self._coefficients and self._operation != EltwiseOp.SUM:
            raise self.wrong("coeff works only with operation: SUM", "coeff")

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
        return (bottom,) * self.top_count


@layer_type("Filter")
class Filter(Layer):
    """Keeps the rows of the other bottoms for which the last bottom, of shape (batch,), is not 0."""

    bottoms = range(2, ANY.stop)
    tops = ANY

    def read_options(self) -> None:
        if self.top_count != len(self.param.bottom) - 1:
            raise self.context.unsupported(f"needs one top for each bottom but the last, got {self.top_count}")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        self.need_equal_rows(bottom)
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


@layer_type("ArgMax")
class ArgMax(Layer):
    """The top_k classes along an axis, or their scores (out_max_val).

    Without an axis: those of each sample, (batch, 1, top_k), or with their scores, (batch, 2, top_k).
    """

    def forward(self, bottom: Tensor) -> Tensors:
        options = self.options
        by_row = not options.HasField("axis")
        scores = bottom.flatten(1) if by_row else bottom.movedim(options.axis, -1)
        if not 1 <= options.top_k <= scores.shape[-1]:
            raise self.wrong(f"top_k must lie between 1 and {scores.shape[-1]}, got {options.top_k}", "top_k")
        # Among equal scores, Caffe names the last class first.
        values, order = scores.detach().flip(-1).sort(dim=-1, descending=True, stable=True)
        values, classes = values[..., : options.top_k], scores.shape[-1] - 1 - order[..., : options.top_k]
        numbers = classes.to(bottom.dtype)
        if by_row:
            both = [numbers, values] if options.out_max_val else [numbers]
            top = torch.stack(both, 1)
            return (top.view(*top.shape, *(1,) * (bottom.dim() - 3)),)
        return ((values if options.out_max_val else numbers).movedim(-1, options.axis),)


@layer_type("Crop")
class Crop(Layer):
    """Cuts the first bottom, from `axis` on, to the shape of the second, beginning at the offsets."""

    bottoms = range(2, 3)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        options = self.options
        axis = self.axis(options.axis, bottom[0], "axis")
        cut = len(bottom[0]) - axis
        if len(bottom[0]) != len(bottom[1]) or len(options.offset) not in (0, 1, cut):
            raise self.context.misfit(
                f"needs two bottoms with the same number of axes, and 0, 1 or {cut} offsets, got {bottom[0]}, "
                f"{bottom[1]} and {list(options.offset)}"
            )
        self._starts = list(options.offset) * (cut if len(options.offset) == 1 else 1) or [0] * cut
        for start, size, wanted in zip(self._starts, bottom[0][axis:], bottom[1][axis:], strict=True):
            if start + wanted > size:
                raise self.context.misfit(f"offset {start} and size {wanted} exceed an axis of {bottom[0]}")
        self._axis = axis
        return [(*bottom[0][:axis], *bottom[1][axis:])]

    def forward(self, bottom: Tensor, reference: Tensor) -> Tensors:
        for nth, start in enumerate(self._starts):
            bottom = bottom.narrow(self._axis + nth, start, reference.shape[self._axis + nth])
        return (bottom,)


@layer_type("Flatten")
class Flatten(Layer):
    axes = ("axis", "end_axis")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        ends = self.check_axes(bottom[0])
        if ends != sorted(ends):
            raise self.wrong(f"axis {ends[0]} comes after end_axis {ends[1]}")
        return super().top_shapes(*bottom)

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom.flatten(self.options.axis, self.options.end_axis),)


@layer_type("Reduction")
class Reduction(Layer):
    """Reduces the axes from `axis` on to one number, times coeff."""

    def forward(self, bottom: Tensor) -> Tensors:
        options = self.options
        axis = self.axis(options.axis, tuple(bottom.shape), "axis") if bottom.dim() else 0
        rows = bottom.reshape(*bottom.shape[:axis], -1)
        if options.operation == ReductionOp.MEAN:
            return (rows.mean(-1) * options.coeff,)
        if options.operation == ReductionOp.ASUM:
            rows = rows.abs()
        elif options.operation == ReductionOp.SUMSQ:
            rows = rows.square()
        return (rows.sum(-1) * options.coeff,)


@layer_type("Reshape")
class Reshape(Layer):
    """Gives num_axes axes, from `axis` on, another shape: 0 keeps an axis, -1 is what is left."""

    def read_options(self) -> None:
        dims = self.options.shape.dim
        if any(dim < -1 for dim in dims) or list(dims).count(-1) > 1:
            raise self.wrong(f"dim must be 0, positive, or once -1, got {list(dims)}", "shape")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        options, shape = self.options, bottom[0]
        first = options.axis + (len(shape) + 1 if options.axis < 0 else 0)
        end = len(shape) if options.num_axes == -1 else first + options.num_axes
        if not 0 <= first <= end <= len(shape):
            raise self.wrong(
                f"axis {options.axis} and num_axes {options.num_axes} do not fit a bottom of shape {shape}"
            )
        dims = list(options.shape.dim)
        if any(dim == 0 and first + nth >= len(shape) for nth, dim in enumerate(dims)):
            raise self.wrong(f"dim: 0 keeps an axis that {shape} does not have", "shape")
        new = [*shape[:first], *(dim or shape[first + nth] for nth, dim in enumerate(dims)), *shape[end:]]
        if -1 in new:
            known = -math.prod(new)
            new[new.index(-1)] = math.prod(shape) // known if known else 0
        if math.prod(new) != math.prod(shape):
            raise self.context.misfit(f"a bottom of shape {shape} cannot be given the shape {tuple(new)}")
        return [tuple(new)]

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom.reshape(self.top_shapes(tuple(bottom.shape))[0]),)
