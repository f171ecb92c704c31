"""Sliding windows over a .npy file: the first batch of 10⁸ windows, and samples/s beside a torch Dataset that slices.

    python -P -m benchmarks.windows [--rounds 3]

The first file is sparse and has 100,000,127 steps of 64 float32, 25.6 GB: windows of 128 steps, one at each step,
shuffled. Its time counts from the reader's construction to the first batch. Beside it stands that of single steps of
the same file: of two loaders it is mostly the start of processes. The second file has 1,000,000 steps of 16 float32 and
is in the page cache; both sides use two processes and batches of 64 windows of 128 steps, shuffled, and take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from blobfeed import BatchReader

from .report import rate, table

_Loaders = int | Literal["auto"]
_LENGTH, _BATCH, _PROCESSES = 128, 64, 2
_LOADERS: tuple[_Loaders, ...] = (0, "auto", _PROCESSES)
_MANY_STEPS, _MANY_FEATURES = 100_000_127, 64
_STEPS, _FEATURES = 1_000_000, 16
_SECONDS = 3.0
_WARM_UP_BATCHES = 50


class Slices(torch.utils.data.Dataset[torch.Tensor]):
    """Window i, cut out of the mapped file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: Any = None

    def __len__(self) -> int:
        return _STEPS - _LENGTH + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._steps is None:
            self._steps = np.load(self._path, mmap_mode="r")
        return torch.from_numpy(self._steps[index : index + _LENGTH].copy())


def _reader(path: Path, loaders: _Loaders, *, windows: bool = True) -> BatchReader:
    window = {"window": {"length": _LENGTH}} if windows else {}
    return BatchReader({"npy": {"data": str(path), **window}}, batch_size=_BATCH, shuffle=True, num_loaders=loaders)


@contextmanager
def _blobfeed(path: Path) -> Iterator[Iterable[Any]]:
    with _reader(path, _PROCESSES) as reader:
        yield reader


@contextmanager
def _torch(path: Path) -> Iterator[Iterable[Any]]:
    yield torch.utils.data.DataLoader(Slices(path), _BATCH, shuffle=True, num_workers=_PROCESSES)


def _samples_a_second(batches: Iterable[Any]) -> float:
    running = iter(batches)
    for _ in range(_WARM_UP_BATCHES):
        next(running)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < _SECONDS:
        next(running)
        count += 1
    return count * _BATCH / elapsed


def _first_batch_s(path: Path, loaders: _Loaders, *, windows: bool) -> float:
    start = time.perf_counter()
    with _reader(path, loaders, windows=windows) as reader:
        next(iter(reader))
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        sparse, warm = Path(folder, "sparse.npy"), Path(folder, "warm.npy")
        np.lib.format.open_memmap(sparse, "w+", np.float32, (_MANY_STEPS, _MANY_FEATURES)).flush()
        np.save(warm, np.random.default_rng(0).random((_STEPS, _FEATURES), np.float32))
        for loaders in _LOADERS:
            of_windows, of_steps = (
                statistics.median(_first_batch_s(sparse, loaders, windows=windows) for _ in range(rounds))
                for windows in (True, False)
            )
            print(
                f"first batch of {_MANY_STEPS - _LENGTH + 1:,} windows, num_loaders: {loaders}: {of_windows:.2f} s; "
                f"of single steps: {of_steps:.2f} s"
            )
        found: dict[str, list[float]] = {"blobfeed": [], "torch, a Dataset that slices": []}
        for _ in range(rounds):
            for name, opened in zip(found, (_blobfeed, _torch), strict=True):
                with opened(warm) as batches:
                    found[name].append(_samples_a_second(batches))
    print(
        table(
            ("windows/s", *found), [(f"{_LENGTH} × {_FEATURES}", *(rate(statistics.median(r)) for r in found.values()))]
        )
    )


if __name__ == "__main__":
    main()
