"""InnerProduct: each output is a weighted sum of all inputs from an axis on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from .blobs import Shape
from .layer import Layer, Tensors, layer_type

_FIELD = "inner_product_param"


@layer_type("InnerProduct")
class InnerProduct(Layer):
    """Bottom (batch, ...) → (batch, num_output), with the default axis 1; weights (num_output, inputs), bias."""

    fields = (_FIELD,)

    def make_weights(self, *bottom: Shape) -> None:
        options = self.param.inner_product_param
        if not options.num_output:
            raise self.context.unsupported("num_output must be at least 1", _FIELD)
        inputs = math.prod(bottom[0][self._axis(bottom[0]) :])
        self.add_weights((options.num_output, inputs), options.weight_filler, _FIELD, "weight_filler")
        if options.bias_term:
            self.add_weights((options.num_output,), options.bias_filler, _FIELD, "bias_filler")

    def _axis(self, shape: Shape) -> int:
        return self.axis(self.param.inner_product_param.axis, shape, _FIELD, "axis")

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        axis = self._axis(bottom[0])
        inputs = math.prod(bottom[0][axis:])
        if inputs != self.blobs[0].shape[1]:
            raise self.context.misfit(
                f"the bottom {bottom[0]} has {inputs} inputs, but the weights are for {self.blobs[0].shape[1]}"
            )
        return [(*bottom[0][:axis], self.param.inner_product_param.num_output)]

    def forward(self, bottom: Tensor) -> Tensors:
        bias = self.blobs[1] if self.param.inner_product_param.bias_term else None
        return (functional.linear(bottom.flatten(self._axis(tuple(bottom.shape))), self.blobs[0], bias),)
