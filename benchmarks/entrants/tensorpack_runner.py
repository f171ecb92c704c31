"""tensorpack's ZeroMQ runner: the data flow is forked, each process makes whole batches and pushes them over IPC.

Its own guarantee is the same distribution, not each sample once an epoch: every process shuffles for itself.
`batched`: the flow yields whole batches, read in one sorted call, instead of samples that BatchData stacks.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..reading import Array, Labels, Reader
from ..works import Work
from . import WORKERS, Batch
from .orders import shuffled_batches

# Without types of its own, and no part of the project's environment: hence not by an import statement.
dataflow = importlib.import_module("tensorpack.dataflow")


class Samples:
    """An epoch of single samples, in each process shuffled by its own seed."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __iter__(self) -> Iterator[list[Array | int]]:
        for (index,) in shuffled_batches(len(self), 1, seed=os.getpid()):
            yield list(self.reader.one(int(index)))


class WholeBatches:
    """An epoch of whole batches."""

    def __init__(self, reader: Reader, batch_size: int) -> None:
        self.reader = reader
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.reader) // self.batch_size

    def __iter__(self) -> Iterator[list[Array | Labels]]:
        for indices in shuffled_batches(len(self.reader), self.batch_size, seed=os.getpid()):
            yield list(self.reader.many(indices))


def _received(runner: Any, dtype: str) -> Iterator[Batch]:
    runner.reset_state()
    while True:
        for data, labels in runner:
            yield data.astype(np.dtype(dtype), copy=False), labels


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    flow = dataflow.BatchData(dataflow.DataFromGenerator(Samples(work.reader(samples))), work.batch_size)
    yield _received(dataflow.MultiProcessRunnerZMQ(flow, WORKERS), work.dtype)


@contextmanager
def open_batched(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    flow = dataflow.DataFromGenerator(WholeBatches(work.reader(samples), work.batch_size))
    # hwm counts messages, here batches: as few ahead as everybody has, not the 50 that suit single samples.
    yield _received(dataflow.MultiProcessRunnerZMQ(flow, WORKERS, hwm=4), work.dtype)
