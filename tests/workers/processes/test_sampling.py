"""The assembler's side of the sampler's process: how long it may take, and from when on."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

from blobfeed.workers.processes.sampling import Sampling
from blobfeed.workers.transport.messages import Draw, LoaderEnded, LoaderStarted
from blobfeed.workers.transport.status_board import Unwatched


class Killed:
    """A nursery that starts nothing, and notes what it is to end."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def spawn(self, loader: int, line: int) -> None: ...

    def kill(self, loader: int) -> None:
        self.numbers.append(loader)


def test_a_process_has_its_time_from_when_it_started_and_not_from_when_it_was_asked_for() -> None:
    nursery: Any = Killed()
    schedule: Any = SimpleNamespace(freed=list, wanted=lambda: Draw(1, 0, 0, 0), read=None)
    plan = SimpleNamespace(parameters=SimpleNamespace(task_timeout_s=10.0), status_lines=1)
    config: Any = SimpleNamespace(plan=plan, key=b"k" * 32, descriptors=SimpleNamespace(drawn=-1))
    board: Any = SimpleNamespace(line=lambda _line: Unwatched())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        sampling = Sampling(config, nursery, ours, board, schedule)
        for number, asked in ((-1, 0.0), (-2, 100.0)):
            sampling.turn(asked)
            assert sampling.next_deadline() is None  # the nursery imports
            sampling.kill_overdue(asked + 50.0)
            sampling.handle_event(LoaderStarted(number), asked + 50.0)
            sampling.turn(asked + 50.0)
            assert sampling.next_deadline() == asked + 60.0
            sampling.kill_overdue(asked + 59.0)
            assert number not in nursery.numbers
            sampling.kill_overdue(asked + 61.0)
            assert nursery.numbers[-1] == number
            assert sampling.next_deadline() is None
            if number == -1:
                sampling.handle_event(LoaderEnded(number, "killed by SIGKILL", crashed=False), asked + 61.0)
