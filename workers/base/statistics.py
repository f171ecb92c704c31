"""What a pipeline counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statistics:
    """A moment's counts, since the pipeline was made."""

    batches: int
    """taken by the trainer"""
    stalls: int
    """batches that the trainer had to wait for"""
    stall_s: float
    """seconds that it waited"""
    start_s: float
    """seconds of these before the first batch, which no prefetching can avoid"""
    loaders: int
    loader_deaths: int
    replaced: int
    """bad samples for which another one was put in"""
    dropped_messages: int
    """frames that were not ours, not valid or not expected"""
    tasks: int
