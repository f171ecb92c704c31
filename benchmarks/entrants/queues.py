"""The recipe found in many repositories: worker processes between two multiprocessing queues.

Plain: a worker takes the indices of a batch, reads them one by one and puts the stacked batch into the queue.
With an assembler: workers put single samples, one more process stacks them into batches.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from typing import Any

from ..reading import Array, Labels, Reader, stack
from ..works import Work
from . import WORKERS, Batch
from .orders import into_blob, shuffled_batches

_FORK = multiprocessing.get_context("fork")
_AHEAD = 4
"""Batches asked for ahead, as blobfeed's prefetch_batches and torch's two per worker."""

Queue = Any  # multiprocessing.Queue is a method, no type; its class is generic only in the stubs


def _read_batches(reader: Reader, tasks: Queue, results: Queue) -> None:
    while True:
        results.put(stack([reader.one(int(index)) for index in tasks.get()]))


def _read_samples(reader: Reader, tasks: Queue, results: Queue) -> None:
    while True:
        for index in tasks.get():
            results.put(reader.one(int(index)))


def _assemble(results: Queue, batches: Queue, batch_size: int) -> None:
    while True:
        batches.put(stack([results.get() for _ in range(batch_size)]))


@contextmanager
def _running(*workers: tuple[Callable[..., None], tuple[Any, ...]]) -> Iterator[None]:
    processes: list[ForkProcess] = [_FORK.Process(target=target, args=args, daemon=True) for target, args in workers]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _ask_and_take(work: Work, samples: int, tasks: Queue, batches: Queue) -> Iterator[tuple[Array, Labels]]:
    order = shuffled_batches(samples, work.batch_size)
    for _ in range(_AHEAD):
        tasks.put(next(order))
    while True:
        data, labels = batches.get()
        tasks.put(next(order))
        yield data, labels


@contextmanager
def open_batches(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    tasks, batches = _FORK.Queue(), _FORK.Queue()
    with _running(*[(_read_batches, (work.reader(samples), tasks, batches))] * WORKERS):
        yield into_blob(work, _ask_and_take(work, samples, tasks, batches))


@contextmanager
def open_assembled(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    tasks, results, batches = _FORK.Queue(), _FORK.Queue(maxsize=_AHEAD * work.batch_size), _FORK.Queue()
    readers = [(_read_samples, (work.reader(samples), tasks, results))] * WORKERS
    with _running(*readers, (_assemble, (results, batches, work.batch_size))):
        yield into_blob(work, _ask_and_take(work, samples, tasks, batches))
