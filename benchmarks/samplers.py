"""The cost of handing over a sampler's epoch of 10⁸ indices: `python -P -m benchmarks.samplers`, for docs/order.md.

A source of so many tiny samples is read by four loaders, in an order that a user's function gives; the function's own
time is measured apart. Then batches of 28×28 images with and without a sampler.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from blobfeed.workers.api import IndexArray, Parameters
from blobfeed.workers.order import HookSampler, draw_epoch
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.transport import SharedFile

from .synthetic import SyntheticSource

MANY = 100_000_000
_IMAGES = 60_000
_BATCHES = 4000
_ROUNDS = 5


def backwards(epoch: int, samples: int, rng: np.random.Generator) -> IndexArray:
    return np.arange(samples - 1, -1, -1, dtype=np.int64)


def seconds_to_hand_over(samples: int) -> float:
    """From the function's return to the last index in shared memory, checked: the least of three epochs."""
    array = backwards(0, samples, np.random.default_rng())
    sampler = HookSampler("sampler", lambda *_: array, gives_batches=False)
    file = SharedFile.create("benchmark")
    rounds = []
    for epoch in range(3):
        file.free(0, 8 * samples)
        begun = time.perf_counter()
        file.write(0, draw_epoch(sampler, epoch, seed=0, samples=samples, batch_size=1).indices)
        rounds.append(time.perf_counter() - begun)
    file.close()
    return min(rounds)


def bytes_while_running(samples: int) -> tuple[int, int]:
    """(shared memory, the largest private memory of a loader) in the middle of the first epoch."""
    given = Parameters(source={}, batch_size=1000, num_loaders=4, sampler=backwards, timeout_s=600)
    with Pipeline(given, source=SyntheticSource(samples, (1,))) as pipeline:
        for number in range(50):
            batch = pipeline.take()
            first = samples - 1 - number * 1000
            if batch.indices.tolist() != list(range(first, first - 1000, -1)):
                raise AssertionError(f"batch {number} has other samples than the function gave")
            pipeline.release(batch)
        states = pipeline.activities()
        # The next epoch is drawn meanwhile.
        while any(state.loader < 0 and state.activity.name != "WAITING" for state in pipeline.activities()):
            time.sleep(0.05)
        shared = {found for state in states for found in _files_of(state.pid)}
        return sum(size for _, size in shared), max(_private(state.pid) for state in states if state.loader >= 0)


def _files_of(pid: int) -> list[tuple[int, int]]:
    links = [link for link in Path(f"/proc/{pid}/fd").iterdir() if "blobfeed-drawn" in str(link.readlink())]
    return [(link.stat().st_ino, link.stat().st_blocks * 512) for link in links]


def _private(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def batches_per_second(**order: object) -> float:
    """28×28 images, 64 in a batch, two loaders; the best of several rounds, as others can only slow them down."""
    given = Parameters(source={}, batch_size=64, num_loaders=2, **order)  # type: ignore[arg-type]
    with Pipeline(given, source=SyntheticSource(_IMAGES, (28, 28))) as pipeline:
        pipeline.release(pipeline.take())
        rounds = []
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            for _ in range(_BATCHES):
                pipeline.release(pipeline.take())
            rounds.append(_BATCHES / (time.perf_counter() - begun))
        return max(rounds)


def main() -> None:
    print(f"| {MANY:,} indices | |")
    print("|---|---|")
    print(f"| to check and hand over | {seconds_to_hand_over(MANY):.2f} s |")
    shared, private = bytes_while_running(MANY)
    print(f"| shared memory, of two epochs: this one and the next | {shared / 1e9:.2f} GB |")
    print(f"| private memory of a loader | {private / 1e6:.0f} MB |")
    print("\n| 28×28, batches of 64 | batches/s |\n|---|---|")
    for name, order in (
        ("shuffle: true", {"shuffle": True}),
        ("sampler: {draws: 60000}", {"sampler": {"draws": _IMAGES}}),
        ("a function, rng.permutation", {"sampler": lambda epoch, samples, rng: rng.permutation(samples)}),
    ):
        print(f"| {name} | {batches_per_second(**order):,.0f} |")


if __name__ == "__main__":
    main()
