"""torch.utils.data.DataLoader: as most write it, and tuned.

Most: `__getitem__` reads one row through h5py, default collation, two workers kept over the epochs.
Tuned: `__getitems__` gets the whole batch and reads it in one sorted call, no collation beyond `from_numpy`, conversion
to float in the trainer (so that a quarter of the bytes travels), OMP_NUM_THREADS=1 (set by the harness).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..datasets import JPEG
from ..reading import Array, Labels, PillowCrops, Reader
from ..works import Work
from . import WORKERS, Batch


class Samples(Dataset[tuple[Array, int]]):
    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        return self.reader.one(index)


class BatchedSamples(Samples):
    def __getitems__(self, indices: list[int]) -> tuple[Array, Labels]:
        return self.reader.many(indices)


def _as_tensors(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`batch`: what `__getitems__` gave; torch's types know it only as a list of samples."""
    data, labels = batch
    return torch.from_numpy(data), torch.from_numpy(labels)


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
    loader = DataLoader(
        BatchedSamples(work.reader(samples)),
        batch_size=work.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        prefetch_factor=2,
        collate_fn=_as_tensors,
    )
    yield _endless(loader, getattr(torch, work.dtype))
