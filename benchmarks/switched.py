"""A source whose run is traced or not from moment to moment, as a flag in a file says: for benchmarks/watching.py.

Two runs side by side differ by more than a trace costs, if only in where their memory lies. So there is one, and its
processes change between the classes that trace and those that do not. The source brings the change to the assembler,
from which the loaders are forked.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.pipeline.variants import TracedPipeline
from blobfeed.workers.processes.assembler import Assembler
from blobfeed.workers.sources.stored.npy import NpySource
from blobfeed.workers.transport.status_board import LoaderStatus
from blobfeed.workers.transport.trace_ring import TracedStatus


class Flag:
    """A byte that all processes see."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(b"\1")
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 1)

    def __bool__(self) -> bool:
        return bool(self._map[0])

    def set(self, value: bool) -> None:
        self._map[0] = value


class SwitchedSource(NpySource):
    """The array `image` of a .npy file."""

    def __init__(self, path: Path, flag: Path) -> None:
        super().__init__({"image": str(path)})
        self._flag = flag

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        switch_children(Flag(self._flag))


def switch_trainer(pipeline: Pipeline, on: bool) -> None:
    pipeline.__class__ = TracedPipeline if on else Pipeline


def switch_children(flag: Flag) -> None:
    """In this process and those that are forked from it: once for each slot and for each task the flag is asked."""

    def switched(self: TracedStatus, task: int, group: int = -1) -> None:
        (begin_traced if flag else LoaderStatus.begin_task)(self, task, group)
        if bool(flag) is not (type(self) is TracedStatus):
            self.__class__ = TracedStatus if flag else Untraced
            self._from_ns = self._next_sum = self._task = 0

    class Untraced(TracedStatus):
        begin_task = switched
        write = LoaderStatus.write
        _sum_up = LoaderStatus._sum_up

    begin_traced = TracedStatus.begin_task
    TracedStatus.begin_task = switched  # type: ignore[method-assign]
    traces: dict[int, Any] = {}
    Assembler._trace = property(  # type: ignore[assignment]
        lambda self: traces[id(self)] if flag else None,
        lambda self, trace: traces.__setitem__(id(self), trace),
    )
