"""The most that this machine can do in the same run: the floor under every transport, with nothing delivered to anyone.

copy: the trainer alone copies batches from slots to its blob.
gather: the trainer alone gathers rows of the mapped data file, in random order, right into its blob: each byte moves
once.  gather and convert: the same, uint8 to float32, in one compiled loop.  By two: two processes do so, each into
memory of the size of a ring of slots.
read and copy: two processes gather rows of the mapped data file, in random order, and each copies what it gathered once
more: one read and one copy of each byte on two cores, and neither waits.  read and convert: the same, and
the copy is the conversion to float32.
decode, decompress: two processes do only that.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import Array, c_longlong
from functools import partial
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np
from blobfeed.workers.loading import Conversion, gather
from numpy.typing import NDArray

from .datasets import HDF5_GZIP, JPEG
from .entrants import WORKERS, Batch
from .reading import TurboCrops
from .works import Work

_SLOTS = 6
"""Buffers used in turn, as a ring's slots are, and so many that they do not stay in the cache."""

_LOOK_S = 0.005
_MOVED_BYTES = 64 << 20
"""Larger than the caches."""

Bytes = NDArray[np.uint8]
Effort = Callable[[Work, int, int], Iterator[int]]
"""Given work, samples and worker it does the work without end, and yields how many samples each step of it has done."""


