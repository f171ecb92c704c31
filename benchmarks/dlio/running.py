"""One run of DLIO in its own environment, and what it and its processes took."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from .. import page_cache
from .workloads import Workload

_PLUGIN = Path(__file__).parent / "plugin"
_THREADS = 2
ONE_EPOCH = ("DALI",)
"""DLIO makes one more pipeline for each epoch of DALI, which refuses the second."""
_BY_LOADER = {
    "DLIO's torch": {},
    "torch, fair": {"reader.reader_classname": "blobfeed_dlio.FairReader"},
    "DALI": {"reader.data_loader": "native_dali", "reader.data_loader_sampler": "index"},
    "blobfeed.DataLoader": {
        "reader.data_loader_classname": "blobfeed_dlio.BlobfeedDataLoader",
        "reader.data_loader_sampler": "index",
        "reader.reader_classname": "blobfeed_dlio.FairReader",
    },
    "blobfeed": {
        "reader.data_loader_classname": "blobfeed_dlio.BlobfeedLoader",
        "reader.data_loader_sampler": "index",
    },
}


@dataclass(frozen=True)
class Environment:
    """`python`: that of the environment with DLIO. `folder`: for data and results, outside the repository."""

    python: Path
    folder: Path

    def data(self, workload: Workload) -> Path:
        return self.folder / f"{workload.form}_{workload.record}_{workload.files}x{workload.samples}"


@dataclass(frozen=True)
class Outcome:
    """`utilisation`: of each epoch, from 0 to 1. `cpu`: seconds of all processes for a sample, from the second epoch to
    the last but one, or NaN. `pss`: their memory then, shared pages counted once. `error`: how a run ended that failed.
    """

    utilisation: Sequence[float] = ()
    cpu: float = 0
    pss: int = 0
    error: str = ""


def make(environment: Environment, workload: Workload) -> None:
    """Have DLIO write the data, unless they are there."""
    folder = environment.data(workload)
    if not (folder / "whole").exists():
        how = {"workflow.generate_data": True, "workflow.train": False}
        done = _start(environment, workload, how, "generate", ranks=1)
        text = done.communicate()[0]
        if done.returncode:
            raise SystemExit(f"DLIO could not make {folder}:\n{text}")
        (folder / "whole").touch()
    page_cache.fill(folder)


def run(
    environment: Environment,
    workload: Workload,
    loader: str,
    step_ms: float,
    *,
    epochs: int,
    ranks: int = 1,
    cold: bool,
) -> Outcome:
    """Train on the data that `make` made; `cold`: they are read from the disk, in one epoch."""
    threads = max(1, _THREADS // ranks)
    epochs = 1 if cold or loader in ONE_EPOCH else epochs
    how = {
        "train.computation_time": step_ms / 1000,
        "train.epochs": epochs,
        "reader.read_threads": threads,
        **_BY_LOADER[loader],
    }
    (page_cache.drop if cold else page_cache.fill)(environment.data(workload))
    started = _start(environment, workload, how, loader, ranks)
    assert started.stdout is not None
    tail, seen = "", list[_Used]()
    with started:
        for line in started.stdout:
            tail = line.strip() or tail
            if "Ending epoch" in line:
                seen.append(_used_by(started.pid) if len(seen) < max(1, epochs - 1) else seen[-1])
    if started.returncode:
        return Outcome(error=tail)
    summary = json.loads((_output(environment, loader) / "summary.json").read_text())
    samples = (epochs - 2) * workload.total
    return Outcome(
        [each / 100 for each in summary["metric"]["train_au_percentage"]],
        (seen[-1].cpu - seen[0].cpu) / samples if samples > 0 else math.nan,
        seen[-1].pss,
    )


def _output(environment: Environment, loader: str) -> Path:
    return environment.folder / "results" / loader.replace(" ", "_").replace("'", "").replace(",", "")


def _start(
    environment: Environment, workload: Workload, how: dict[str, Any], loader: str, ranks: int
) -> subprocess.Popen[str]:
    options = {
        "workflow.evaluation": False,
        "dataset.num_files_eval": 0,
        "dataset.num_subfolders_train": 0,
        "dataset.num_subfolders_eval": 0,
        "dataset.format": workload.form,
        "dataset.data_folder": environment.data(workload),
        "dataset.num_files_train": workload.files,
        "dataset.num_samples_per_file": workload.samples,
        "dataset.record_length_bytes": workload.record,
        "reader.batch_size": workload.batch,
        "reader.prefetch_size": 2 * _THREADS,  # two batches for each worker, as torch's own default
        "reader.pin_memory": False,
        **how,
    }
    output = _output(environment, loader)
    command = [
        *([str(environment.python.with_name("mpiexec")), "-n", str(ranks)] if ranks > 1 else []),
        *(str(environment.python), "-P", "-m", "dlio_benchmark.main", "workload=default"),
        *(f"++workload.{name}={value}" for name, value in options.items()),
        f"hydra.run.dir={output}",
    ]
    (output / "summary.json").unlink(missing_ok=True)
    known = {**os.environ, "PYTHONPATH": str(_PLUGIN), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=known, cwd=environment.folder
    )


@dataclass(frozen=True)
class _Used:
    cpu: float
    pss: int


def _used_by(root: int) -> _Used:
    """The processor time and memory of a process and all below it."""
    cpu, pss = 0.0, 0
    processes = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    for process in processes:
        try:
            times = process.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
            pss += process.memory_full_info().pss
        except psutil.NoSuchProcess:  # one that has just ended is in its parent's time
            print(f"process {process.pid} ended while it was looked at", file=sys.stderr)
    return _Used(cpu, pss)
