"""The processes of a pipeline seen from the trainer, and doing harm to them."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.transport import Activity, LoaderState

from ..support.waiting import DEADLINE_S, wait_until_none

_BUSY = (Activity.READING, Activity.DECODING, Activity.POSTPROCESSING)
_POLL_S = 0.0005


def send(state: LoaderState, number: signal.Signals) -> bool:
    """Signal that loader; False if it has ended since, even if its number is another process's by now."""
    with suppress(OSError):
        handle = os.pidfd_open(state.pid)
        try:
            if b"blobfeed.workers.fork_server_main" not in Path(f"/proc/{state.pid}/cmdline").read_bytes():
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        finally:
            os.close(handle)
    return False


def loaders(pipeline: Pipeline, *, busy: bool = False) -> list[LoaderState]:
    """The loaders that there are; with `busy` only those that are working on a task."""
    return [state for state in pipeline.activities() if state.pid and (not busy or state.activity in _BUSY)]


def some_loader(pipeline: Pipeline, rng: random.Random, patience_s: float) -> LoaderState | None:
    """A loader that is working on a task or, if within `patience_s` there is none, any one."""
    deadline = time.monotonic() + patience_s
    while not (found := loaders(pipeline, busy=True)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    found = found or loaders(pipeline)
    return rng.choice(found) if found else None


def count_of(pipeline: Pipeline, name: str, least: int) -> int:
    """The pipeline's count of that name, as soon as it has come to `least`: what is counted may be told late."""
    wait_until_none(lambda: [name] if getattr(pipeline.statistics(), name) < least else [], DEADLINE_S)
    return int(getattr(pipeline.statistics(), name))


def assembler() -> int:
    """The process id of the one pipeline's assembler that runs."""
    (server,) = (each for each in psutil.Process().children() if "blobfeed.workers.fork_server_main" in each.cmdline())
    (child,) = server.children()
    return int(child.pid)


def memory(*, with_trainer: bool) -> tuple[int, int]:
    """Resident and proportional set size in bytes, summed over all processes below this one, or with it."""
    me = psutil.Process()
    sizes = [each.memory_full_info() for each in [*me.children(recursive=True), *([me] if with_trainer else [])]]
    return sum(size.rss for size in sizes), sum(size.pss for size in sizes)
