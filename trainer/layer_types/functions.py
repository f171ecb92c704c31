"""Layer types that are functions of their bottoms and options, without weights and state: a row each.

A function raises ValueError, or what torch raises, for bottoms that do not fit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..prototxt import EltwiseOp, ReductionOp
from .blobs import Shape
from .layer import ANY, Elementwise, Layer, Tensors, layer_type


def row(
    name: str, function: Callable[..., Any], arguments: str = "", base: type[Layer] = Layer, **facts: object
) -> None:
    """Make the layer type `name`: its tops are what `function` gives for the bottoms and, by keyword, `arguments`.

    These are names of options; with a "?" the argument is None if the file does not give the option. "options" stands
    for all of them, and "tops" for the number of tops. `facts`: attributes of the class.
    """

    def read_options(self: Layer) -> None:
        special = {"options": self.options, "tops": self.top_count}
        self.arguments = {
            each.rstrip("?"): special[each] if each in special else _value(self.options, each)
            for each in arguments.split()
        }

    def forward(self: Layer, *bottom: Tensor) -> Tensors:
        tops = function(*bottom, **self.arguments)
        return tops if isinstance(tops, tuple) else (tops,)

    methods = {"read_options": read_options, "forward": forward}
    layer_type(name)(type(name, (base,), {"__doc__": function.__doc__, **methods, **facts}))


def _value(options: Any, name: str) -> Any:
    if name.endswith("?") and not options.HasField(name[:-1]):
        return None
    value = getattr(options, name.rstrip("?"))
    return value if isinstance(value, (int, float, str)) else tuple(value)


def axis_of(options: Any, older: str) -> int:
    """The option `axis`, or `older`, its name in older files."""
    return int(getattr(options, older if options.HasField(older) else "axis"))


# Each number by itself.


def _log_of_base(base: float) -> float:
    return 1.0 if base == -1 else math.log(base)


each = functools.partial(row, base=Elementwise)
each("AbsVal", torch.abs)
each("BNLL", functional.softplus)
each("Clip", torch.clamp, "min max")
each("ELU", functional.elu, "alpha")
each("Exp", lambda x, base, scale, shift: ((shift + scale * x) * _log_of_base(base)).exp(), "base scale shift")
each("Log", lambda x, base, scale, shift: (shift + scale * x).log() * (1 / _log_of_base(base)), "base scale shift")
each("Power", lambda x, power, scale, shift: (shift + scale * x).pow(power), "power scale shift")
each(
    "ReLU",
    lambda x, negative_slope: functional.leaky_relu(x, negative_slope) if negative_slope else functional.relu(x),
    "negative_slope",
)
each("Sigmoid", torch.sigmoid)
each("Swish", lambda x, beta: x * torch.sigmoid(beta * x), "beta")
each("TanH", torch.tanh)
each("Threshold", lambda x, threshold: (x > threshold).to(x.dtype), "threshold")  # without a gradient


# Several blobs, or several tops.


def _slice(x: Tensor, options: Any, tops: int) -> Tensors:
    """Cuts the bottom along an axis, at the slice points or into parts of equal size."""
    axis, points = axis_of(options, "slice_dim"), list(options.slice_point)
    parts: Tensors = torch.tensor_split(x, points or tops, axis)
    sizes = [part.shape[axis] for part in parts]
    if points and not all(sizes):
        raise ValueError(f"slice points must rise from 1 to {x.shape[axis] - 1}, got {points}")
    if not points and len(set(sizes)) > 1:
        raise ValueError(f"an axis of {x.shape[axis]} cannot be cut into {tops} equal parts")
    return parts


def _eltwise(*x: Tensor, operation: int, coeff: Sequence[float]) -> Tensor:
    """The sum of its bottoms, each times its coeff, or their product or maximum."""
    if any(other.shape != x[0].shape for other in x):
        raise ValueError("all bottoms must have the same shape")
    if operation == EltwiseOp.PROD:
        return functools.reduce(torch.mul, x)
    if operation == EltwiseOp.MAX:
        # Not torch.maximum: it halves the gradient between equal numbers. Caffe's CPU gives it to the second of the
        # first two bottoms, and to a further one only if that is larger.
        largest = torch.where(x[0] > x[1], x[0], x[1])
        return functools.reduce(lambda most, other: torch.where(other > most, other, most), x[2:], largest)
    if len(coeff) not in (0, len(x)):
        raise ValueError(f"needs one coeff for each bottom, got {list(coeff)}")
    terms = (factor * term for factor, term in zip(coeff, x, strict=True)) if coeff else x
    return functools.reduce(torch.add, terms)


def _crop(x: Tensor, reference: Tensor, axis: int, offset: Sequence[int]) -> Tensor:
    """Cuts the first bottom, from `axis` on, to the shape of the second, beginning at the offsets."""
    sizes, starts = reference.shape[axis:], tuple(offset)
    if x.dim() != reference.dim() or not sizes or len(starts) not in (0, 1, len(sizes)):
        raise ValueError(f"needs bottoms of as many axes, more than {axis}, and 0, 1 or {len(sizes)} offsets")
    if len(starts) != len(sizes):
        starts = (starts or (0,)) * len(sizes)
    for nth, (start, size) in enumerate(zip(starts, sizes, strict=True), x.dim() - len(sizes)):
        x = x.narrow(nth, start, size)
    return x


row("Concat", lambda *x, options: torch.cat(x, axis_of(options, "concat_dim")), "options", bottoms=ANY)
row("Crop", _crop, "axis offset", bottoms=range(2, 3), has_views=True)
row("Eltwise", _eltwise, "operation coeff", bottoms=range(2, ANY.stop), in_place=True)
row("Silence", lambda *x: (), bottoms=ANY, tops=range(1))
row("Slice", _slice, "options tops", tops=ANY, has_views=True)
row("Split", lambda x, tops: (x,) * tops, "tops", tops=ANY)


# Along axes, and into other shapes.


def _mvn(x: Tensor, normalize_variance: bool, across_channels: bool, eps: float) -> Tensor:
    """Gives each channel of each sample mean 0 and variance 1, or each sample (across_channels)."""
    rows = x.reshape(*x.shape[: 1 if across_channels else 2], -1)
    rows = rows - rows.mean(-1, keepdim=True)
    if normalize_variance:
        # 1e-30: the root of 0 has no gradient, and a constant channel has the variance 0.
        rows = rows / ((rows.square().mean(-1, keepdim=True) + 1e-30).sqrt() + eps)
    return rows.view(x.shape)


def _argmax(x: Tensor, out_max_val: bool, top_k: int, axis: int | None) -> Tensor:
    """The top_k classes along an axis, or their scores (out_max_val).

    Without an axis: those of each sample, (batch, 1, top_k), or with their scores, (batch, 2, top_k).
    """
    scores = x.flatten(1) if axis is None else x.movedim(axis, -1)
    if not 1 <= top_k <= scores.shape[-1]:
        raise ValueError(f"top_k must lie between 1 and {scores.shape[-1]}, got {top_k}")
    # Among equal scores, Caffe names the last class first.
    values, order = scores.detach().flip(-1).sort(dim=-1, descending=True, stable=True)
    values, classes = values[..., :top_k], (scores.shape[-1] - 1 - order[..., :top_k]).to(x.dtype)
    if axis is not None:
        return (values if out_max_val else classes).movedim(-1, axis)
    top = torch.stack([classes, values] if out_max_val else [classes], 1)
    return top.view(*top.shape, *(1,) * (x.dim() - 3))


def _softmax(x: Tensor, axis: int) -> Tensor:
    x.size(axis)  # raises if there is no such axis; the softmax of torch's meta device does not
    return torch.softmax(x, axis)


def _reduction(x: Tensor, operation: int, axis: int, coeff: float) -> Tensor:
    """Reduces the axes from `axis` on to one number, times coeff."""
    rows = x.flatten(axis) if x.dim() else x.reshape(1)
    if operation == ReductionOp.MEAN:
        return rows.mean(-1) * coeff
    if operation == ReductionOp.ASUM:
        rows = rows.abs()
    elif operation == ReductionOp.SUMSQ:
        rows = rows.square()
    return rows.sum(-1) * coeff


def _reshape(x: Tensor, options: Any) -> Tensor:
    """Gives num_axes axes, from `axis` on, another shape: 0 keeps an axis, -1 is what is left."""
    axis, count, dims = options.axis, options.num_axes, list(options.shape.dim)
    first = axis + (x.dim() + 1 if axis < 0 else 0)
    end = x.dim() if count == -1 else first + count
    if not 0 <= first <= end <= x.dim():
        raise ValueError(f"axis {axis} and num_axes {count} do not fit")
    if any(dim == 0 and first + nth >= x.dim() for nth, dim in enumerate(dims)):
        raise ValueError("dim: 0 keeps an axis that the bottom does not have")
    new = [*x.shape[:first], *(dim or x.shape[first + nth] for nth, dim in enumerate(dims)), *x.shape[end:]]
    if -1 in new and not x.numel():  # then torch cannot tell what is left
        new[new.index(-1)] = 0
    return x.reshape(new)


each("MVN", _mvn, "normalize_variance across_channels eps")
row("ArgMax", _argmax, "out_max_val top_k axis?")
row("Flatten", lambda x, axis, end_axis: x.flatten(axis, end_axis), "axis end_axis")
row("Reduction", _reduction, "operation axis coeff")
row("Reshape", _reshape, "options")
each("Softmax", _softmax, "axis", top_shapes=Layer.top_shapes)
row("Tile", lambda x, tiles, axis: torch.cat([x] * tiles, axis), "tiles axis")


# Losses of two bottoms of one shape, (batch, ...), but for axes of 1.


def _difference(first: Tensor, second: Tensor) -> Tensor:
    return first - alike(first, second)


def alike(first: Tensor, second: Tensor) -> Tensor:
    """`second` in the shape of `first`."""
    if not first.dim():
        raise ValueError("needs bottoms with an axis of samples")
    if first.shape[:1] != second.shape[:1] or first.numel() != second.numel():
        raise ValueError("its bottoms must have the same shape")
    return second.reshape(first.shape)


def _contrastive(first: Tensor, second: Tensor, similar: Tensor, margin: float, legacy_version: bool) -> Tensor:
    """Half the mean of d² for pairs (third bottom 1) and of max(margin - d, 0)² for others (0); d is their distance."""
    if similar.numel() != len(first):
        raise ValueError(f"its third bottom needs a number for each of the {len(first)} pairs")
    squares = _difference(first, second).flatten(1).square().sum(1)
    if legacy_version:
        apart = (margin - squares).relu()
    else:
        with torch.no_grad():
            distance = squares.sqrt()
            gap = (margin - distance).relu()
            # Caffe's gradient has this divisor, so that equal samples cause no division by zero.
            slope = gap / (distance + 1e-4)
        apart = gap.square() - slope * (squares - squares.detach())
    return torch.where(similar.reshape(-1) != 0, squares, apart).sum() / (2 * len(first))


loss = functools.partial(row, is_loss=True)
loss("ContrastiveLoss", _contrastive, "margin legacy_version", bottoms=range(3, 4))
loss("EuclideanLoss", lambda x, y: _difference(x, y).square().sum() / (2 * len(x)), bottoms=range(2, 3))


# The number of rows depends on a bottom's numbers.


@layer_type("Filter")
class Filter(Layer):
    """Keeps the rows of the other bottoms for which the last bottom, of shape (batch,), is not 0."""

    bottoms = range(2, ANY.stop)
    tops = ANY

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        self.need_equal_rows(bottom)
        if math.prod(bottom[-1][1:]) != 1:
            raise self.context.misfit(f"needs a last bottom with one number for each row, got shape {bottom[-1]}")
        return bottom[:-1]  # at most; each forward shows how many rows are left

    def forward(self, *bottom: Tensor) -> Tensors:
        kept = bottom[-1].reshape(-1).nonzero().squeeze(1)
        return tuple(each.index_select(0, kept) for each in bottom[:-1])


@layer_type("BatchReindex")
class BatchReindex(Layer):
    """Picks rows of the first bottom; the second, of shape (rows,), has their numbers."""

    bottoms = range(2, 3)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        if len(bottom[1]) != 1:
            raise self.context.misfit(f"needs a second bottom of shape (rows,), got {bottom[1]}")
        return [(*bottom[1], *bottom[0][1:])]

    def forward(self, rows: Tensor, numbers: Tensor) -> Tensors:
        chosen = self.indices(numbers, len(rows), "row {} is not one of the bottom", 1)
        return (rows.index_select(0, chosen),)
