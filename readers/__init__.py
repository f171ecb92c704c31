"""The pipeline read without Caffe: plain loops, torch, Keras, TensorFlow; and delivery of a batch into blobs.

A name is imported when it is first asked for: a program without torch can use what needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..workers.base.extras import is_installed, need

if __name__ != "blobfeed.readers":
    raise ImportError(f"import blobfeed.readers: as {__name__!r} its classes would exist a second time")

if TYPE_CHECKING:
    from .async_reader import AsyncReader as AsyncReader
    from .batch_reader import BatchReader as BatchReader
    from .delivery.named_batches import NamedBatch as NamedBatch
    from .h5_dataset import H5Dataset as H5Dataset
    from .keras_dataset import KerasDataset as KerasDataset
    from .sharding import Shard as Shard
    from .sharding import find_shard as find_shard
    from .tensorflow_dataset import TensorFlowDataset as TensorFlowDataset
    from .torch_dataset import TorchDataset as TorchDataset

_HOMES = {
    "AsyncReader": "async_reader",
    "BatchReader": "batch_reader",
    "H5Dataset": "h5_dataset",
    "KerasDataset": "keras_dataset",
    "NamedBatch": "delivery.named_batches",
    "Shard": "sharding",
    "TensorFlowDataset": "tensorflow_dataset",
    "TorchDataset": "torch_dataset",
    "find_shard": "sharding",
}

_NEEDS = {"H5Dataset": "torch", "KerasDataset": "keras", "TensorFlowDataset": "tensorflow", "TorchDataset": "torch"}
"""The library without which there is no such class."""

__all__ = list(_HOMES)

if not TYPE_CHECKING:  # a checker that saw it would take every misspelt name for a public one

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _NEEDS:
            need(_NEEDS[name], f"blobfeed.{name}")
        found = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        return found


def __dir__() -> list[str]:
    """Without names whose library is not installed: `help` asks for every name."""
    return sorted({*globals(), *(name for name in _HOMES if name not in _NEEDS or is_installed(_NEEDS[name]))})
