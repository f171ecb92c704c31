"""`python -m benchmarks.item`: what a sample costs beside the user's own function, and torch's DataLoader beside it.

    shape  | decode | without seeds | dataset
    3×8×8  | 5.3 µs | 4.3 µs        | 4.2 µs

First the processor time of a sample, less that of the function alone: of a `decode` that returns arrays by name, in the
loop of a loader, and of `dataset[i]`, a tensor and a number, through a DataLoader without workers. Then the whole way
of `dataset`, with two loaders and, in turn, with two workers of torch: samples a second, and the processor time that
all processes take for one, with the function's own. `work` is the processor time that the function takes besides.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from blobfeed.readers.opening import make_plan
from blobfeed.workers.api import Hooks, Sample, allocate_rows, check_parameters
from blobfeed.workers.transport import StatusBoard
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from blobfeed import DataLoader

from .report import table

_SHAPES = ((3, 8, 8), (3, 64, 64), (3, 224, 224))
_WORKS = (*((shape, 0.0) for shape in _SHAPES), (_SHAPES[-1], 300e-6), (_SHAPES[-1], 3e-3))
_ENTRANTS = ("blobfeed", "torch")
_BATCH = 64
_SAMPLES = 1000 * _BATCH
_STORED = 64
_WARM_BATCHES = 20


class Items(Dataset[Any]):
    """A tensor and a number, after `work_s` of processor time."""

    def __init__(self, shape: Sequence[int], work_s: float = 0.0) -> None:
        self.images = torch.from_numpy(np.random.default_rng(0).random((_STORED, *shape), np.float32))
        self.work_s = work_s

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.work_s:
            end = time.thread_time() + self.work_s
            while time.thread_time() < end:
                pass
        return self.images[index % _STORED], index


def _decode(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
    return {"data": sample["data"], "label": sample["label"]}


def of_decode(shape: Sequence[int], seeds: bool) -> float:
    """The processor seconds of a sample in a loader's loop, less those of its hook alone."""
    images = Items(shape).images.numpy()
    given = {"source": {"arrays": {"data": images, "label": np.arange(_STORED)}}, "seed_globals": seeds}
    plan = make_plan(check_parameters({**given, "batch_size": _BATCH}), Hooks(decode=_decode), Path(), True, None)
    board, rows, rng = StatusBoard.create(1), allocate_rows(plan.slot_specs, _BATCH), np.random.default_rng()
    samples = [Sample({"data": image, "label": np.array(0)}, 0, 0) for image in images]
    indices, epochs = np.arange(_BATCH), np.zeros(_BATCH, np.int64)
    make = partial(plan.decoded.value.make, indices, epochs, rows, board.line(0).write)
    beside = _seconds(make) - _seconds(lambda: [_decode(sample, rng) for sample in samples])
    del make
    board.close()
    return beside / _BATCH


def of_dataset(shape: Sequence[int]) -> float:
    """The processor seconds of a sample through a DataLoader without workers, less those of `dataset[i]` alone."""
    dataset = Items(shape)
    batches = iter(DataLoader(dataset, batch_size=_BATCH, shuffle=True))
    return (_seconds(partial(next, batches)) - _seconds(lambda: [dataset[index] for index in range(_BATCH)])) / _BATCH


def _seconds(call: Callable[[], object]) -> float:
    """The least of many, so that it holds beside other programs too."""
    times = []
    for _ in range(200):
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return min(times)


# ---- the whole way


def _batches(dataset: Items, entrant: str) -> Iterator[Any]:
    kind = TorchDataLoader if entrant == "torch" else DataLoader
    loader = kind(dataset, batch_size=_BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    try:
        while True:
            yield from loader
    finally:
        if isinstance(loader, DataLoader):
            loader.close()  # the next run counts the processor time of all processes below this one


def whole_way(dataset: Items, entrant: str, seconds: float) -> tuple[float, float]:
    """Samples a second, and the processor seconds of all processes for each."""
    batches = _batches(dataset, entrant)
    for _ in range(_WARM_BATCHES):
        next(batches)
    spent, begun, count = -_processor_s(), time.monotonic(), 0
    while (took := time.monotonic() - begun) < seconds:
        next(batches)
        count += _BATCH
    spent += _processor_s()
    batches.close()  # type: ignore[attr-defined]
    return count / took, spent / count


def _processor_s() -> float:
    """That of this process and all below it, to the nanosecond."""
    us, total = psutil.Process(), 0
    for process in (us, *us.children(recursive=True)):
        for thread in process.threads():
            total += int(Path(f"/proc/{process.pid}/task/{thread.id}/schedstat").read_text().split()[0])
    return total / 1e9


# ---- the tables


def _named(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _loops() -> str:
    rows = []
    for shape in _SHAPES:
        costs = of_decode(shape, seeds=True), of_decode(shape, seeds=False), of_dataset(shape)
        rows.append((_named(shape), *(f"{1e6 * cost:.1f} µs" for cost in costs)))
    return table(("shape", "decode", "without seeds", "dataset"), rows)


def _ways(seconds: float, rounds: int) -> str:
    rows = []
    for shape, work_s in _WORKS:
        dataset = Items(shape, work_s)
        runs = [[whole_way(dataset, entrant, seconds) for entrant in _ENTRANTS] for _ in range(rounds)]
        for entrant, found in zip(_ENTRANTS, zip(*runs, strict=True), strict=True):
            rate, spent = (statistics.median(each) for each in zip(*found, strict=True))
            times = statistics.median(each[0] / run[-1][0] for each, run in zip(found, runs, strict=True))
            less = statistics.median(run[-1][1] / each[1] for each, run in zip(found, runs, strict=True))
            figures = f"{rate:,.0f}", f"{1e6 * spent:.1f} µs", f"{times:.2f}", f"{less:.2f}"
            rows.append((_named(shape), f"{1e6 * work_s:.0f} µs", entrant, *figures))
    return table(("shape", "work", "", "samples/s", "processor", "× torch", "× by processor"), rows)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=1.0, help="of each run of the whole way")
    arguments.add_argument("--rounds", type=int, default=3, help="of the whole way; the median counts")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    print(_loops(), flush=True)
    if given.rounds:
        print(_ways(given.seconds, given.rounds))


if __name__ == "__main__":
    main()
