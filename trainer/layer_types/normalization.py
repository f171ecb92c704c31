"""BatchNorm, the Scale that follows it, and LRN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..prototxt.descriptors import message_class
from ..prototxt.schema import FillerParameter, NormRegion, Phase
from .blobs import Shape
from .layer import Layer, LayerContext, Tensors, layer_type


@layer_type("BatchNorm")
class BatchNorm(Layer):
    """Gives each channel mean 0 and variance 1, as measured in the batch (TRAIN) or during training (TEST).

    Weights, none of them learnt: the sums of means and variances (channels,), and their divisor (1,).
    """

    fields = ("batch_norm_param",)
    in_place = True

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        options = self.param.batch_norm_param
        self._options = options
        self._global = options.use_global_stats if options.HasField("use_global_stats") else context.phase == Phase.TEST
        for index, spec in enumerate(self.param.param):
            if spec.lr_mult != 0:
                raise context.unsupported("its weights are not learnt: give lr_mult: 0", "param", index, "lr_mult")

    def make_weights(self, *bottom: Shape) -> None:
        channels = bottom[0][1] if len(bottom[0]) > 1 else 1
        for extent in (channels, channels, 1):
            self.add_weights((extent,), message_class(FillerParameter)())
        self.blobs.requires_grad_(False)

    def forward(self, bottom: Tensor) -> Tensors:
        batch = bottom if bottom.dim() > 1 else bottom.unsqueeze(1)
        mean, variance, weight = self.blobs
        if self._global:
            share = torch.where(weight == 0, 0.0, 1.0 / weight)
            top = functional.batch_norm(batch, mean * share, variance * share, eps=self._options.eps)
        else:
            self._remember(batch)
            top = functional.batch_norm(batch, None, None, training=True, eps=self._options.eps)
        return (top.view_as(bottom),)

    @torch.no_grad()
    def _remember(self, batch: Tensor) -> None:
        variance, mean = torch.var_mean(batch, [axis for axis in range(batch.dim()) if axis != 1], correction=0)
        samples = batch.numel() // batch.shape[1]
        unbiased = variance * (samples / (samples - 1) if samples > 1 else 1.0)
        for blob, now in zip(self.blobs, (mean, unbiased, torch.ones_like(self.blobs[2])), strict=True):
            blob.mul_(self._options.moving_average_fraction).add_(now)


@layer_type("Scale")
class Scale(Layer):
    """A learnt factor, and with bias_term a learnt summand, for each channel or for the given axes."""

    fields = ("scale_param",)
    in_place = True

    def make_weights(self, *bottom: Shape) -> None:
        options = self.param.scale_param
        shape = bottom[0][self._axis(bottom[0]) : self._end(bottom[0])]
        filler = options.filler
        if not options.HasField("filler"):
            filler = message_class(FillerParameter)(value=1.0)  # by default the layer changes nothing
        self.add_weights(shape, filler, "scale_param", "filler")
        if options.bias_term:
            self.add_weights(shape, options.bias_filler, "scale_param", "bias_filler")

    def _axis(self, shape: Shape) -> int:
        return self.axis(self.param.scale_param.axis, shape, "scale_param", "axis")

    def _end(self, shape: Shape) -> int:
        axes = self.param.scale_param.num_axes
        end = len(shape) if axes == -1 else self._axis(shape) + axes
        if axes < -1 or end > len(shape):
            raise self.context.unsupported(f"num_axes {axes} does not fit a bottom of shape {shape}", "scale_param")
        return end

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        shape = bottom[0][self._axis(bottom[0]) : self._end(bottom[0])]
        if shape != tuple(self.blobs[0].shape):
            raise self.context.misfit(f"the bottom {bottom[0]} does not fit the weights {tuple(self.blobs[0].shape)}")
        return [bottom[0]]

    def forward(self, bottom: Tensor) -> Tensors:
        shape = tuple(bottom.shape)
        trailing = (1,) * (len(shape) - self._end(shape))
        factor, *summand = (blob.view(*blob.shape, *trailing) for blob in self.blobs)
        return (bottom * factor + summand[0] if summand else bottom * factor,)


@layer_type("LRN")
class LRN(Layer):
    """Divides each number by a power of the mean square of its neighbours across channels or in its own."""

    fields = ("lrn_param",)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        self._options = self.param.lrn_param
        if self._options.local_size % 2 == 0:
            raise context.unsupported("local_size must be odd", "lrn_param", "local_size")
        if self._options.norm_region == NormRegion.WITHIN_CHANNEL and self._options.HasField("k"):
            raise context.unsupported("k has no effect with WITHIN_CHANNEL in Caffe", "lrn_param", "k")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        self.need_axes(4, bottom[0])
        return [bottom[0]]

    def forward(self, bottom: Tensor) -> Tensors:
        size, alpha, beta = self._options.local_size, self._options.alpha, self._options.beta
        if self._options.norm_region == NormRegion.ACROSS_CHANNELS:
            return (functional.local_response_norm(bottom, size, alpha, beta, self._options.k),)
        squares = functional.avg_pool2d(bottom.square(), size, 1, size // 2)
        return (bottom * (1 + alpha * squares).pow(-beta),)
