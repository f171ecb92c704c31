"""The cost of the order, and how well it mixes: `python -P -m benchmarks.order` prints the tables of docs/order.md.

Times are processor time, the least of several rounds: it is computation alone, and others on the machine are no matter.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from functools import partial

import numpy as np
from blobfeed.workers.api import IndexArray, Parameters
from blobfeed.workers.order import Batches, EpochOrder, MixedOrder, SampleRng, Shuffle, make_order, replacement_index
from blobfeed.workers.sources.stream import shuffled

_BATCH = 64
_ROUNDS = 5
_MIXED_SAMPLES = 102_400


def neighbours_apart(order: IndexArray, group: int = 1) -> float:
    """Return how far apart two samples come that are stored next to each other, on average, in samples.

    `order`: one epoch's samples, shape (samples,). `group`: only pairs within one run of so many samples count, as in
    one chunk of `shuffle: chunk`; 1 counts all pairs. A uniform shuffle sets them a third of the epoch apart.
    """
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    apart = np.abs(np.diff(position))
    return float(apart[np.arange(1, len(order)) % group != 0].mean() if group > 1 else apart.mean())


def rank_correlation(order: IndexArray) -> float:
    """Between the stored and the delivered order: 1 for sequential, about 0 for a uniform shuffle."""
    return float(np.corrcoef(np.arange(len(order)), order)[0, 1])


def classes_per_batch(order: IndexArray, classes: int = 100, batch: int = _BATCH) -> float:
    """Return how many of the classes a batch shows on average, of a data set that is stored sorted by class."""
    labels = order[: len(order) // batch * batch].reshape(-1, batch) * classes // len(order)
    return float(np.mean([len(np.unique(row)) for row in labels]))


def ns_per_index(order: EpochOrder, position: int, count: int, calls: int) -> float:
    """Each round asks for positions not asked for before, in `calls` ranges of `count`."""
    rounds = []
    for number in range(_ROUNDS):
        start = position + number * count * calls
        began = time.process_time_ns()
        for call in range(calls):
            order.indices(start + call * count, count)
        rounds.append((time.process_time_ns() - began) / (calls * count))
    return min(rounds)


def _us(action: Callable[[], object], number: int = 20_000) -> float:
    return min(timeit.repeat(action, timer=time.process_time, number=number, repeat=_ROUNDS)) / number * 1e6


def _power_of_ten(number: int) -> str:
    return "10" + str(len(str(number)) - 1).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _costs() -> None:
    print("| order | samples | ns an index, a million at once | the same, 64 at once | µs to resume |")
    print("|---|---|---|---|---|")
    chunked = partial(make_order, shuffle="chunk", seed=1, chunk_samples=8, window_chunks=16)
    orders: dict[str, Callable[[int], EpochOrder]] = {
        "shuffle: false": lambda samples: make_order(samples, shuffle=False, seed=1),
        "shuffle: true": lambda samples: make_order(samples, shuffle=True, seed=1),
        "shuffle: chunk, 16 chunks of 8": chunked,
        "mix of two, shuffled": lambda samples: MixedOrder([samples // 2] * 2, [0.7, 0.3], shuffle=True, seed=1),
    }
    for samples in (10**3, 10**6, 10**9):
        for name, make in orders.items():
            order, far = make(samples), 5 * 10**9
            large, small = ns_per_index(order, far, 10**6, 1), ns_per_index(order, far * 2, _BATCH, 5000)
            resume = _us(lambda make=make, samples=samples: make(samples).indices(10**9, _BATCH), 50)  # type: ignore[misc]
            print(f"| {name} | {_power_of_ten(samples)} | {large:.0f} | {small:.0f} | {resume:.0f} |")


def _calls() -> None:
    given = Parameters(batch_size=_BATCH, last_batch="partial", epochs=10, rank=1, world_size=4)
    rng, plan = SampleRng(1), Batches(10**9, given)
    print("\n| call | µs |\n|---|---|")
    print(f"| SampleRng.generator | {_us(lambda: rng.generator(3, 12345)):.2f} |")
    print(f"| numpy.random.default_rng([seed, epoch, index]) | {_us(lambda: np.random.default_rng([1, 2, 3])):.2f} |")
    print(f"| Batches.round_start | {_us(lambda: plan.round_start(3_000_000)):.2f} |")
    print(f"| replacement_index, of 10⁹ | {_us(lambda: replacement_index(1, 2, 3, 0, 10**9), 500):.0f} |")
    passed = _us(lambda: sum(shuffled(range(10_000), 1000, 1)), 5) / 10_000
    print(f"| a stream's shuffle buffer, a sample | {passed:.2f} |")


def _epoch(shuffle: Shuffle, chunk: int = 1, window: int = 16) -> IndexArray:
    order = make_order(_MIXED_SAMPLES, shuffle=shuffle, seed=1, chunk_samples=chunk, window_chunks=window)
    return order.indices(0, _MIXED_SAMPLES)


def _streamed(capacity: int) -> IndexArray:
    return np.fromiter(shuffled(range(_MIXED_SAMPLES), capacity, 1), np.int64)


def _mixing() -> None:
    print(
        f"\n| {_MIXED_SAMPLES} samples | stored neighbours come apart | rank correlation | classes in a batch of 64 |"
    )
    print("|---|---|---|---|")
    _print_mixing("sequential", _epoch(shuffle=False))
    _print_mixing("shuffle: true", _epoch(shuffle=True))
    for chunk, window in ((8, 4), (8, 16), (8, 64), (8, 256), (64, 16), (64, 64)):
        _print_mixing(f"shuffle: chunk, {window} chunks of {chunk}", _epoch("chunk", chunk, window), chunk)
    for capacity in (1000, 10_000):
        _print_mixing(f"stream, capacity {capacity}", _streamed(capacity))


def _print_mixing(name: str, order: IndexArray, chunk: int = 1) -> None:
    apart = neighbours_apart(order, chunk)
    print(f"| {name} | {apart:.0f} | {rank_correlation(order):+.3f} | {classes_per_batch(order):.1f} |")


if __name__ == "__main__":
    _costs()
    _calls()
    _mixing()