@contextmanager
def open_copy(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    blob = np.zeros((work.batch_size, *work.shape), work.dtype)
    slots = np.ones((max(_SLOTS, _MOVED_BYTES // blob.nbytes), *blob.shape), work.dtype)
    yield _copies(slots, blob)


def _copies(slots: NDArray[Any], blob: NDArray[Any]) -> Iterator[Batch]:
    while True:
        for slot in slots:
            np.copyto(blob, slot)
            yield blob, range(len(blob))


@contextmanager
def open_gather(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    yield _gathers(work, samples, "uint8", _take_rows)


def _gather(work: Work, samples: int, worker: int) -> Iterator[int]:
    return (len(rows) for _, rows in _gathers(work, samples, "uint8", _stream_rows, _SLOTS, worker))


def _stream_rows(rows: Bytes, indices: NDArray[np.int64], blob: NDArray[Any]) -> None:
    """Past the caches, by the extension, if it was built."""
    if not gather(rows.reshape(-1), indices * rows.shape[1], np.arange(len(indices)), blob):
        _take_rows(rows, indices, blob)


def _take_rows(rows: Bytes, indices: NDArray[np.int64], blob: NDArray[Any]) -> None:
    np.take(rows, indices, axis=0, out=blob, mode="clip")


@contextmanager
def open_gather_and_convert(work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    yield _gathers(work, samples, work.dtype, partial(_convert_rows, work))


def _gather_and_convert(work: Work, samples: int, worker: int) -> Iterator[int]:
    convert = partial(_convert_rows, work)
    return (len(rows) for _, rows in _gathers(work, samples, work.dtype, convert, _SLOTS, worker))


def _convert_rows(work: Work, rows: Bytes, indices: NDArray[np.int64], blob: NDArray[Any]) -> None:
    """By the extension, if it was built: nothing faster is known here."""
    mean = np.full((1,), work.normalise.mean, np.float32) if work.normalise.mean else None
    if convert := Conversion(work.normalise.scale, mean).gather_into(blob, rows.dtype):
        convert(rows, indices * rows.shape[1], np.arange(len(indices)))
    else:
        work.normalise(rows[indices], blob)


def _gathers(
    work: Work, samples: int, dtype: str, put: Callable[..., object], blobs: int = 1, seed: int = 0
) -> Iterator[Batch]:
    """`blobs`: filled in turn."""
    rows, order = _rows(work, samples), np.random.default_rng(seed).permutation(samples)
    memory = itertools.cycle(np.zeros((blobs, work.batch_size, rows.shape[1]), dtype))
    while True:
        for start in range(0, samples - work.batch_size + 1, work.batch_size):
            put(rows, order[start : start + work.batch_size], blob := next(memory))
            yield blob, range(work.batch_size)


def _work_on(effort: Effort, work: Work, samples: int, worker: int, done: Array[c_longlong]) -> None:
    for count in effort(work, samples, worker):
        done[worker] += count


@contextmanager
def _in_workers(effort: Effort, work: Work, samples: int) -> Iterator[Iterator[Batch]]:
    """Samples that the workers have done since the last look, as batches of no data."""
    context = multiprocessing.get_context("fork")
    done = RawArray(c_longlong, WORKERS)
    processes = [
        context.Process(target=_work_on, args=(effort, work, samples, worker, done), daemon=True)
        for worker in range(WORKERS)
    ]
    for process in processes:
        process.start()
    try:
        yield _progress(done)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _progress(done: Array[c_longlong]) -> Iterator[Batch]:
    seen = 0
    while True:
        time.sleep(_LOOK_S)
        now = sum(done)
        yield None, range(now - seen)
        seen = now


def _rows(work: Work, samples: int) -> np.memmap[Any, np.dtype[np.uint8]]:
    """The stored samples as bytes, shape (samples, bytes of one), mapped."""
    path = work.data.path(samples)
    size = int(np.prod(work.shape))
    if path.is_dir():
        data = np.load(path / "data.npy", mmap_mode="r")
        return np.memmap(path / "data.npy", np.uint8, "r", data.offset, (samples, size))
    import h5py  # type: ignore[import-untyped]

    with h5py.File(path, "r") as file:
        data = file["data"]
        # Chunks lie one behind the other, but for a few index blocks: for the speed it is all the same.
        offset = data.id.get_offset() if data.chunks is None else data.id.get_chunk_info(0).byte_offset
    return np.memmap(path, np.uint8, "r", offset, (samples, size))


def _gather_and_copy(work: Work, samples: int, worker: int) -> Iterator[int]:
    """Into a blob of the work's own type."""
    rows = _rows(work, samples)
    slots = np.zeros((_SLOTS, work.batch_size, rows.shape[1]), np.uint8)
    blob = np.zeros(slots.shape[1:], work.dtype)
    order = np.random.default_rng(worker).permutation(samples)
    while True:
        for start in range(0, samples - work.batch_size + 1, work.batch_size):
            slot = slots[start // work.batch_size % _SLOTS]
            # mode="clip": with the default, take() would gather into a buffer of its own first.
            np.take(rows, order[start : start + work.batch_size], axis=0, out=slot, mode="clip")
            np.copyto(blob, slot)
            yield work.batch_size


def _decode(work: Work, samples: int, worker: int) -> Iterator[int]:
    reader = TurboCrops(JPEG.path(samples), samples, work.shape[-1], resizes=work.resizes)
    rng = np.random.default_rng(worker)
    slots = np.zeros((_SLOTS * work.batch_size, *work.shape), np.uint8)
    while True:
        for turn, index in enumerate(rng.permutation(samples)):
            slots[turn % len(slots)] = reader.cut(int(index))
            yield 1


def _decompress(work: Work, samples: int, worker: int) -> Iterator[int]:
    import deflate
    import h5py

    with h5py.File(HDF5_GZIP.path(samples), "r") as file:
        data = file["data"]
        step = data.chunks[0]
        size = step * int(np.prod(work.shape))
        while True:
            for chunk in np.random.default_rng(worker).permutation(samples // step):
                _, stored = data.id.read_direct_chunk((int(chunk) * step, 0, 0, 0))
                deflate.zlib_decompress(stored, size)
                yield step


open_gather_by_two = partial(_in_workers, _gather)
open_gather_and_convert_by_two = partial(_in_workers, _gather_and_convert)
open_read_and_copy = partial(_in_workers, _gather_and_copy)
open_decode = partial(_in_workers, _decode)
open_decompress = partial(_in_workers, _decompress)
