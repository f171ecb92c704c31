"""Layers that join, cut, repeat or reduce axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..prototxt.schema import ReductionOp
from .blobs import Shape
from .layer import Layer, LayerContext, Tensors, layer_type


@layer_type("ArgMax")
class ArgMax(Layer):
    """The top_k classes along an axis, or their scores (out_max_val).

    Without an axis: those of each sample, (batch, 1, top_k), or with their scores, (batch, 2, top_k).
    """

    fields = ("argmax_param",)

    def forward(self, bottom: Tensor) -> Tensors:
        options = self.param.argmax_param
        by_row = not options.HasField("axis")
        scores = bottom.flatten(1) if by_row else bottom.movedim(options.axis, -1)
        if not 1 <= options.top_k <= scores.shape[-1]:
            raise self.context.unsupported(
                f"top_k must lie between 1 and {scores.shape[-1]}, got {options.top_k}", "argmax_param", "top_k"
            )
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

    fields = ("crop_param",)
    bottoms = range(2, 3)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        options = self.param.crop_param
        axis = self.axis(options.axis, bottom[0], "crop_param", "axis")
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
    fields = ("flatten_param",)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        shape = bottom[0]
        first = self.axis(self.param.flatten_param.axis, shape, "flatten_param", "axis")
        last = self.axis(self.param.flatten_param.end_axis, shape, "flatten_param", "end_axis")
        if first > last:
            raise self.context.unsupported(f"axis {first} comes after end_axis {last}", "flatten_param")
        return [(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])]

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom.flatten(self.param.flatten_param.axis, self.param.flatten_param.end_axis),)


@layer_type("Reduction")
class Reduction(Layer):
    """Reduces the axes from `axis` on to one number, times coeff."""

    fields = ("reduction_param",)

    def forward(self, bottom: Tensor) -> Tensors:
        options = self.param.reduction_param
        axis = self.axis(options.axis, tuple(bottom.shape), "reduction_param", "axis") if bottom.dim() else 0
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

    fields = ("reshape_param",)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        dims = self.param.reshape_param.shape.dim
        if any(dim < -1 for dim in dims) or list(dims).count(-1) > 1:
            raise context.unsupported(
                f"dim must be 0, positive, or once -1, got {list(dims)}", "reshape_param", "shape"
            )

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        options, shape = self.param.reshape_param, bottom[0]
        first = options.axis + (len(shape) + 1 if options.axis < 0 else 0)
        end = len(shape) if options.num_axes == -1 else first + options.num_axes
        if not 0 <= first <= end <= len(shape):
            raise self.context.unsupported(
                f"axis {options.axis} and num_axes {options.num_axes} do not fit a bottom of shape {shape}",
                "reshape_param",
            )
        dims = list(options.shape.dim)
        if any(dim == 0 and first + nth >= len(shape) for nth, dim in enumerate(dims)):
            raise self.context.unsupported(f"dim: 0 keeps an axis that {shape} does not have", "reshape_param", "shape")
        new = [*shape[:first], *(dim or shape[first + nth] for nth, dim in enumerate(dims)), *shape[end:]]
        if -1 in new:
            known = -math.prod(new)
            new[new.index(-1)] = math.prod(shape) // known if known else 0
        if math.prod(new) != math.prod(shape):
            raise self.context.misfit(f"a bottom of shape {shape} cannot be given the shape {tuple(new)}")
        return [tuple(new)]

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom.reshape(self.top_shapes(tuple(bottom.shape))[0]),)


@layer_type("Tile")
class Tile(Layer):
    """Repeats the bottom along an axis."""

    fields = ("tile_param",)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        if self.param.tile_param.tiles < 1:
            raise context.unsupported("tiles must be at least 1", "tile_param")

    def forward(self, bottom: Tensor) -> Tensors:
        return (torch.cat([bottom] * self.param.tile_param.tiles, self.param.tile_param.axis),)
