"""Plug-ins of DLIO: blobfeed's loader (`reader.data_loader_classname`), and a fair reader for torch's loader.

DLIO's own readers read a sample and deliver one constant array in its place. Both of these deliver the sample.
"""

# DLIO is in an environment of its own.
# mypy: disable-error-code="import-not-found,import-untyped,misc"

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader import torch_data_loader
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.reader_handler import FormatReader
from indexed_binary import IndexedBinary
from PIL import Image

from blobfeed import BatchReader, DataLoader

# ---- blobfeed


def source_of(form: str, paths: list[str], samples: int) -> Any:
    """Return what blobfeed is given for these files of `samples` samples each."""
    files = f"{Path(paths[0]).parent}/*.{form}"
    match form:
        case "hdf5":
            return {"hdf5": {"path": files}}, ["records_0"]
        case "npz":
            return {"files": {"path": files, "arrays": {"data": "x"}}}, ["data"]
        case "jpeg" | "png":
            return {"files": {"path": files, "equal_sizes": True, "is_color": False}}, ["data"]
        case _:
            return IndexedBinary(paths, samples), ["data"]


class BlobfeedLoader(BaseDataLoader):
    """A declared source; as many loaders as torch's loader has workers."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)

    def read(self) -> None:
        args = self._args
        files = args.file_list_train if self.dataset_type is DatasetType.TRAIN else args.file_list_eval
        source, tops = source_of(str(args.format.value), files, args.num_samples_per_file)
        self.reader = BatchReader(
            source,
            tops=tops,
            batch_size=self.batch_size,
            num_loaders=args.read_threads,
            rank=args.my_rank,
            world_size=args.comm_size,
            last_batch="drop",
            device="cpu",
        )

    def next(self) -> Iterator[Any]:
        yield from self.reader

    def finalize(self) -> None:
        """Called after every epoch: the loaders go on."""


class BlobfeedDataLoader(torch_data_loader.TorchDataLoader):
    """DLIO's torch loader as it is, with blobfeed's DataLoader in the place of torch's."""

    def read(self) -> None:
        torch_data_loader.DataLoader = DataLoader
        super().read()


# ---- torch's loader with a fair reader


@functools.lru_cache(maxsize=1024)
def _hdf5(path: str) -> Any:
    return h5py.File(path, "r")["records_0"]


class FairReader(FormatReader):
    """Opens an HDF5 file once, and returns the sample as it is."""

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index)

    def read_index(self, global_sample_idx: int, step: int) -> Any:
        path, sample = self.global_index_map[global_sample_idx]
        match Path(path).suffix:
            case ".hdf5":
                return _hdf5(path)[sample]
            case ".npz":
                return np.load(path)["x"]
            case ".jpeg" | ".png":
                return np.asarray(Image.open(path))
        size = Path(path).stat().st_size // self._args.num_samples_per_file
        return np.fromfile(path, np.uint8, size, offset=sample * size)

    def open(self, filename: str) -> None: ...

    def close(self, filename: str) -> None: ...

    def get_sample(self, filename: str, sample_index: int) -> None: ...

    def next(self) -> None: ...

    def finalize(self) -> None: ...

    def is_index_based(self) -> bool:
        return True

    def is_iterator_based(self) -> bool:
        return False
