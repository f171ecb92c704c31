"""How many threads torch computes with: fixed at start, since the last bits of a sum depend on it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch


def choose_threads(asked: int | None, cores: int, environment: Mapping[str, str]) -> int | None:
    """`asked`, else all `cores` but one; None where the user has told OpenMP, which torch then obeys.

    The one left is for the processes that make the data: threads that wait for each other at every operation come to
    a crawl when one of them has to share its core. A small net on two busy cores was 3 times faster on one of them.
    """
    if asked is not None:
        return asked
    return None if environment.get("OMP_NUM_THREADS") else max(1, cores - 1)


def fix_threads(asked: int | None) -> None:
    """Settle torch's threads for this process."""
    threads = choose_threads(asked, len(os.sched_getaffinity(0)), os.environ)
    if threads is not None:
        torch.set_num_threads(threads)
