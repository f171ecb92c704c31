"""Input layers for one kind of source each, whose options stand at the top level of param_str."""

from __future__ import annotations

import importlib
from typing import ClassVar

from ..workers.checks import known_names
from .multi_process_input_layer import MultiProcessInputLayer
from .options import InnerSource


class _ReadyMadeLayer(MultiProcessInputLayer):
    source_kind: ClassVar[str]
    """The key under `source:` that MultiProcessInputLayer would want."""

    source_options: ClassVar[str]
    """module:class of the source's options, below workers.sources; imported when a layer is set up."""

    def _inner_source(self) -> InnerSource:
        module, _, name = self.source_options.partition(":")
        package = __name__.partition(".")[0]
        options = getattr(importlib.import_module(f"{package}.workers.sources.{module}"), name)
        return InnerSource(self.source_kind, known_names(options))


class HDF5InputLayer(_ReadyMadeLayer):
    """HDF5 files with one data set per top: `param_str: "{path: train.h5, batch_size: 64}"`."""

    source_kind = "hdf5"
    source_options = "hdf5_options:HDF5Options"


class NpyInputLayer(_ReadyMadeLayer):
    """.npy files, or one .npz, with one array per top: `param_str: "{path: …, batch_size: 64}"`."""

    source_kind = "npy"
    source_options = "npy:NpyOptions"


class ImageListInputLayer(_ReadyMadeLayer):
    """Images named in a text file, as Caffe's ImageData takes it: `param_str: "{path: train.txt, batch_size: 64}"`."""

    source_kind = "image_list"
    source_options = "image_list:ImageListOptions"
