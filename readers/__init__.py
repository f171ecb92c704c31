"""The pipeline read without Caffe: plain loops, torch, Keras, TensorFlow; and delivery of a batch into blobs.

A name is imported when it is first asked for: a program without torch can use what needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ != "blobfeed.readers":
    raise ImportError(f"import blobfeed.readers: as {__name__!r} its classes would exist a second time")

if TYPE_CHECKING:
    from .async_reader import AsyncReader as AsyncReader
    from .batch_reader import BatchReader as BatchReader
    from .delivery.handout import NamedBatch as NamedBatch
    from .h5_dataset import H5Dataset as H5Dataset
    from .keras_face import KerasFeed as KerasFeed
    from .sharding import Shard as Shard
    from .sharding import find_shard as find_shard
    from .tensorflow_face import tf_dataset as tf_dataset
    from .torch_face import TorchFeed as TorchFeed

_HOMES = {
    "AsyncReader": "async_reader",
    "BatchReader": "batch_reader",
    "H5Dataset": "h5_dataset",
    "KerasFeed": "keras_face",
    "NamedBatch": "delivery.handout",
    "Shard": "sharding",
    "TorchFeed": "torch_face",
    "find_shard": "sharding",
    "tf_dataset": "tensorflow_face",
}

__all__ = list(_HOMES)

if not TYPE_CHECKING:  # a checker that saw it would take every misspelt name for a public one

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
