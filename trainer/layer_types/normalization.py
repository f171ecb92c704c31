"""Normalization over channels or neighbours, and Scale and Bias, which often follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..prototxt import Message, NormRegion
from .blobs import Shape
from .functions import each
from .layer import Elementwise, Layer, Tensors, layer_type


@layer_type("BatchNorm")
class BatchNorm(Elementwise):
    """Gives each channel mean 0 and variance 1, as measured in the batch (TRAIN) or during training (TEST).

    Weights, none of them learnt: the sums of means and variances (channels,), and their divisor (1,).
    """

    def read_options(self) -> None:
        options = self.options
        self._eps, self._fraction = options.eps, options.moving_average_fraction
        self._global: bool | None = options.use_global_stats if options.HasField("use_global_stats") else None
        for index, spec in enumerate(self.param.param):
            # Old files give three `param`, which Caffe ignores.
            if spec.lr_mult != 0 and len(self.param.param) != 3:
                raise self.context.prototxt_error(
                    "its weights are not learnt: give lr_mult: 0", "param", index, "lr_mult"
                )

    def make_weights(self, *bottom: Shape) -> None:
        if not bottom[0]:
            raise self.context.misfit("needs a bottom with an axis of samples, got shape ()")
        channels = bottom[0][1] if len(bottom[0]) > 1 else 1
        for extent in (channels, channels, 1):
            self.register_buffer(str(len(self.blobs)), torch.zeros(extent, device=self.context.device))

    def forward(self, bottom: Tensor) -> Tensors:
        batch = bottom if bottom.dim() > 1 else bottom.unsqueeze(1)
        mean, variance, weight = self.blobs
        if self._global or (self._global is None and not self.training):
            share = torch.where(weight == 0, 0.0, 1.0 / weight)
            top = functional.batch_norm(batch, mean * share, variance * share, eps=self._eps)
        else:
            now_mean, now_variance = torch.zeros_like(mean), torch.zeros_like(variance)
            if batch.numel() == batch.shape[1]:  # one number for each channel, which torch refuses
                now_mean, top = batch.detach().flatten(), batch - batch
            else:
                top = functional.batch_norm(batch, now_mean, now_variance, training=True, momentum=1.0, eps=self._eps)
            with torch.no_grad():
                mean.mul_(self._fraction).add_(now_mean)
                variance.mul_(self._fraction).add_(now_variance)
                weight.mul_(self._fraction).add_(1)
        return (top.view_as(bottom),)


class _Aligned(Elementwise):
    """Base of Scale and Bias: aligns a learnt blob or the second bottom with the axes of the first, from `axis` on."""

    bottoms = range(1, 3)

    def _factor_shape(self, shape: Shape) -> Shape:
        """The shape of the learnt blob for a bottom of `shape`."""
        axes = self.options.num_axes
        if axes == 0:
            return ()
        first = self.axis(shape)
        end = len(shape) if axes == -1 else first + axes
        if axes < -1 or end > len(shape):
            raise self.wrong(f"num_axes {axes} does not fit a bottom of shape {shape}")
        return shape[first:end]

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        other = bottom[1] if len(bottom) > 1 else tuple(self.blobs[0].shape)
        axis = self.axis(bottom[0]) if other else 0
        if bottom[0][axis : axis + len(other)] != other:
            raise self.context.misfit(f"{other} does not fit a bottom of shape {bottom[0]} from axis {axis} on")
        self._trailing = (1,) * (len(bottom[0]) - axis - len(other))
        return [bottom[0]]

    def _aligned(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(*tensor.shape, *self._trailing) if self._trailing else tensor


@layer_type("Scale")
class Scale(_Aligned):
    """Multiplies by a learnt blob or the second bottom; with bias_term, adds a learnt blob of the same shape."""

    def make_weights(self, *bottom: Shape) -> None:
        options = self.options
        if len(bottom) == 1:
            self.add_weights(self._factor_shape(bottom[0]), "filler", 1.0)
        if options.bias_term:
            shape = bottom[1] if len(bottom) > 1 else tuple(self.blobs[0].shape)
            self.add_weights(shape, "bias_filler")

    def forward(self, *bottom: Tensor) -> Tensors:
        factor, *summand = (*bottom[1:], *self.blobs)
        if summand:
            return (torch.addcmul(self._aligned(summand[0]), bottom[0], self._aligned(factor)),)
        return (bottom[0] * self._aligned(factor),)


@layer_type("Bias")
class Bias(_Aligned):
    """Adds a learnt blob or the second bottom."""

    def make_weights(self, *bottom: Shape) -> None:
        if len(bottom) == 1:
            self.add_weights(self._factor_shape(bottom[0]), "filler")

    def forward(self, *bottom: Tensor) -> Tensors:
        (summand,) = (*bottom[1:], *self.blobs)
        return (bottom[0] + self._aligned(summand),)


def _neighbours(numbers: Tensor, options: Message) -> Tensor:
    """The mean of each number's window; positions outside the blob count as 0."""
    size = options.local_size
    if options.norm_region == NormRegion.WITHIN_CHANNEL:
        return functional.avg_pool2d(numbers, size, 1, size // 2)
    if numbers.device.type == "cpu":
        # A product with a band matrix over the channels: twice as fast as the pooling below.
        channel = torch.arange(numbers.shape[1], device="cpu")
        band = (channel[:, None] - channel).abs() <= size // 2
        return functional.conv2d(numbers, (band / size)[:, :, None, None])
    window, pad = (size, 1, 1), (size // 2, 0, 0)
    return functional.avg_pool3d(numbers.unsqueeze(1), window, 1, pad).squeeze(1)


class _LocalNorm(torch.autograd.Function):
    """x · s^-beta with s = k + alpha · neighbours(x²). Its own backward is four times as fast as autograd's steps."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, options: Message) -> Tensor:
        scale = _neighbours(bottom.square(), options).mul_(options.alpha).add_(options.k)
        factor = scale.pow(-options.beta)
        top = bottom * factor
        ctx.options = options
        ctx.save_for_backward(bottom, scale, factor, top)
        return top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, diff: Tensor) -> tuple[Tensor | None, ...]:
        bottom, scale, factor, top = ctx.saved_tensors
        # The windows are symmetric, so the transpose of `_neighbours` is `_neighbours`.
        shared = _neighbours((diff * top).div_(scale), ctx.options)
        return (diff * factor).addcmul_(bottom, shared, value=-2 * ctx.options.beta * ctx.options.alpha), None


def _local_norm(x: Tensor, options: Message) -> Tensor:
    """Divides each number by a power of the mean square of its neighbours across channels or in its own."""
    return cast(Tensor, _LocalNorm.apply(x, options))  # type: ignore[no-untyped-call]


def _same_four_axes(layer: Layer, shape: Shape) -> Sequence[Shape]:
    layer.need_axes(4, shape)
    return [shape]


# Not from a run on torch's meta device, whose pooling refuses fewer channels than a window has.
each("LRN", _local_norm, "options", in_place=False, top_shapes=_same_four_axes)
