"""The layer types, by family. Importing this package fills `layer.LAYER_TYPES`."""

from . import (  # noqa: F401
    activations,
    convolution,
    data,
    functions,
    inner_product,
    inputs,
    losses,
    normalization,
    pooling,
    python,
    recurrent,
)
