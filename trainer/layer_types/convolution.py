"""Convolution over height and width, with groups, padding, stride and dilation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from .blobs import Shape
from .layer import Layer, LayerContext, Tensors, layer_type
from .spatial import need_positive, read_pair

_FIELD = "convolution_param"


@layer_type("Convolution")
class Convolution(Layer):
    """Bottom (batch, channels, height, width); weights (num_output, channels / group, kernel_h, kernel_w), bias."""

    fields = (_FIELD,)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        self._options = self.param.convolution_param
        if not self._options.num_output:
            raise context.unsupported("num_output must be at least 1", _FIELD)
        self._kernel = read_pair(context, _FIELD, "kernel_size", "kernel", None)
        self._stride = read_pair(context, _FIELD, "stride", "stride", 1)
        self._pad = read_pair(context, _FIELD, "pad", "pad", 0)
        self._dilation = read_pair(context, _FIELD, "dilation", "dilation", 1)
        for name, pair in (("kernel_size", self._kernel), ("stride", self._stride), ("dilation", self._dilation)):
            need_positive(context, _FIELD, name, pair)

    def make_weights(self, *bottom: Shape) -> None:
        self.need_axes(4, bottom[0])
        channels, outputs, group = bottom[0][1], self._options.num_output, self._options.group
        if not group or channels % group or outputs % group:
            raise self.context.unsupported(
                f"group: {group} does not divide both the {channels} channels of the bottom and num_output: {outputs}",
                _FIELD,
                "group",
            )
        self.add_weights(
            (outputs, channels // group, *self._kernel), self._options.weight_filler, _FIELD, "weight_filler"
        )
        if self._options.bias_term:
            self.add_weights((outputs,), self._options.bias_filler, _FIELD, "bias_filler")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        self.need_axes(4, bottom[0])
        spatial = [
            (size + 2 * pad - (dilation * (kernel - 1) + 1)) // stride + 1
            for size, pad, dilation, kernel, stride in zip(
                bottom[0][2:], self._pad, self._dilation, self._kernel, self._stride, strict=True
            )
        ]
        if min(spatial) < 1:
            raise self.context.misfit(
                f"the kernel {self._kernel} (dilation {self._dilation}, pad {self._pad}) is larger than the bottom, "
                f"which has the shape {bottom[0]}"
            )
        return [(bottom[0][0], self._options.num_output, *spatial)]

    def forward(self, bottom: Tensor) -> Tensors:
        weight = self.blobs[0]
        bias = self.blobs[1] if self._options.bias_term else None
        return (functional.conv2d(bottom, weight, bias, self._stride, self._pad, self._dilation, self._options.group),)
