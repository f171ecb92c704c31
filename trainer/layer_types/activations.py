"""Element by element: ReLU, Sigmoid, TanH, Dropout; and Softmax over one axis."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..prototxt.schema import Phase
from .layer import Layer, LayerContext, Tensors, layer_type


@layer_type("ReLU")
class ReLU(Layer):
    fields = ("relu_param",)
    in_place = True

    def forward(self, bottom: Tensor) -> Tensors:
        slope = self.param.relu_param.negative_slope
        return (functional.leaky_relu(bottom, slope) if slope else functional.relu(bottom),)


@layer_type("Sigmoid")
class Sigmoid(Layer):
    in_place = True

    def forward(self, bottom: Tensor) -> Tensors:
        return (torch.sigmoid(bottom),)


@layer_type("TanH")
class TanH(Layer):
    in_place = True

    def forward(self, bottom: Tensor) -> Tensors:
        return (torch.tanh(bottom),)


@layer_type("Dropout")
class Dropout(Layer):
    """Sets a share of the numbers to zero and scales up the others; does nothing in phase TEST."""

    fields = ("dropout_param",)
    in_place = True

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        self._ratio = self.param.dropout_param.dropout_ratio
        if not 0 < self._ratio < 1:
            raise context.unsupported(
                f"dropout_ratio must lie between 0 and 1, got {self._ratio:g}", "dropout_param", "dropout_ratio"
            )

    def forward(self, bottom: Tensor) -> Tensors:
        if self.context.phase == Phase.TEST:
            return (bottom,)
        # Not torch's own dropout: it takes no generator, and a snapshot must hold the generator's state.
        draws = torch.rand(bottom.shape, generator=self.context.dropout_generator, device=bottom.device)
        return (bottom * (draws >= self._ratio) / (1 - self._ratio),)


@layer_type("Softmax")
class Softmax(Layer):
    fields = ("softmax_param",)
    in_place = True

    def forward(self, bottom: Tensor) -> Tensors:
        axis = self.axis(self.param.softmax_param.axis, tuple(bottom.shape), "softmax_param", "axis")
        return (torch.softmax(bottom, axis),)
