"""What a remote loader does: the work of a local one, in memory of its own, which it gives back as bytes.

    1. placed by the cluster: says where it is
    2. begins: unpacks the plan, makes one sample on trial, since this node may lack the files or a library
    3. works: makes the rows of one task in a slot of its own, and gives their bytes back

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

import numpy as np
from numpy.typing import NDArray

from ..base.files import AnotherHost, be_another_host
from ..base.hooks import exceptions_only
from ..base.keys import blake2b
from ..base.specs import IndexArray
from ..loading.worker import Worker, Workplace
from ..plan.plan import Plan
from ..plan.trial import make_one_sample
from ..processes.loader import settle
from ..transport.error_channel import FRAME_BYTES, Levels, describe, log_to_trainer, send_exception, summary_of, waiting
from ..transport.messages import BadRow, Fill, Postprocess, ToLoader
from ..transport.ring import SlotLayout
from ..transport.shared_file import SharedFile
from ..transport.status_board import StatusBoard

Memory = NDArray[np.uint8]


@dataclass(frozen=True)
class Refusal:
    """Why it cannot work here; `cause` as in StartFailed."""

    text: str
    cause: int
    traceback: str
    frames: list[bytes]


@dataclass(frozen=True)
class Made:
    """A task done: as in Done, and beside that the bytes of its rows and `frames` for the trainer's error channel."""

    elapsed_ns: int
    bad: tuple[BadRow, ...]
    stream_rows: int
    rows: list[Memory]
    frames: list[bytes]


@dataclass(frozen=True)
class Job:
    """A task on its way to an actor.

    `drawn`: the indices that a sampler drew for its rows, each with its offset in the drawn file. `slot`: for
    postprocess, the whole slot as it is.
    """

    task: ToLoader
    drawn: list[tuple[int, IndexArray]]
    slot: Memory | None

    @classmethod
    def of(cls, task: ToLoader, drawn: SharedFile | None, slot: Memory) -> Job:
        indices = (
            [] if drawn is None else [(run.offset, drawn.read(run.offset, run.count, np.int64)) for run in task.drawn]
        )
        return cls(task, indices, slot if isinstance(task, Postprocess) else None)


def code_digest() -> str:
    """Of all the code that a loader runs: another version might make other bytes, or not understand the plan."""
    digest, root = blake2b(digest_size=16), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class RemoteLoader:
    """One at a time of these calls runs; Ray keeps their order."""

    def place(self) -> tuple[str, int, str]:
        """The host where it is, its process there, and the cluster's name of the node."""
        import ray  # it runs already wherever this is called

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
        """Get ready; `plan` is pickled. `memory`: the content of the source's memory files, by their descriptors there.

        `code`: what code_digest says there. `shipped`: the trainer's folder that was brought here as working directory.
        """
        if code != code_digest():
            folder = Path(__file__).parents[2]
            text = f"{folder} is another version of blobfeed than the trainer's host has: install the same one on both"
            return Refusal(text, 0, "", [])
        self._theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._frames = ours
        log_to_trainer(self._theirs, levels)
        # What the trainer finds beside its script is found here, if this node has the same folders.
        sys.path += [entry for entry in sys_path if entry not in sys.path]
        try:
            copies = {descriptor: _memory_file(content) for descriptor, content in memory.items()}
            be_another_host(AnotherHost(shipped, str(Path.cwd()), copies))
            self._open(pickle.loads(plan))
        except Exception as error:
            return Refusal(summary_of(error), send_exception(self._theirs, error), describe(error), self._told())
        return None

    def _open(self, plan: Plan) -> None:
        for name in plan.decoded.modules:
            with suppress(ImportError):  # unpickling will say what really is missing
                importlib.import_module(name)
        self._layout = plan.layout
        make_one_sample(plan)
        settle()
        os.environ["BLOBFEED_ROLE"] = "loader"
        self._memory: Memory = np.zeros(self._layout.used_bytes, np.uint8)
        self._drawn = SharedFile.create("blobfeed-drawn")
        status = StatusBoard.create(1).line(0)
        # Whatever slot a task names on the trainer's host, here it is this one.
        slots = [self._layout.view(self._memory, 0)] * plan.slots
        send_error = partial(send_exception, self._theirs)
        place = Workplace(slots, status, send_error, self._drawn.descriptor, exceptions_only)
        self._worker: Worker = plan.worker(place)

    def work(self, job: Job) -> Made:
        """Make the rows of one task."""
        task, begun = job.task, time.monotonic_ns()
        for offset, indices in job.drawn:
            self._drawn.write(offset, indices)
        if job.slot is not None:
            self._memory[:] = job.slot
        done = self._worker.work(task)
        for offset, indices in job.drawn:
            self._drawn.free(offset, indices.nbytes)
        rows = [self._memory[where] for where in ranges_of(task, self._layout)]
        return Made(time.monotonic_ns() - begun, tuple(done.bad), done.stream_rows, rows, self._told())

    def _told(self) -> list[bytes]:
        """What was logged or raised: the bridge passes it on to the trainer."""
        return list(waiting(self._frames, FRAME_BYTES))


def _memory_file(content: Memory) -> int:
    file = SharedFile.create("blobfeed-source")
    file.write(0, content)
    return file.descriptor


def ranges_of(task: ToLoader, layout: SlotLayout) -> list[slice]:
    """The bytes of a slot that `task` makes, as actor and bridge both know it."""
    return layout.ranges(task.first_row, task.rows) if isinstance(task, Fill) else [slice(0, layout.used_bytes)]
