"""Input layers for one kind of source each, whose options stand at the top level of param_str."""

from __future__ import annotations

import importlib
from typing import ClassVar

from ..workers.base.checks import known_names
from .multi_process_input_layer import MultiProcessInputLayer
from .options import InnerSource


class _ReadyMadeLayer(MultiProcessInputLayer):
    source_kind: ClassVar[str]
    """The key under `source:` that MultiProcessInputLayer would want."""

    source_options: ClassVar[str]
    """module:class of the source's options, below workers.sources; imported when a layer is set up."""

    source_names_tops: ClassVar[bool] = False
    """Whether the source takes its tops' names as further options."""

    def _inner_source(self) -> InnerSource:
        module, _, name = self.source_options.partition(":")
        package = __name__.partition(".")[0]
        options = getattr(importlib.import_module(f"{package}.workers.sources.{module}"), name)
        return InnerSource(self.source_kind, known_names(options), self.source_names_tops)


class HDF5InputLayer(_ReadyMadeLayer):
    """HDF5 files with one data set per top: `param_str: "{path: train.h5, batch_size: 64}"`."""

    source_kind = "hdf5"
    source_options = "hdf5.source:HDF5Options"


class HDF5SamplesInputLayer(_ReadyMadeLayer):
    """HDF5 files with one data set, or one group, per sample: `param_str: "{path: all.h5, batch_size: 64}"`."""

    source_kind = "hdf5_samples"
    source_options = "hdf5_samples.source:HDF5SamplesOptions"


class NpyInputLayer(_ReadyMadeLayer):
    """.npy files, one or several per top: `param_str: "{data: images.npy, label: labels.npy, batch_size: 64}"`."""

    source_kind = "npy"
    source_options = "stored.npy:NpyOptions"
    source_names_tops = True


class ImageListInputLayer(_ReadyMadeLayer):
    """Images named in a text file, as Caffe's ImageData takes it: `param_str: "{path: train.txt, batch_size: 64}"`."""

    source_kind = "image_list"
    source_options = "images.options:ImageListOptions"


class StreamInputLayer(_ReadyMadeLayer):
    """Samples from iterators: `param_str: "{make: my_data:samples, capacity: 1000, batch_size: 64}"`."""

    source_kind = "stream"
    source_options = "stream:StreamOptions"
