"""The ready-made input layers: one for each kind of source, whose options stand at the top level of param_str."""

from __future__ import annotations

from .multi_process_input_layer import MultiProcessInputLayer


class HDF5InputLayer(MultiProcessInputLayer):
    """HDF5 files with one data set per top: `param_str: "{path: train.h5, batch_size: 64}"`."""

    _source_kind = "hdf5"


class HDF5SamplesInputLayer(MultiProcessInputLayer):
    """HDF5 files with one data set, or one group, per sample: `param_str: "{path: all.h5, batch_size: 64}"`."""

    _source_kind = "hdf5_samples"


class NpyInputLayer(MultiProcessInputLayer):
    """.npy files, one or several per top: `param_str: "{data: images.npy, label: labels.npy, batch_size: 64}"`."""

    _source_kind = "npy"


class ImageListInputLayer(MultiProcessInputLayer):
    """Images listed in a text file, as in Caffe's ImageData: `param_str: "{path: train.txt, batch_size: 64}"`."""

    _source_kind = "image_list"


class StreamInputLayer(MultiProcessInputLayer):
    """Samples from iterators: `param_str: "{make: my_data:samples, capacity: 1000, batch_size: 64}"`."""

    _source_kind = "stream"
