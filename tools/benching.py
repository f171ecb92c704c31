"""`blobfeed bench SOURCE`: these data on this machine, through blobfeed and through torch's DataLoader."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
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
            ways["torch DataLoader, sample by sample"] = partial(_torch, source, batch_size, loaders)
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
def _torch(source: Source, batch_size: int, loaders: int) -> Iterator[Batches]:
    """A Dataset with a __getitem__, as most users write it, in as many workers.

    It reads through blobfeed's source, which is faster than h5py: what remains is torch's own way of making batches.
    """
    from torch.utils.data import DataLoader

    dataset: Any = _Rows(source)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=loaders, persistent_workers=True)
    try:
        yield (len(next(iter(batch.values()))) for _ in itertools.count() for batch in loader)
    finally:
        _end_workers(loader)


def _end_workers(loader: Any) -> None:
    if loader._iterator is not None:  # persistent workers otherwise live until the loader is collected
        loader._iterator._shutdown_workers()


class _Rows:
    """A source, one sample at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        rows = allocate_rows(self._source.specs, 1)
        self._source.read(np.array([index]), rows)
        return {top: np.asarray(array)[0] for top, array in rows.items()}
