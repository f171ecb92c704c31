"""torch.utils.data.DataLoader: as most write it, and tuned.

Most: `__getitem__` reads one row through h5py, default collation, two workers kept over the epochs.
Tuned: `__getitems__` gets the whole batch and reads it in one sorted call into shared memory, as torch's own collation
does it, so that nothing is copied on the way to the trainer; there it becomes float in a tensor that was there before
(so that a quarter of the bytes travels); OMP_NUM_THREADS=1 (set by the harness). Of small rows a worker reads many
batches at a time, which the trainer takes apart: a message costs more than such a batch. Chunks that are decompressed
as a whole are shuffled in windows, and each worker has windows of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ..datasets import JPEG
from ..reading import Array, PillowCrops, Reader
from ..works import Work
from . import WORKERS, Batch
from .orders import batches_of


class Samples(Dataset[tuple[Array, int]]):
    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        return self.reader.one(index)


class BatchedSamples(Samples):
    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        made: list[torch.Tensor] = []

        def shared(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            storage = torch.UntypedStorage._new_shared(math.prod(shape) * dtype.itemsize)  # type: ignore[no-untyped-call]
            empty = torch.empty(0, dtype=torch.from_numpy(np.empty(0, dtype)).dtype)
            made.append(empty.set_(storage, 0, shape))  # type: ignore[call-overload]
            return np.asarray(made[0].numpy())

        _, labels = self.reader.many(indices, shared)
        return made[0], torch.from_numpy(labels)


_AT_ONCE_BYTES = 1 << 20


def _as_it_is(batch: Any) -> Any:
    return batch


class Order:
    """The indices of `at_once` batches, without end: from each worker's stream by turns, as they are dealt."""

    def __init__(self, work: Work, samples: int, at_once: int) -> None:
        self._work, self._samples, self._at_once = work, samples, at_once

    def __iter__(self) -> Iterator[list[int]]:
        streams = [batches_of(self._work, self._samples, seed) for seed in range(WORKERS)]
        for stream in itertools.cycle(streams if self._work.chunk else streams[:1]):
            yield np.concatenate([next(stream) for _ in range(self._at_once)]).tolist()


def _endless(loader: DataLoader[tuple[Array, int]], dtype: torch.dtype) -> Iterator[Batch]:
    while True:
        for data, labels in loader:
            yield data.to(dtype), labels


@contextmanager
def _from_workers(work: Work, reader: Reader) -> Iterator[Iterator[Batch]]:
    loader = DataLoader(
        Samples(reader),
        batch_size=work.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    yield _endless(loader, getattr(torch, work.dtype))


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    with _from_workers(work, work.reader(samples)) as batches:
        yield batches


@contextmanager
def open_pillow(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    with _from_workers(work, PillowCrops(JPEG.path(samples), samples, work.shape[-1])) as batches:
        yield batches


@contextmanager
def open_tuned(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    at_once = max(1, _AT_ONCE_BYTES // (work.batch_size * math.prod(work.shape)))
    loader = DataLoader(
        BatchedSamples(work.reader(samples)),
        batch_sampler=Order(work, samples, at_once),
        num_workers=WORKERS,
        prefetch_factor=2,
        collate_fn=_as_it_is,
    )
    yield _into_a_blob(work, loader, torch.empty((work.batch_size, *work.shape), dtype=getattr(torch, work.dtype)))


def _into_a_blob(work: Work, loader: DataLoader[tuple[Array, int]], blob: torch.Tensor) -> Iterator[Batch]:
    mean, scale = work.normalise.mean, work.normalise.scale
    for rows, labels in loader:
        for data, label in zip(rows.split(len(blob)), labels.split(len(blob)), strict=True):
            if data.dtype == blob.dtype:
                yield data, label
            elif (mean, scale) == (0.0, 1.0):
                yield blob.copy_(data), label
            else:
                yield torch.sub(data, mean, out=blob).mul_(scale), label
