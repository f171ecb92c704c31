"""Functions of each number by itself that draw or learn something: Dropout, PReLU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .blobs import Shape
from .layer import Elementwise, Tensors, layer_type


@layer_type("Dropout")
class Dropout(Elementwise):
    """Sets a share of the numbers to zero and scales up the others; does nothing in phase TEST, or after `eval()`."""

    has_views = True

    def forward(self, bottom: Tensor) -> Tensors:
        if not self.training:
            return (bottom,)
        # Not torch's own dropout: it takes no generator, and a snapshot must hold the generator's state.
        draws = torch.empty_like(bottom).uniform_(generator=self.context.generators.dropout)
        ratio = self.options.dropout_ratio
        return (bottom * draws.ge_(ratio).div_(1 - ratio),)


@layer_type("PReLU")
class PReLU(Elementwise):
    """A ReLU whose slope for negative numbers is learnt, one for each channel or one for all."""

    def make_weights(self, *bottom: Shape) -> None:
        channels = bottom[0][1:2]
        if not channels:
            raise self.context.misfit(f"needs a bottom with an axis of channels, got shape {bottom[0]}")
        self.add_weights(() if self.options.channel_shared else channels, "filler", 0.25)

    def forward(self, bottom: Tensor) -> Tensors:
        return (functional.prelu(bottom, self.blobs[0].view(-1)),)
