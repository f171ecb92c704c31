"""Several blobs into one, one into several, and axes into one: Concat, Eltwise, Split, Flatten."""

from __future__ import annotations

import functools
import math
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

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        first = bottom[0]
        axis = self.axis(self.param.concat_param.axis, first, "concat_param", "axis")
        for shape in bottom:
            if len(shape) != len(first) or _without(shape, axis) != _without(first, axis):
                raise self.context.misfit(
                    f"bottoms may differ only in axis {axis}, got shapes {', '.join(map(str, bottom))}"
                )
        return [(*first[:axis], sum(shape[axis] for shape in bottom), *first[axis + 1 :])]

    def forward(self, *bottom: Tensor) -> Tensors:
        return (torch.cat(bottom, self.param.concat_param.axis),)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


@layer_type("Eltwise")
class Eltwise(Layer):
    fields = ("eltwise_param",)
    bottoms = range(2, ANY.stop)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        options = self.param.eltwise_param
        self._coefficients = list(options.coeff) or [1.0] * len(self.param.bottom)
        if len(self._coefficients) != len(self.param.bottom):
            raise context.unsupported(
                f"needs one coeff for each of its {len(self.param.bottom)} bottoms, got {len(self._coefficients)}",
                "eltwise_param",
                "coeff",
            )
        if options.coeff and options.operation != EltwiseOp.SUM:
            raise context.unsupported("coeff works only with operation: SUM", "eltwise_param", "coeff")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        if len(set(bottom)) > 1:
            raise self.context.misfit(f"all bottoms must have the same shape, got {', '.join(map(str, bottom))}")
        return [bottom[0]]

    def forward(self, *bottom: Tensor) -> Tensors:
        operation = self.param.eltwise_param.operation
        if operation == EltwiseOp.PROD:
            return (functools.reduce(torch.mul, bottom),)
        if operation == EltwiseOp.MAX:
            # Not torch.maximum: it halves the gradient between equal numbers; Caffe gives it to the later bottom.
            return (functools.reduce(lambda first, second: torch.where(first > second, first, second), bottom),)
        return (functools.reduce(torch.add, (c * each for c, each in zip(self._coefficients, bottom, strict=True))),)


@layer_type("Split")
class Split(Layer):
    tops = ANY

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [bottom[0]] * len(self.param.top)

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom,) * len(self.param.top)


@layer_type("Flatten")
class Flatten(Layer):
    fields = ("flatten_param",)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        shape = bottom[0]
        first, last = self._axes(shape)
        if first > last:
            raise self.context.unsupported(f"axis {first} comes after end_axis {last}", "flatten_param")
        return [(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])]

    def _axes(self, shape: Shape) -> tuple[int, int]:
        options = self.param.flatten_param
        return (
            self.axis(options.axis, shape, "flatten_param", "axis"),
            self.axis(options.end_axis, shape, "flatten_param", "end_axis"),
        )

    def forward(self, bottom: Tensor) -> Tensors:
        return (bottom.flatten(*self._axes(tuple(bottom.shape))),)
