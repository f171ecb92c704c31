"""The layer types, by family. Importing this package fills `trainer.layer.LAYER_TYPES`."""

from . import (
    accuracy,
    activations,
    combining,
    convolution,
    inner_product,
    inputs,
    losses,
    normalization,
    pooling,
    python,
)

__all__ = [
    "accuracy",
    "activations",
    "combining",
    "convolution",
    "inner_product",
    "inputs",
    "losses",
    "normalization",
    "pooling",
    "python",
]
