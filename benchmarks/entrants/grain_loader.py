"""grain: as most write it, and tuned. Most: its DataLoader over a random-access source, batches of samples made in two
worker processes. Tuned: its MapDataset of indices, whole batches of which are read in one call in the workers.

One reading thread per worker: grain's own advice for data in memory is none or few, and its default of 16 only makes
them queue for h5py's lock. Batches travel through shared memory, which grain arranges by itself. Its workers are
spawned.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..reading import Array, Reader
from ..works import Work
from . import WORKERS, Batch
from .orders import into_blob

grain = importlib.import_module("grain.python")


class Samples:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        data, label = self.reader.one(int(index))
        return data, np.int64(label)


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    loader = grain.DataLoader(
        data_source=Samples(work.reader(samples)),
        sampler=grain.IndexSampler(samples, grain.NoSharding(), shuffle=True, num_epochs=None, seed=0),
        operations=[grain.Batch(work.batch_size, drop_remainder=True)],
        worker_count=WORKERS,
        worker_buffer_size=2,
        read_options=grain.ReadOptions(num_threads=1, prefetch_buffer_size=work.batch_size),
    )
    yield iter(loader)


@contextmanager
def open_tuned(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    indices = grain.MapDataset.range(samples).shuffle(seed=0).repeat().batch(work.batch_size, drop_remainder=True)
    one_thread = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    dataset = indices.map(work.reader(samples).many).to_iter_dataset(one_thread)
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2)
    yield into_blob(work, dataset.mp_prefetch(options))
