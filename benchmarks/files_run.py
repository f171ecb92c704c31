"""One run of `benchmarks.files`: `python -m benchmarks.files_run GIVEN FILE`, in a fresh process."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from blobfeed.readers.opening import open_pipeline
from blobfeed.sources import open_source
from blobfeed.workers.api import Parameters, allocate_rows
from blobfeed.workers.pipeline import Pipeline

from .datasets import data_folder
from .page_cache import drop
from .processes import MARK, cpu_seconds, members, memory

_BATCH = 64
_DECIDES = 3
"""`num_loaders: auto` needs some seconds until it has found the number of loaders."""

Figures = dict[str, float]


def _disk_bytes() -> int:
    """Read from the disk by all processes of this run that are alive."""
    total = 0
    for process in members(os.environ[MARK]):
        with suppress(psutil.NoSuchProcess):
            total += process.io_counters().read_bytes
    return total


def _own_disk_bytes() -> int:
    return int(psutil.Process().io_counters().read_bytes)


def cold_rows(source: dict[str, Any], path: str) -> Figures:
    """64 shuffled rows of a file that is not in the page cache, by `read` alone."""
    opened = open_source(source, tops=["data"], base_dir=Path())
    out = allocate_rows(opened.specs, _BATCH)
    indices = np.random.default_rng(0).permutation(len(opened))[:_BATCH]
    drop(Path(path))
    disk, begin = _own_disk_bytes(), time.perf_counter()
    opened.read(indices, out)
    seconds = time.perf_counter() - begin
    row = sum(spec.nbytes for spec in opened.specs.values())
    return {"seconds": seconds, "disk_bytes": _own_disk_bytes() - disk, "wanted_bytes": row * _BATCH}


def first_rows(source: dict[str, Any], path: str, num_loaders: int | str) -> Figures:
    """The first batch of an open pipeline, of a file that is not in the page cache."""
    drop(Path(path))
    with _pipeline(source, num_loaders=num_loaders, tops=("data",)) as pipeline:
        disk, begin = _own_disk_bytes(), time.perf_counter()
        pipeline.release(pipeline.take())
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "disk_bytes": _own_disk_bytes() - disk}


def _pipeline(source: dict[str, Any], **given: Any) -> Pipeline:
    """With the default, `num_loaders: auto`."""
    pipeline = open_pipeline(Parameters(source=source, batch_size=_BATCH, shuffle=True, **given))
    pipeline.deliver_into_host(calls_make=False)
    return pipeline


def first_batch(source: dict[str, Any], path: str = "") -> Figures:
    """From nothing to the first batch; `path`: dropped from the page cache before. `cpu_s`: of opening it."""
    if path:
        drop(Path(path))
    disk, begin, cpu = _disk_bytes(), time.perf_counter(), time.process_time()
    with _pipeline(source) as pipeline:
        opened, cpu = time.perf_counter(), time.process_time() - cpu
        pipeline.release(pipeline.take())
        done, disk = time.perf_counter(), _disk_bytes() - disk
        used = memory(members(os.environ[MARK]), data_folder())
    spent = {"cpu_s": cpu, "disk_bytes": disk, "own_bytes": used.own}
    return {"opened_s": opened - begin, "seconds": done - begin, **spent}


def epochs(source: dict[str, Any], path: str, group: str) -> Figures:
    """Two epochs in a control group with less memory than the file has bytes."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    drop(Path(path))
    with _pipeline(source, epochs=2, last_batch="drop") as pipeline:
        row = sum(spec.nbytes for spec in pipeline.specs.values())
        disk, begin, batches = _disk_bytes(), time.perf_counter(), 0
        for _ in range(2 * (pipeline.samples // _BATCH)):
            pipeline.release(pipeline.take())
            batches += 1
        seconds, disk = time.perf_counter() - begin, _disk_bytes() - disk
    wanted = batches * _BATCH * row
    return {
        "samples_per_s": batches * _BATCH / seconds,
        "disk_bytes": disk,
        "wanted_bytes": wanted,
    }


def _take_for(seconds: float, pipeline: Pipeline) -> tuple[float, int]:
    """Take batches; the seconds that have passed, and how many it were."""
    begin, batches = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds:
        pipeline.release(pipeline.take())
        batches += 1
    return passed, batches


def rate(source: dict[str, Any], seconds: float) -> Figures:
    """Samples per second, warm, and the processor time that one takes in all processes together."""
    with _pipeline(source) as pipeline:
        _take_for(_DECIDES * seconds, pipeline)
        processes = members(os.environ[MARK])
        cpu = cpu_seconds(processes)
        passed, batches = _take_for(seconds, pipeline)
        cpu = cpu_seconds(processes) - cpu
    return {"samples_per_s": batches * _BATCH / passed, "cpu_s": cpu / (batches * _BATCH)}


_RUNS: dict[str, Callable[..., Figures]] = {
    run.__name__: run for run in (cold_rows, first_rows, first_batch, epochs, rate)
}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps(_RUNS[given.pop("run")](**given)))
