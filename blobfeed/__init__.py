"""blobfeed: an input layer that makes whole batches ready ahead of the trainer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .layers import *  # noqa: F403
    from .readers.async_reader import AsyncReader as AsyncReader
    from .readers.batch_reader import BatchReader as BatchReader
    from .readers.dataloader.data_loader import DataLoader as DataLoader
    from .readers.dataloader.packed_list import PackedList as PackedList
    from .readers.delivery import NamedBatch as NamedBatch
    from .readers.h5_dataset import H5Dataset as H5Dataset
    from .readers.jax_dataset import JaxDataset as JaxDataset
    from .readers.keras_dataset import KerasDataset as KerasDataset
    from .readers.sharding import Shard as Shard
    from .readers.sharding import find_shard as find_shard
    from .readers.tensorflow_dataset import TensorFlowDataset as TensorFlowDataset
    from .sources.stream import StreamSource as StreamSource
    from .sources.table import Column as Column
    from .sources.table import Field as Field
    from .sources.table import Records as Records
    from .sources.table import Resident as Resident
    from .sources.table import Store as Store
    from .sources.table import Table as Table
    from .workers.api import ArraySpec as ArraySpec
    from .workers.api import RaggedRows as RaggedRows
    from .workers.api import Sample as Sample
    from .workers.api import Source as Source
    from .workers.api import Statistics as Statistics
    from .workers.base.errors import *  # noqa: F403

# Where each public name lives. It is imported when first asked for, so that `import blobfeed` costs a millisecond, and
# a loader that imports it does not get torch. A name is added here and, for type checkers, in the imports above; a
# test compares the two.
_HOMES = {
    "layers": (
        "HDF5InputLayer",
        "HDF5SamplesInputLayer",
        "ImageListInputLayer",
        "LayerHarness",
        "MultiProcessInputLayer",
        "NpyInputLayer",
        "StreamInputLayer",
    ),
    "readers.async_reader": ("AsyncReader",),
    "readers.batch_reader": ("BatchReader",),
    "readers.dataloader.data_loader": ("DataLoader",),
    "readers.dataloader.packed_list": ("PackedList",),
    "readers.delivery": ("NamedBatch",),
    "readers.h5_dataset": ("H5Dataset",),
    "readers.jax_dataset": ("JaxDataset",),
    "readers.keras_dataset": ("KerasDataset",),
    "readers.sharding": ("Shard", "find_shard"),
    "readers.tensorflow_dataset": ("TensorFlowDataset",),
    "workers.base.errors": (
        "AssemblerDied",
        "BlobfeedError",
        "ConcurrentUseError",
        "DescriptorLimitError",
        "EndOfData",
        "ExtraMissing",
        "FetchOrderError",
        "InexactValueError",
        "InterpreterError",
        "LoaderDied",
        "ParameterError",
        "PipelineClosed",
        "PipelineStalled",
        "RingAllocationError",
        "SampleError",
        "SampleShapeError",
        "SampleTooLargeError",
        "SocketPathError",
        "SourceError",
        "TooManyBadSamples",
        "UnequalShapesError",
    ),
    "workers.api": ("ArraySpec", "RaggedRows", "Sample", "Source", "Statistics"),
    "sources.stream": ("StreamSource",),
    "sources.table": ("Column", "Field", "Records", "Resident", "Store", "Table"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

_NEEDS = {
    "DataLoader": "torch",
    "H5Dataset": "torch",
    "JaxDataset": "jax",
    "KerasDataset": "keras",
    "TensorFlowDataset": "tensorflow",
}
"""The library that each of these classes needs."""

# `from blobfeed import *` imports every name here, so the classes that bring a framework are not among them.
__all__ = [name for name in _HOME_OF if name not in _NEEDS]

# The folders of the subpackages stand beside this one in a checkout, and inside it once installed (setup.py maps
# them). Without this line `import blobfeed`, typed at the top of a checkout, would find a package with no insides.
if (_checkout := Path(__file__).resolve().parent.parent).joinpath("setup.py").exists():
    __path__.append(str(_checkout))  # noqa: F405

if not TYPE_CHECKING:  # a checker that saw it would take every misspelt name for a public one

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if name == "TorchDataset":  # until 0.1; an AttributeError would lose the text
            raise ImportError(
                "blobfeed.TorchDataset has gone: for a Dataset of your own use blobfeed.DataLoader, for a declared "
                'source BatchReader(source, batch_size=…, device="cpu"), which is a loop of the same batches'
            )
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _NEEDS:
            from .workers.base import need

            need(_NEEDS[name], f"blobfeed.{name}")
        try:
            found = globals()[name] = getattr(import_module(f".{home}", __name__), name)
        except AttributeError as error:
            # After an AttributeError, `from blobfeed import` would report only a missing name, and lose this text.
            raise ImportError(f"blobfeed.{name} cannot be imported: {error}") from error
        return found


def __dir__() -> list[str]:
    """List the public names without those whose library is missing, since `help(blobfeed)` loads every name."""
    from .workers.base import is_installed

    return sorted({*globals(), *_HOME_OF} - {name for name, library in _NEEDS.items() if not is_installed(library)})
