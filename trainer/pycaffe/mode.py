"""The device on which later nets compute, and the seed of their random numbers: global, as in pycaffe."""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch

from ..prototxt import SolverParameter, message_class
from ..solving import choose_device

_asked = SimpleNamespace(gpu=False, device_id=0, seed=None)


def set_mode_cpu() -> None:
    _asked.gpu = False


def set_mode_gpu() -> None:
    _asked.gpu = True


def set_device(device_id: int) -> None:
    """Choose the CUDA device that set_mode_gpu means."""
    _asked.device_id = device_id


def set_random_seed(seed: int) -> None:
    _asked.seed = seed


def apply(solver: SolverParameter) -> str:
    """Put the device and the seed into `solver`; returns the kind of the device."""
    solver.device_id = _asked.device_id
    if _asked.seed is not None and not solver.HasField("random_seed"):
        solver.random_seed = _asked.seed
    return "cuda" if _asked.gpu else "cpu"


def device() -> torch.device:
    settings: SolverParameter = message_class(SolverParameter)()
    return choose_device(apply(settings), settings)


def seed() -> int:
    return int.from_bytes(os.urandom(4), "little") if _asked.seed is None else int(_asked.seed)


def solver_count() -> int:
    """1: a net is trained by one process on one device."""
    return 1


def solver_rank() -> int:
    return 0
