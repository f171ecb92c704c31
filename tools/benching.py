"""`blobfeed bench SOURCE`: these data on this machine, through blobfeed and through torch's DataLoader."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..readers.batch_reader import BatchReader
from ..workers.base.extras import is_installed
from ..workers.base.source import Source
from ..workers.base.specs import allocate_rows
from ..workers.order.make_order import make_order
from .recognise import Found

_ROUNDS = 3


@dataclass
class Timed:
    """One way of reading: the samples/s of each round, and the seconds to the first batch."""

    rates: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


Batches = Iterator[int]
"""Reads a batch at each step; gives its samples."""


def bench(
    found: Found, *, batch_size: int, loaders: int, seconds: float, told: Callable[[str], None]
) -> dict[str, Timed]:
    """Time each way of reading `found` shuffled, in interleaved rounds of `seconds` in all; the machine may be busy."""
    with closing(found.open()) as source:
        ways: dict[str, Callable[[], Any]] = {
            "blobfeed, shuffle: true": partial(_blobfeed, source, True, batch_size, loaders),
            "one process, no loader": partial(_plain, source, batch_size),
        }
        if source.chunk_samples is not None:
            ways["blobfeed, shuffle: chunk"] = partial(_blobfeed, source, "chunk", batch_size, loaders)
        fits_torch = all(not spec.varies and spec.dtype.kind in "biuf" for spec in source.specs.values())
        if is_installed("torch") and fits_torch:
            ways["torch DataLoader, sample by sample"] = partial(_torch, found, source, batch_size, loaders)
        timed = {name: Timed() for name in ways}
        for number in range(_ROUNDS):
            for name, way in ways.items():
                told(f"round {number + 1} of {_ROUNDS}: {name}")
                begun = time.perf_counter()
                with way() as batches:
                    next(batches)
                    timed[name].first_s.append(time.perf_counter() - begun)
                    timed[name].rates.append(_rate(batches, seconds / _ROUNDS))
    return timed


def _rate(batches: Batches, seconds: float) -> float:
    samples, begun = 0, time.perf_counter()
    for rows in batches:
        samples += rows
        if time.perf_counter() - begun > seconds:
            break
    return samples / (time.perf_counter() - begun)


@contextmanager
def _blobfeed(source: Source, shuffle: Any, batch_size: int, loaders: int) -> Iterator[Batches]:
    with BatchReader(source, batch_size=batch_size, shuffle=shuffle, num_loaders=loaders, **_padding(source)) as reader:
        yield (batch.rows for batch in reader)


def _padding(source: Source) -> dict[str, Any]:
    return {"pad": {}} if any(spec.varies for spec in source.specs.values()) else {}


@contextmanager
def _plain(source: Source, batch_size: int) -> Iterator[Batches]:
    order = make_order(len(source), shuffle=True, seed=0)
    rows = allocate_rows(source.specs, batch_size)

    def read() -> Batches:
        for number in itertools.count():
            source.read(order.indices(number * batch_size, batch_size), rows)
            yield batch_size

    try:
        yield read()
    finally:
        source.close()


@contextmanager
def _torch(found: Found, source: Source, batch_size: int, loaders: int) -> Iterator[Batches]:
    """As most users write it: a Dataset with a __getitem__, in as many workers."""
    from torch.utils.data import DataLoader

    dataset: Any = _HDF5Rows(found, source) if found.kind == "hdf5" and _is_one_file(found) else _Rows(source)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=loaders, persistent_workers=True)
    with ExitStack() as stack:
        batches = itertools.chain.from_iterable(loader for _ in itertools.count())
        stack.callback(_end_workers, loader)
        yield (len(next(iter(batch.values()))) for batch in batches)


def _end_workers(loader: Any) -> None:
    if loader._iterator is not None:  # persistent workers otherwise live until the loader is collected
        loader._iterator._shutdown_workers()


def _is_one_file(found: Found) -> bool:
    path = found.declared["hdf5"].get("path")
    return isinstance(path, str) and os.path.isfile(path) and set(found.declared["hdf5"]) == {"path"}  # noqa: PTH113


class _Rows:
    """Any source, one sample at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        rows = allocate_rows(self._source.specs, 1)
        self._source.read(np.array([index]), rows)
        return {top: np.asarray(array)[0] for top, array in rows.items()}


class _HDF5Rows:
    """An HDF5 file by h5py, opened in each worker at its first sample."""

    def __init__(self, found: Found, source: Source) -> None:
        self._path = found.declared["hdf5"]["path"]
        self._tops = tuple(source.specs)
        self._samples = len(source)
        self._file: Any = None

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if self._file is None:
            import h5py  # type: ignore[import-untyped]

            self._file = h5py.File(self._path, "r")
        return {top: self._file[top][index] for top in self._tops}
