"""`python -m benchmarks.auto`: `num_loaders: auto` beside each fixed number, for ten works and four kinds of trouble.

    work                    best   auto  first s  loaders
    pictures                2  412/s   0.98   0.91  2

`best`: the fixed number that gave the most batches, and its batches a second. `auto`: its own rate, as a part of that.
`first s`: the first second of auto after its first batch, as a part of its last. Each number has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py  # type: ignore[import-untyped]
import numpy as np
from blobfeed.workers.plan import usable_cores

from blobfeed import BatchReader

_FIXED_MOST = 8


def _make(folder: Path) -> None:
    random = np.random.default_rng(0)
    np.save(folder / "pictures.npy", random.integers(0, 256, (1024, 3, 224, 224), np.uint8))
    np.save(folder / "digits.npy", random.integers(0, 256, (20_000, 1, 28, 28), np.uint8))
    with h5py.File(folder / "gzip.h5", "w") as file:
        coarse = random.integers(0, 256, (512, 3, 56, 56), np.uint8).repeat(4, 2).repeat(4, 3)
        file.create_dataset("data", data=coarse, chunks=(8, 3, 224, 224), compression="gzip")
    with h5py.File(folder / "samples.h5", "w") as file:
        for number in range(4000):
            file.create_dataset(f"s{number:05}", data=random.random((64, 64, 3), np.float32)).attrs["label"] = number
    lines = []
    for number in range(600):
        picture = cv2.GaussianBlur(random.integers(0, 256, (375, 500, 3), np.uint8), (9, 9), 3)
        cv2.imwrite(str(folder / f"{number}.jpg"), picture)
        lines.append(f"{number}.jpg {number % 10}\n")
    (folder / "list.txt").write_text("".join(lines))


def _slow(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
    end = time.thread_time() + 0.002  # of its own core, as a decoder takes it
    while time.thread_time() < end:
        pass
    return dict(sample)


def _steady(step_s: float) -> Callable[[float], float]:
    return lambda now: step_s


_PICTURES: dict[str, Any] = {"source": {"npy": {"data": "pictures.npy"}}}
_DIGITS: dict[str, Any] = {"source": {"npy": {"data": "digits.npy"}}}
_JPEG: dict[str, Any] = {
    "source": {"image_list": {"path": "list.txt", "root_folder": ".", "equal_sizes": True}},
    "transform": {"crop_size": 224},
}
_GZIP: dict[str, Any] = {"source": {"hdf5": {"path": "gzip.h5"}}, "tops": "data", "shuffle": "chunk"}
_SAMPLES: dict[str, Any] = {"source": {"hdf5_samples": {"path": "samples.h5", "labels": ["label"]}}}
_HOOK: dict[str, Any] = {**_DIGITS, "decode": _slow}

WORKS: dict[str, tuple[dict[str, Any], Callable[[float], float]]] = {
    "pictures": (_PICTURES, _steady(0.0)),
    "pictures, step 10 ms": (_PICTURES, _steady(0.010)),
    "digits": (_DIGITS, _steady(0.0)),
    "JPEG": (_JPEG, _steady(0.0)),
    "JPEG, step 100 ms": (_JPEG, _steady(0.100)),
    "gzip": (_GZIP, _steady(0.0)),
    "floats": ({**_PICTURES, "transform": {"scale": 1 / 256}}, _steady(0.0)),
    "data set per sample": (_SAMPLES, _steady(0.0)),
    "hook of 2 ms": (_HOOK, _steady(0.0)),
    "hook of 2 ms, step 100 ms": (_HOOK, _steady(0.100)),
    "hidden shortage": ({**_HOOK, "prefetch_batches": 32}, lambda now: 0.5 if now < 1 else 0.080),
    "changing pace": (_HOOK, lambda now: 0.200 if now % 4 < 2 else 0.070),
    "a core is taken": (_HOOK, _steady(0.050)),
}


def _run(name: str, loaders: int | str, seconds: float) -> dict[str, Any]:
    """Return the rates of one run in this process, whose working directory has the data."""
    given, step = WORKS[name]
    busy = [multiprocessing.Process(target=_spin) for _ in range(name == "a core is taken")]
    for process in busy:
        process.start()
    settings = {"batch_size": 64, "shuffle": True, **given, "num_loaders": loaders, "epochs": None}
    try:
        with BatchReader(**settings) as reader:
            batches = iter(reader)
            next(batches)
            begun, times = time.monotonic(), [0.0]
            while times[-1] < seconds:
                time.sleep(step(times[-1]))
                next(batches)
                times.append(time.monotonic() - begun)
            first, last = sum(at < 1 for at in times), sum(at > times[-1] - 1 for at in times)
            return {"rate": len(times) / times[-1], "first": first / last, "loaders": reader.statistics().loaders}
    finally:
        for process in busy:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


def _measured(folder: Path, name: str, loaders: int | str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.auto", "--run", name, str(loaders), "--seconds", str(seconds)]
    here = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    found: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=folder, env=here))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    parser.add_argument("--run", nargs=2, metavar=("WORK", "LOADERS"), help=argparse.SUPPRESS)
    parser.add_argument("works", nargs="*", help="a part of a name; without one all")
    args = parser.parse_args()
    if args.run:
        loaders = args.run[1]
        print(json.dumps(_run(args.run[0], loaders if loaders == "auto" else int(loaders), args.seconds)))
        return
    print(f"{'work':28}{'best':>12}{'auto':>8}{'first s':>9}  loaders")
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder))
        for name in [name for name in WORKS if not args.works or any(part in name for part in args.works)]:
            numbers = range(1, min(_FIXED_MOST, usable_cores()) + 1)
            fixed = {number: _measured(Path(folder), name, number, args.seconds)["rate"] for number in numbers}
            auto, best = _measured(Path(folder), name, "auto", args.seconds), max(fixed, key=fixed.__getitem__)
            print(
                f"{name:28}{best:4} {fixed[best]:6.0f}/s{auto['rate'] / fixed[best]:8.2f}{auto['first']:9.2f}  ", end=""
            )
            print(auto["loaders"], flush=True)


if __name__ == "__main__":
    main()
