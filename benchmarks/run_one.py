"""One run: the trainer's process. `python -m benchmarks.run_one JOB FILE` writes its outcome into FILE."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from .datasets import data_folder
from .entrants import Batch, Entrant, find_entrant
from .job import Figures, Job, Outcome
from .page_cache import fill
from .photographs import stamped
from .processes import MARK, Memory, cpu_seconds, members, memory
from .reading import Array, Labels
from .works import Work, find_work

_CHECKED_BATCHES = 3
_MEMORY_LOOKS = 5


def missing(entrant: Entrant) -> list[str]:
    return [package for package in entrant.packages if not _installed(package)]


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it is not there either
        return False


def check(work: Work, samples: int, batch: Batch) -> None:
    """Raise AssertionError where a batch is not what the work asks for: delivering rubbish is no way to be fast."""
    data, labels = np.asarray(batch[0]), np.asarray(batch[1]).reshape(-1)
    if data.shape[1:] != work.shape or data.dtype != work.dtype or len(labels) != len(data):
        raise AssertionError(f"got {data.shape} {data.dtype} with {len(labels)} labels, not {work.shape} {work.dtype}")
    if labels.min() < 0 or labels.max() >= samples:
        raise AssertionError(f"labels {labels.min()} to {labels.max()}, with {samples} samples")
    if work.data.stamped and not np.array_equal(_stamps(work, data), labels):
        raise AssertionError(f"samples {_stamps(work, data)} came with the labels {labels}")


def _stamps(work: Work, data: Array) -> Labels:
    raw = data.reshape(len(data), -1)
    if work.dtype == "float32" and not work.data.name.startswith("hdf5_samples"):
        return stamped((raw[:, :8] / work.normalise.scale + work.normalise.mean).astype(np.uint8))
    return stamped(raw.view(np.uint8))


@dataclass
class _Window:
    """The counts of one measurement."""

    seconds: float = 0.0
    samples: int = 0
    stalled: float = 0.0
    longest_wait_s: float = 0.0


def _read(batches: Iterator[Batch], work: Work, seconds: float, least: int, most: int | None = None) -> _Window:
    """Take batches for so long, at least `least` of them, at most until `most` samples."""
    window = _Window()
    begin = time.perf_counter()
    taken = 0
    while window.seconds < seconds or taken < least:
        asked = time.perf_counter()
        _, labels = next(batches)
        waited = time.perf_counter() - asked
        window.stalled += waited
        window.longest_wait_s = max(window.longest_wait_s, waited)
        window.samples += len(labels)
        taken += 1
        if work.step_s:
            time.sleep(work.step_s)
        window.seconds = time.perf_counter() - begin
        if most is not None and window.samples >= most:
            break
    return window


def _peak_memory(batches: Iterator[Batch], mark: str) -> tuple[Memory, int]:
    """Looked at between batches, after the measured time: each look takes the kernel milliseconds."""
    peak, processes = Memory(), 0
    for _ in range(_MEMORY_LOOKS):
        next(batches)
        found = members(mark)
        peak = max(peak, memory(found, data_folder()), key=lambda now: now.own)
        processes = max(processes, len(found))
    return peak, processes


def _warm_up(batches: Iterator[Batch], entrant: Entrant, work: Work, job: Job, begin: float) -> float:
    """Read on until `warmup_s` after `begin`, the opening; returns the longest wait for a batch."""
    for _ in range(_CHECKED_BATCHES if entrant.checked else 0):
        check(work, job.samples, next(batches))
    if entrant.warmup_epochs:
        wanted = entrant.warmup_epochs * job.samples
        _read(batches, work, seconds=600.0, least=1, most=wanted)
    return _read(batches, work, job.warmup_s - (time.perf_counter() - begin), least=2).longest_wait_s


def _imported(entrant: Entrant) -> ModuleType:
    name = entrant.module if entrant.module.startswith(".") else f".{entrant.module}"
    return importlib.import_module(name, "benchmarks.entrants")


def measure(job: Job, mark: str) -> Figures:
    entrant, work = find_entrant(job.entrant), find_work(job.work)
    module = _imported(entrant)
    if hasattr(module, "prepare"):
        for path in module.prepare(job.samples):
            fill(path)
    begin = time.perf_counter()
    with getattr(module, entrant.function)(work, job.samples, **entrant.options) as batches:
        first = next(batches)
        first_batch_s = time.perf_counter() - begin
        if entrant.checked:
            check(work, job.samples, first)
        in_first, longest = len(first[1]), first_batch_s
        del first  # a reader whose user keeps a batch has less memory to give
        window = _read(batches, work, 1.0 - first_batch_s, least=0)
        first_second = (in_first + window.samples) / max(first_batch_s, time.perf_counter() - begin)
        longest = max(longest, window.longest_wait_s, _warm_up(batches, entrant, work, job, begin))
        start = {"first_batch_s": first_batch_s, "first_second_per_s": first_second, "longest_wait_s": longest}
        return _measured(batches, work, job, mark, start)


def _measured(batches: Iterator[Batch], work: Work, job: Job, mark: str, start: dict[str, float]) -> Figures:
    everyone = cpu_seconds(members(mark))
    trainer = time.process_time()
    window = _read(batches, work, job.seconds, job.batches)
    trainer = time.process_time() - trainer
    everyone = cpu_seconds(members(mark)) - everyone
    peak, processes = _peak_memory(batches, mark)
    done = window.samples / work.batch_size
    return Figures(
        samples_per_s=window.samples / window.seconds,
        stall_s=window.stalled / done,
        trainer_cpu_s=trainer / done,
        all_cpu_s=everyone / done,
        first_batch_s=start["first_batch_s"],
        first_second_per_s=start["first_second_per_s"],
        longest_wait_s=max(start["longest_wait_s"], window.longest_wait_s),
        own_bytes=peak.own,
        shared_bytes=peak.shared,
        data_bytes=peak.data_files,
        processes=processes,
    )


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    absent = missing(find_entrant(job.entrant))
    if absent:
        outcome = Outcome(reason=f"not installed: {', '.join(absent)}")
    else:
        outcome = Outcome(figures=measure(job, os.environ[MARK]))
    Path(sys.argv[2]).write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
