"""Caffe's contract: the input layers, and a harness to run them without a net.

`module: "blobfeed.layers"  layer: "MultiProcessInputLayer"` in a prototxt finds them here.
"""

from __future__ import annotations

from .harness import LayerHarness as LayerHarness
from .multi_process_input_layer import MultiProcessInputLayer as MultiProcessInputLayer
from .ready_made import HDF5InputLayer as HDF5InputLayer
from .ready_made import HDF5SamplesInputLayer as HDF5SamplesInputLayer
from .ready_made import ImageListInputLayer as ImageListInputLayer
from .ready_made import NpyInputLayer as NpyInputLayer
from .ready_made import StreamInputLayer as StreamInputLayer
from .ready_made import WindowsInputLayer as WindowsInputLayer
