"""HDF5 files in all layouts, and how the source reads each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.specs import AnyArray
from blobfeed.workers.sources import Source
from blobfeed.workers.sources.hdf5 import examine as hdf5_examine
from blobfeed.workers.sources.hdf5.source import HDF5Source
from blobfeed.workers.sources.stored.layout import Chunked, StoredArray, ThroughLibrary

from tests.support.stored import some_array

SAMPLES = 41
DTYPES = ["u1", "<f4", ">f4", ">i2", "<f2", "?", "<c16", "S5", "u8"]
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 4, 5)]
RING = {"data": (SAMPLES, 3, 4, 5), "label": (SAMPLES,)}


class Contiguous:
    """Stands for the layout of an array in one piece: a single chunk of the array's own shape."""


def halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(1, (extent + 1) // 2) for extent in shape)


STORED: dict[str, tuple[Callable[[tuple[int, ...]], dict[str, Any]], type]] = {
    "contiguous": (lambda _: {}, Contiguous),
    "whole_chunks": (lambda shape: {"chunks": (8, *shape)}, Chunked),
    "tiles": (lambda shape: {"chunks": (5, *halved(shape))}, Chunked),
    "gzip": (lambda shape: {"chunks": (8, *shape), "compression": "gzip"}, Chunked),
    "gzip_tiles": (
        lambda shape: {"chunks": (8, *halved(shape)), "compression": "gzip", "shuffle": True, "fletcher32": True},
        Chunked,
    ),
    "one_chunk": (lambda shape: {"chunks": (SAMPLES, *shape), "compression": "gzip", "shuffle": True}, Chunked),
    "lzf": (lambda shape: {"chunks": (7, *shape), "compression": "lzf"}, ThroughLibrary),
}


def layouts(source: Source) -> dict[str, type]:
    assert isinstance(source, HDF5Source)
    return {top: kind_of(column.arrays[0]) for top, column in source._columns.items()}


def kind_of(array: StoredArray) -> type:
    layout = array.layout
    in_one_piece = isinstance(layout, Chunked) and layout.chunk == array.shape and not layout.filters
    return Contiguous if in_one_piece else type(layout)


def write(path: Path, arrays: Mapping[str, AnyArray], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return path


@contextlib.contextmanager
def through_the_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(hdf5_examine, "_is_direct", lambda _: False)
        yield


def three_files(folder: Path) -> dict[str, AnyArray]:
    whole = {"data": some_array((30, 3, 4), "f4"), "label": np.arange(30)}
    for number, (start, stop) in {2: (0, 4), 10: (4, 5), 11: (5, 30)}.items():
        write(folder / f"part{number}.h5", {name: array[start:stop] for name, array in whole.items()})
    return whole
