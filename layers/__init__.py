"""Caffe's contract: the input layers, and a harness that runs them without a net.

A prototxt names them by `module: "blobfeed.layers"  layer: "MultiProcessInputLayer"`.
"""

from __future__ import annotations

from ..workers.base import is_in_program
from .harness import LayerHarness
from .multi_process_input_layer import MultiProcessInputLayer
from .ready_made import (
    HDF5InputLayer,
    HDF5SamplesInputLayer,
    ImageListInputLayer,
    NpyInputLayer,
    StreamInputLayer,
)

# In a binary that is linked to an HDF5 library, as Caffe's is, blobfeed has to load h5py's own: the user's modules may
# then import h5py as they like.
if is_in_program("H5open"):
    from ..sources.stored import hdf5_library

__all__ = [
    "HDF5InputLayer",
    "HDF5SamplesInputLayer",
    "ImageListInputLayer",
    "LayerHarness",
    "MultiProcessInputLayer",
    "NpyInputLayer",
    "StreamInputLayer",
]
