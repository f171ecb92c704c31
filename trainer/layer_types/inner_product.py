"""InnerProduct: each output is a weighted sum of all inputs from an axis on. Embed: the same for one-hot inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from .blobs import Shape
from .layer import Layer, Tensors, layer_type


@layer_type("InnerProduct")
class InnerProduct(Layer):
    """Bottom (batch, ...) → (batch, num_output), with the default axis 1; weights (num_output, inputs), bias."""

    def make_weights(self, *bottom: Shape) -> None:
        shape = self.options.num_output, math.prod(bottom[0][self.axis(bottom[0]) :])
        self.add_weights_and_bias(shape[::-1] if self.options.transpose else shape)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        axis = self.axis(bottom[0])
        inputs, known = math.prod(bottom[0][axis:]), self.blobs[0].shape[0 if self.options.transpose else 1]
        if inputs != known:
            raise self.context.misfit(f"the bottom {bottom[0]} has {inputs} inputs, but the weights are for {known}")
        return [(*bottom[0][:axis], self.options.num_output)]

    def forward(self, bottom: Tensor) -> Tensors:
        weights, *bias = self.blobs
        weights = weights.t() if self.options.transpose else weights
        return (functional.linear(bottom.flatten(self.options.axis), weights, *bias),)


@layer_type("Embed")
class Embed(Layer):
    """For each number i of the bottom, row i of the weights (input_dim, num_output), plus bias."""

    def make_weights(self, *bottom: Shape) -> None:
        self.add_weights_and_bias((self.options.input_dim, self.options.num_output))

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [(*bottom[0], self.blobs[0].shape[1])]

    def forward(self, bottom: Tensor) -> Tensors:
        weights, *bias = self.blobs
        rows = functional.embedding(self.indices(bottom, len(weights), "input {} is not within input_dim"), weights)
        return (rows + bias[0] if bias else rows,)
