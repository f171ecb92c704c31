"""The layer types, by family. Importing this package fills `layer.LAYER_TYPES`."""

from __future__ import annotations

from . import (
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
from .blobs import Array, ArrayBlob, gradient_of
from .inputs import MemoryData
from .layer import (
    LAYER_TYPES,
    DataParameters,
    Elementwise,
    Generators,
    Layer,
    LayerContext,
    Tensors,
    layer_type,
    no_data_parameters,
    significant,
)
from .python import PythonLayer
from .refusals import REFUSALS
