"""The batches that the trainer's process may make by itself under `num_loaders: auto`."""

from __future__ import annotations

from ..api import Hooks
from ..plan import Plan
from ..sources import is_in_memory, is_our_own

_HEAD_START_S = 0.2
_HEAD_START_BATCHES = 16
"""Beside a training step of 10 ms they last as long as loaders take to start; four left 0.2 s to wait."""


def reads_only(plan: Plan) -> bool:
    """Return true if rows are only copied as they are stored: nothing is decoded, and no user code runs."""
    if plan.order is None or plan.postprocesses:
        return False
    decoded = plan.decoded.value
    return bool(decoded.rows.changes_nothing and decoded.source.stores_rows)


def copies_memory(plan: Plan) -> bool:
    """Return true if rows are only copied from memory: no file can be cut or hang, and no loader would be faster."""
    return reads_only(plan) and is_in_memory(plan.decoded.value.source)


def head_start(plan: Plan) -> int:
    """Return the number of batches that the trainer makes while loaders start; 0 if it makes none.

    It makes none if user code would run. Otherwise it makes as many as take about as long as the start, from 2 to 16.
    """
    if plan.order is None or plan.postprocesses:
        return 0
    decoded = plan.decoded.value
    if decoded.rows.hooks != Hooks() or not is_our_own(decoded.source):
        return 0
    if plan.parameters.on_error != "raise":
        return 0  # each feed counts bad samples for itself
    if plan.rows_at_once > 1:
        return 0  # many requests at a time take threads, which no trainer's process starts
    batch_s = plan.seconds_per_row * plan.parameters.batch_size
    return max(2, min(_HEAD_START_BATCHES, int(_HEAD_START_S / max(batch_s, 1e-6))))
