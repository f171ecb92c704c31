"""`python -m benchmarks.item`: what a sample costs beside the user's own function, and torch's DataLoader beside it.

    shape  | seeds | decode | dataset
    3×8×8  | yes   | 3.9 µs | 5.6 µs

First the loop of a loader: the processor time of a sample, less that of the function alone. `decode` returns arrays by
name; `dataset[i]` is a tensor and a number, by the recipe of docs/from_torch.md. Then the whole way of `dataset`, with
two loaders and, in turn, with two workers of torch: samples a second, and the processor time that all processes take
for one, with the function's own. `work` is the processor time that the function takes besides.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from blobfeed.readers.opening import make_plan
from blobfeed.workers.api import Hooks, Sample, allocate_rows, check_parameters
from blobfeed.workers.transport import StatusBoard
from torch.utils.data import DataLoader, Dataset

from blobfeed import BatchReader

from .report import table

_SHAPES = ((3, 8, 8), (3, 64, 64), (3, 224, 224))
_WORKS = (*((shape, 0.0) for shape in _SHAPES), (_SHAPES[-1], 300e-6), (_SHAPES[-1], 3e-3))
_ENTRANTS = ("blobfeed", "blobfeed, no seeds", "torch")
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

    def hook(self) -> Callable[..., Any]:
        return lambda sample, rng: self[int(sample["index"])]


def _decode(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
    return {"data": sample["data"], "label": sample["label"]}


def _parameters(source: dict[str, Any], seeds: bool) -> dict[str, Any]:
    given = {"source": source, "tops": ["data", "label"], "batch_size": _BATCH, "shuffle": True}
    return {**given, "seed_globals": seeds}


def _indices(dataset: Items) -> dict[str, Any]:
    return {"arrays": {"index": np.arange(len(dataset))}}


# ---- the loop of a loader


def loop(shape: Sequence[int], through: str, seeds: bool) -> float:
    """The processor seconds of a sample in a loader's loop, less those of the function alone."""
    dataset, indices = Items(shape), np.arange(_BATCH)
    if through == "decode":
        source = {"arrays": {"data": dataset.images.numpy(), "label": np.arange(_STORED)}}
        hook, samples = _decode, [Sample({"data": each, "label": 0}, 0, 0) for each in dataset.images.numpy()]
    else:
        source, hook, samples = (
            _indices(dataset),
            dataset.hook(),
            [Sample({"index": np.array(each)}, 0, 0) for each in indices],
        )
    plan = make_plan(check_parameters(_parameters(source, seeds)), Hooks(decode=hook), Path(), True, None)
    board, rows, rng = StatusBoard.create(1), allocate_rows(plan.slot_specs, _BATCH), np.random.default_rng()
    make = partial(plan.decoded.value.make, indices, np.zeros(_BATCH, np.int64), rows, board.line(0).write)
    beside = _seconds(make) - _seconds(lambda: [hook(sample, rng) for sample in samples])
    del make
    board.close()
    return beside / _BATCH


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
    if entrant == "torch":
        loader = DataLoader(dataset, batch_size=_BATCH, shuffle=True, num_workers=2, persistent_workers=True)
        while True:
            yield from loader
    given = _parameters(_indices(dataset), seeds=entrant == _ENTRANTS[0])
    with BatchReader(decode=dataset.hook(), epochs=None, num_loaders=2, device="cpu", tuples=True, **given) as reader:
        yield from reader


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
    for shape, seeds in product(_SHAPES, (True, False)):
        costs = (f"{1e6 * loop(shape, through, seeds):.1f} µs" for through in ("decode", "dataset"))
        rows.append((_named(shape), "yes" if seeds else "no", *costs))
    return table(("shape", "seeds", "decode", "dataset"), rows)


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
