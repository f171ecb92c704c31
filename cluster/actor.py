"""A remote loader: does the work of a local one in its own memory, and returns the rows as bytes.

    1. place: reports its host, after the cluster has chosen one
    2. begin: unpacks the plan and makes one sample on trial, since the node may lack the files or a library
    3. work: makes the rows of one task in its own slot and returns their bytes

It is a Ray actor, owned by the bridge and ended with it.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..workers.api import IndexArray
from ..workers.base import AnotherHost, be_another_host, blake2b
from ..workers.loading import Worker, Workplace
from ..workers.order import Supply
from ..workers.plan import Plan, make_one_sample
from ..workers.processes import exceptions_only, settle
from ..workers.transport import (
    Fill,
    Levels,
    SharedFile,
    Unwatched,
    WorkDone,
    describe,
    log_to_trainer,
    send_exception,
    summary_of,
    waiting,
)

Memory = NDArray[np.uint8]


@dataclass(frozen=True)
class Refusal:
    """The reason why a loader cannot work on its node; `cause`: see StartFailed."""

    text: str
    cause: int
    traceback: str
    frames: list[bytes]


@dataclass(eq=False)
class NotSent(Exception):
    """The task needs other draws of its epoch, since a bad sample is to be replaced: so many, at that offset."""

    offset: int
    count: int


@dataclass(frozen=True)
class Made:
    """The result of a task: what Done says, the bytes of the rows, and `frames` for the trainer's error channel."""

    elapsed_ns: int
    work: WorkDone
    rows: list[Memory]
    frames: list[bytes]


@dataclass(frozen=True)
class Job:
    """A task sent to an actor.

    `drawn`: the sampler's draws that it needs, those of each run with their offset in the shared file. `made`: the
    bytes of the batch's other rows, if the task finishes it.
    """

    task: Fill
    drawn: list[tuple[int, IndexArray]]
    made: list[Memory]

    @classmethod
    def of(cls, task: Fill, supply: Supply, drawn: SharedFile, made: list[Memory]) -> Job:
        job = cls(task, [], made)
        for part in supply.file_parts(task.runs):
            job.add(drawn, *part)
        return job

    def add(self, drawn: SharedFile, offset: int, count: int) -> None:
        """Add these draws."""
        self.drawn.append((offset, drawn.read(offset, count, np.int64)))


class _SentDraws(SharedFile):
    """The draws that came with the present task; raises NotSent for others."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.sent: list[tuple[int, IndexArray]] = []

    def read(self, offset: int, count: int, _kind: object) -> Any:
        for begin, draws in self.sent:
            if begin <= offset and offset + 8 * count <= begin + draws.nbytes:
                return draws[(offset - begin) // 8 :][:count]
        raise NotSent(offset, count)


# The folders beside this one that a loader imports. In a checkout they stand among everything else that lies there.
_CODE = ("cluster", "layers", "readers", "sources", "supplies", "workers")


def code_digest() -> str:
    """Return a digest of all code that a loader runs: another version might make other bytes or misread the plan."""
    digest, root = blake2b(digest_size=16), Path(__file__).parents[1]
    for path in sorted(path for folder in _CODE for path in (root / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class RemoteLoader:
    """The actor class. Ray runs its calls one at a time, in order."""

    def place(self) -> tuple[str, int, str]:
        """Return the host, the process id there, and the cluster's id of the node."""
        import ray  # already running in an actor

        return socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id()

    def begin(
        self,
        code: str,
        plan: bytes,
        memory: Mapping[int, Memory],
        shipped: str,
        sys_path: Sequence[str],
        levels: Levels,
    ) -> Refusal | None:
        """Unpack the plan and make one sample on trial; returns None, or the reason why that failed.

        `code`: the trainer's code_digest. `plan`: pickled. `memory`: the content of the source's memory files, by their
        descriptors in the trainer. `shipped`: the trainer's folder that is the working directory here.
        """
        if code != code_digest():
            folder = Path(__file__).parents[1]
            text = f"{folder} is another version of blobfeed than the trainer's host has: install the same one on both"
            return Refusal(text, 0, "", [])
        self._theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._frames = ours
        log_to_trainer(self._theirs, levels)
        # Modules next to the trainer's script are found here, too, if this node has the same folders.
        sys.path += [entry for entry in sys_path if entry not in sys.path]
        try:
            copies = {descriptor: _memory_file(content) for descriptor, content in memory.items()}
            be_another_host(AnotherHost(shipped, str(Path.cwd()), copies))
            self._open(pickle.loads(plan))
        except Exception as error:
            return Refusal(summary_of(error), send_exception(self._theirs, error), describe(error), self._new_frames())
        return None

    def _open(self, plan: Plan) -> None:
        os.environ["BLOBFEED_ROLE"] = "assembler"  # as where local loaders import: a layer's module loads no Caffe
        for name in plan.decoded.modules:
            with suppress(ImportError):  # unpickling reports the modules that are really needed
                importlib.import_module(name)
        self._layout = plan.layout.times(plan.batches_per_task)
        make_one_sample(plan)
        settle()
        os.environ["BLOBFEED_ROLE"] = "loader"
        self._memory: Memory = np.zeros(self._layout.used_bytes, np.uint8)
        self._drawn = _SentDraws()
        # It has memory for one task, which stands for any slot of the trainer's host.
        rows = self._layout.view(self._memory)
        send_error = partial(send_exception, self._theirs)
        place = Workplace(rows, Unwatched(), send_error, self._drawn, guard=exceptions_only)
        self._worker: Worker = plan.worker(place)

    def work(self, job: Job) -> Made | NotSent:
        """Make the rows of one task."""
        task, begun = msgspec.structs.replace(job.task, slot=0), time.monotonic_ns()
        self._drawn.sent = job.drawn
        for where, made in zip(self._layout.ranges(0, task.first_row), job.made, strict=False):
            self._memory[where] = made
        try:
            done = self._worker.work(task)
        except NotSent as missing:
            return missing
        first, count = rows_of(task)
        rows = [self._memory[where] for where in self._layout.ranges(first, count)]
        elapsed = time.monotonic_ns() - begun
        return Made(elapsed, done, rows, self._new_frames())

    def _new_frames(self) -> list[bytes]:
        """Return the logged and raised frames since the last call; the bridge forwards them to the trainer."""
        return list(waiting(self._frames))


def _memory_file(content: Memory) -> int:
    file = SharedFile.create("blobfeed-source")
    file.write(0, content)
    return file.descriptor


def rows_of(task: Fill) -> tuple[int, int]:
    """Return the first row that `task` writes, counted from the beginning of its batch, and the number of rows."""
    end = task.first_row + task.rows
    return (0, end) if task.finishes else (task.first_row, task.rows)
