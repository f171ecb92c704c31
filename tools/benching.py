"""`blobfeed inspect --bench SOURCE`: these data on this machine, through blobfeed and through torch's DataLoader."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from ..readers.batch_reader import BatchReader
from ..workers.api import AnyArray, Source
from ..workers.base import is_installed
from .found import Found, sample_of

_ROUNDS = 3
TORCH = "torch DataLoader, sample by sample"
IN_PROCESS = "one process, no loader"

Batches = Iterator[int]
"""Reads a batch at each step; gives its samples."""


def bench(
    found: Found, *, batch_size: int, loaders: int, seconds: float, progress: Callable[[str], None]
) -> tuple[dict[str, float], str]:
    """The samples/s of each way of reading `found` shuffled: medians of interleaved rounds, as the machine may be busy.

    `seconds`: for each round of one way. Also, why torch's way is not among them, if it is not.
    """
    why = ""
    with closing(found.open()) as source:
        ways: dict[str, Callable[[], Any]] = {
            "blobfeed, shuffle: true": partial(_blobfeed, source, True, batch_size, loaders),
            IN_PROCESS: partial(_blobfeed, source, True, batch_size, 0),
        }
        if source.chunk_samples is not None:
            ways["blobfeed, shuffle: chunk"] = partial(_blobfeed, source, "chunk", batch_size, loaders)
        if not is_installed("torch"):
            why = "it is not installed"
        elif any(spec.varies or spec.dtype.kind not in "biuf" for spec in source.specs.values()):
            why = "samples differ in size, or are no real numbers"
        else:
            ways[TORCH] = partial(_torch, source, batch_size, loaders)
        rates = defaultdict(list)
        for number in range(_ROUNDS):
            for name, way in tuple(ways.items()):
                progress(f"round {number + 1} of {_ROUNDS}: {name}")
                try:
                    with way() as batches:
                        next(batches)
                        rates[name].append(_rate(batches, seconds))
                except (OSError, RuntimeError) as error:
                    if name != TORCH:
                        raise
                    # It needs /dev/shm, and containers have little of that.
                    del ways[TORCH]
                    rates.pop(TORCH, None)
                    why = f"it failed: {' '.join(str(error).splitlines()[-1:])}"
    return {name: statistics.median(each) for name, each in rates.items()}, why


def print_rates(found: Found, console: Console, *, batch_size: int, loaders: int, seconds: float) -> None:
    """Time each way of reading, and print a table of their rates beside that of torch's DataLoader, if there is one."""
    with console.status("") as status:
        rates, why = bench(found, batch_size=batch_size, loaders=loaders, seconds=seconds, progress=status.update)
    base = TORCH if TORCH in rates else IN_PROCESS
    rates[base] = rates.pop(base)  # moves it to the end
    table = Table(f"{loaders} loaders, batches of {batch_size}", "samples/s", "against the last", box=None)
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{rate / rates[base]:.2f}×")
    console.print(table)
    if why:
        console.print(f"torch's DataLoader is not timed: {why}", markup=False, soft_wrap=True)


def _rate(batches: Batches, seconds: float) -> float:
    samples, begun = 0, time.perf_counter()
    for rows in batches:
        samples += rows
        if time.perf_counter() - begun > seconds:
            break
    return samples / (time.perf_counter() - begun)


@contextmanager
def _blobfeed(source: Source, shuffle: Any, batch_size: int, loaders: int) -> Iterator[Batches]:
    padding: Any = {"pad": {}} if any(spec.varies for spec in source.specs.values()) else {}
    with BatchReader(
        source,
        batch_size=batch_size,
        shuffle=shuffle,
        num_loaders=loaders,
        epochs=None,
        rank=0,
        world_size=1,
        **padding,
    ) as reader:
        yield (batch.rows for batch in reader)


@contextmanager
def _torch(source: Source, batch_size: int, loaders: int) -> Iterator[Batches]:
    """One sample at a time, as most users' Datasets read, in as many workers.

    It reads through blobfeed's source, which is faster than h5py: what remains is torch's own way of making batches.
    """
    from torch.utils.data import DataLoader, RandomSampler

    dataset: Any = range(len(source))
    endless = RandomSampler(dataset, num_samples=sys.maxsize)  # between epochs the workers would start again
    collate = partial(_collated, source)
    batches: Any = iter(DataLoader(dataset, batch_size, sampler=endless, num_workers=loaders, collate_fn=collate))
    try:
        yield (len(next(iter(batch.values()))) for batch in batches)
    finally:
        batches._shutdown_workers()  # they otherwise live until the iterator is collected


def _collated(source: Source, indices: Sequence[int]) -> Mapping[str, AnyArray]:
    from torch.utils.data import default_collate

    collated: Mapping[str, AnyArray] = default_collate([sample_of(source, index) for index in indices])
    return collated
