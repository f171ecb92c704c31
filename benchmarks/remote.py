"""Loaders on a Ray cluster beside local ones, on the same cores: `python -m benchmarks.remote`, for docs/cluster.md.

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
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from blobfeed.workers.base.parameters import check_parameters
from blobfeed.workers.pipeline.pipeline import Pipeline

from tests.support.ray_cluster import RayCluster

from .photographs import crops
from .report import machine

_IMAGES, _BATCH = 512, 64
_ROW = (3, 224, 224)
_AHEAD = 6
"""Batches that lie ready when a block begins were made before it."""

_IN_FLIGHT = 8
_NODE = "loader"

Block = Callable[[], float]
"""Runs for a while; returns what it has moved in a second."""


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
    """Samples per second, without those that lay ready."""

    def run() -> float:
        for _ in range(2 * _AHEAD):
            pipeline.release(pipeline.take())
        begun, samples = time.perf_counter(), 0
        while (took := time.perf_counter() - begun) < seconds:
            batch = pipeline.take()
            samples += len(batch.indices)
            pipeline.release(batch)
        return samples / took

    return run


def compare(first: Block, second: Block, rounds: int) -> tuple[float, float, float]:
    """Medians of both, and of the ratio of each pair, second to first."""
    pairs = [(first(), second()) for _ in range(rounds)]
    return median(a for a, _ in pairs), median(b for _, b in pairs), median(b / a for a, b in pairs)


class PlainLoop:
    """What Ray can do: two actors that give back batches of `nbytes`, and a loop that copies each, eight under way.

    In a process of its own, as the bridge is.
    """

    def __init__(self, address: str, nbytes: int) -> None:
        command = [sys.executable, "-P", "-m", "benchmarks.remote", "--plain", address, str(nbytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, seconds: float) -> float:
        """Samples per second."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(seconds, file=process.stdin, flush=True)
        moved: float = json.loads(process.stdout.readline())
        return moved

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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
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
        print(f"{machine()}\n\n| samples/s, median of {rounds} pairs | | | ratio |\n|---|---:|---:|---:|")
        photographs = {"image_list": {"path": "list.txt", "new_height": 224, "new_width": 224}}
        with opened(photographs, folder, num_loaders=2) as local, opened(photographs, folder, **remote) as far:
            here, there, ratio = compare(block_of(local, seconds), block_of(far, seconds), rounds)
        print(f"| JPEG 500×375 to 224×224: 2 local, 2 remote loaders | {here:,.0f} | {there:,.0f} | {ratio:.2f} |")
        rows = {"npy": {"data": "data.npy"}}
        loop = PlainLoop(cluster.address, _BATCH * int(np.prod(_ROW)))
        with opened(rows, folder, **remote) as far:
            plainly, there, ratio = compare(lambda: loop.run(seconds), block_of(far, seconds), rounds)
        loop.close()
        print(f"| raw rows of 150 KB: ray.get loop, 2 remote loaders | {plainly:,.0f} | {there:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
