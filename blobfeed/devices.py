"""Where the commands compute: which device, with how many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import torch

from .trainer.prototxt.errors import SolverError


def device_of_gpus(gpus: str) -> str:
    """The device that `--gpu` names: "cuda:0" for "0", and for "all" if there is one; raises SolverError."""
    numbers = [str(number) for number in range(torch.cuda.device_count())] if gpus == "all" else gpus.split(",")
    if len(numbers) > 1:
        raise SolverError(
            f"--gpu {gpus}: training on several GPUs ({', '.join(numbers)}; NCCL in Caffe) is not supported; name one"
        )
    if gpus != "all" and not gpus.isdecimal():
        raise SolverError(f"--gpu {gpus}: expected the number of a CUDA device, or all")
    return f"cuda:{int(numbers[0])}" if numbers else "cuda"


def cuda_devices() -> Iterator[str]:
    """A line for each."""
    count = torch.cuda.device_count()
    for number in range(count):
        found = torch.cuda.get_device_properties(number)
        yield (
            f"device {number}: {found.name}, {found.total_memory / 2**30:.1f} GiB, "
            f"{found.multi_processor_count} multiprocessors, compute capability {found.major}.{found.minor}"
        )
    if not count:
        yield "torch finds no CUDA device"


def choose_threads(asked: int | None, cores: int, environment: Mapping[str, str]) -> int | None:
    """How many threads torch computes with: the last bits of a sum depend on it. None: as OMP_NUM_THREADS says.

    By default all `cores` but one, which is left to the processes that make the data: torch's threads wait for each
    other at every operation, so one that shares its core slows down all. On two busy cores a small net was 3 times
    faster with one thread.
    """
    if asked is not None:
        return asked
    return None if environment.get("OMP_NUM_THREADS") else max(1, cores - 1)


def fix_threads(asked: int | None) -> None:
    """Set torch's number of threads in this process."""
    threads = choose_threads(asked, len(os.sched_getaffinity(0)), os.environ)
    if threads is not None:
        torch.set_num_threads(threads)
