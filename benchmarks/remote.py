"""Loaders on a Ray cluster beside local ones, on the same cores: `python -P -m benchmarks.remote`, for docs/cluster.md.

The trainer's host is a raylet without processors; a second raylet of two processors holds the remote loaders. So all
bytes go from one object store to another, as between hosts. What is compared takes turns, in blocks of some seconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import psutil  # type: ignore[import-untyped]
from blobfeed.workers.api import check_parameters
from blobfeed.workers.pipeline import Pipeline

from tests.support.ray_cluster import RayCluster

from .photographs import crops
from .report import machine

_IMAGES, _BATCH = 512, 64
_ROW = (3, 224, 224)
_AHEAD = 6
"""Batches that lie ready when a block begins were made before it."""

_IN_FLIGHT = 8
_NODE = "loader"


class Pace(NamedTuple):
    """Samples in a second, and the seconds of processor time, of all processes together, that a sample took."""

    rate: float
    cost: float


Block = Callable[[], Pace]
"""Runs for a while."""


def write_files(folder: Path) -> None:
    """JPEG files of 500×375 with a list of them, and raw rows of 150 KB."""
    import cv2

    lines = []
    for number, picture in enumerate(crops(375, 500, _IMAGES)):
        cv2.imwrite(str(folder / f"{number}.jpg"), picture, [cv2.IMWRITE_JPEG_QUALITY, 90])
        lines.append(f"{number}.jpg {number}")
    (folder / "list.txt").write_text("\n".join(lines))
    np.save(folder / "data.npy", np.random.default_rng(0).integers(0, 256, (_IMAGES, *_ROW), np.uint8))


def opened(source: Mapping[str, Any], folder: Path, **values: Any) -> Pipeline:
    given = {"source": source, "batch_size": _BATCH, "prefetch_batches": _AHEAD, "shuffle": True, **values}
    return Pipeline(check_parameters(given), base_dir=folder)


def block_of(pipeline: Pipeline, seconds: float) -> Block:
    """Measure a pipeline's batches, without those that lay ready."""

    def run() -> Pace:
        for _ in range(2 * _AHEAD):
            pipeline.release(pipeline.take())
        begun, used, samples = time.perf_counter(), processor_s(), 0
        while (took := time.perf_counter() - begun) < seconds:
            batch = pipeline.take()
            samples += len(batch.indices)
            pipeline.release(batch)
        return Pace(samples / took, (processor_s() - used) / samples)

    return run


def processor_s() -> float:
    """Used so far by this process and all below it, the cluster's among them."""
    seconds = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:2])
    return seconds


def row(name: str, first: Block, second: Block, rounds: int) -> str:
    """Medians of both paces, and of the ratios of each pair: of the rates, and of what one processor does."""
    pairs = [(first(), second()) for _ in range(rounds)]
    rates = " | ".join(f"{median(pair[which].rate for pair in pairs):,.0f}" for which in (0, 1))
    costs = " | ".join(f"{1000 * median(pair[which].cost for pair in pairs):.2f} ms" for which in (0, 1))
    rate, cost = median(b.rate / a.rate for a, b in pairs), median(a.cost / b.cost for a, b in pairs)
    return f"| {name} | {rates} | {rate:.2f} | {costs} | {cost:.2f} |"


class PlainLoop:
    """The limit of Ray: two actors that give back batches of `nbytes`, and a loop that copies each, eight under way.

    In a process of its own, as the bridge is.
    """

    def __init__(self, address: str, nbytes: int) -> None:
        command = [sys.executable, "-P", "-m", "benchmarks.remote", "--plain", address, str(nbytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, seconds: float) -> Pace:
        process, used = self._process, processor_s()
        assert process.stdin is not None
        assert process.stdout is not None
        print(seconds, file=process.stdin, flush=True)
        rate: float = json.loads(process.stdout.readline())
        return Pace(rate, (processor_s() - used) / (rate * seconds))

    def close(self) -> None:
        self._process.communicate()


def plain(address: str, nbytes: int) -> None:
    import ray

    class Giver:
        def __init__(self) -> None:
            self.rows = np.ones(nbytes, np.uint8)

        def give(self) -> Any:
            return [self.rows]

    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    actor: Any = ray.remote(Giver)
    givers = [actor.options(num_cpus=0, resources={_NODE: 0.01}).remote() for _ in range(2)]
    out = np.empty(nbytes, np.uint8)
    waiting = [givers[number % 2].give.remote() for number in range(_IN_FLIGHT)]
    for line in sys.stdin:
        begun, number = time.perf_counter(), 0
        while (took := time.perf_counter() - begun) < float(line):
            out[:] = ray.get(waiting.pop(0))[0]
            waiting.append(givers[number % 2].give.remote())
            number += 1
        print(number * _BATCH / took, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -P -m benchmarks.remote", description=__doc__)
    parser.add_argument("--plain", nargs=2, metavar=("ADDRESS", "BYTES"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each block")
    arguments = parser.parse_args()
    if arguments.plain:
        plain(arguments.plain[0], int(arguments.plain[1]))
        return
    seconds, rounds = arguments.seconds, arguments.rounds
    with tempfile.TemporaryDirectory() as name, RayCluster(nodes=0) as cluster:
        cluster.add_node(cpus=2, resource=_NODE)
        folder = Path(name)
        write_files(folder)
        remote = {"num_loaders": 0, "remote_loaders": {"address": cluster.address, "count": 2}}
        print(f"{machine()}; median of {rounds} pairs\n")
        print("| | samples/s | | ratio | processor time for a sample | | ratio |\n|---|---:|---:|---:|---:|---:|---:|")
        photographs = {"image_list": {"path": "list.txt", "new_height": 224, "new_width": 224}}
        with opened(photographs, folder, num_loaders=2) as local, opened(photographs, folder, **remote) as far:
            blocks = block_of(local, seconds), block_of(far, seconds)
            print(row("JPEG 500×375 to 224×224: 2 local, 2 remote loaders", *blocks, rounds))
        rows = {"npy": {"data": "data.npy"}}
        loop = PlainLoop(cluster.address, _BATCH * int(np.prod(_ROW)))
        with opened(rows, folder, **remote) as far:
            blocks = (lambda: loop.run(seconds)), block_of(far, seconds)
            print(row("raw rows of 150 KB: ray.get loop, 2 remote loaders", *blocks, rounds))
        loop.close()


if __name__ == "__main__":
    main()
