"""Says how many small batches share a task. Pure."""

from __future__ import annotations

_TASK_BYTES = 4 << 20
_TASK_S = 0.004
"""Twice the useful time, because the trial of a row takes twice as long beside other work."""
_MOST_BATCHES = 64


def batches_per_task(batch_bytes: int, batch_size: int, seconds_per_row: float, ahead: int | None = None) -> int:
    """Return the number of batches that share a task: more than one only if they are small and quickly made.

    `ahead`: the bound on prefetched batches, or None. At least two tasks share that many.
    """
    by_size = _TASK_BYTES // max(1, batch_bytes)
    by_time = int(_TASK_S / max(1e-9, seconds_per_row * batch_size))
    return max(1, min(by_size, by_time, _MOST_BATCHES if ahead is None else ahead // 2))
