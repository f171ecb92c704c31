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

from ..reading import Array, Labels, Reader
from ..works import Work
from . import WORKERS, Batch
from .orders import batches_of, into_blob, shuffled_batches

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

    def __init__(self, work: Work, samples: int) -> None:
        self.work, self.reader = work, work.reader(samples)

    def __len__(self) -> int:
        return len(self.reader) // self.work.batch_size

    def __iter__(self) -> Iterator[list[Array | Labels]]:
        for indices in batches_of(self.work, len(self.reader), seed=os.getpid()):
            yield list(self.reader.many(indices))


def _received(runner: Any) -> Iterator[tuple[Array, Labels]]:
    runner.reset_state()
    while True:
        yield from runner


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    flow = dataflow.BatchData(dataflow.DataFromGenerator(Samples(work.reader(samples))), work.batch_size)
    yield into_blob(work, _received(dataflow.MultiProcessRunnerZMQ(flow, WORKERS)))


@contextmanager
def open_batched(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    flow = dataflow.DataFromGenerator(WholeBatches(work, samples))
    # hwm counts messages, here batches: as few ahead as everybody has, not the 50 that suit single samples.
    yield into_blob(work, _received(dataflow.MultiProcessRunnerZMQ(flow, WORKERS, hwm=4)))
