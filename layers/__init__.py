"""Caffe's contract: the input layers, and a harness that runs them without a net.

A prototxt names them by `module: "blobfeed.layers"  layer: "MultiProcessInputLayer"`.
"""

from __future__ import annotations

from .harness import LayerHarness
from .multi_process_input_layer import MultiProcessInputLayer
from .ready_made import (
    HDF5InputLayer,
    HDF5SamplesInputLayer,
    ImageListInputLayer,
    NpyInputLayer,
    StreamInputLayer,
)

__all__ = [
    "HDF5InputLayer",
    "HDF5SamplesInputLayer",
    "ImageListInputLayer",
    "LayerHarness",
    "MultiProcessInputLayer",
    "NpyInputLayer",
    "StreamInputLayer",
]
