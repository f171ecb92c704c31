"""Where the commands compute."""

from __future__ import annotations

from collections.abc import Iterator

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
