"""The assembler's side of the sampler's process: requests the epochs of the schedule, replaces a dead process."""

from __future__ import annotations

import logging
import socket

import numpy as np

from ..plan.sampled_schedule import SampledSchedule
from ..scheduling.ledger import ENOUGH_TO_CONVICT, Weight
from ..transport.error_channel import waiting
from ..transport.links import Opener, Sealer
from ..transport.messages import Draw, DrawFailed, FromSampler, LoaderEnded, LoaderStarted
from ..transport.shared_file import SharedFile
from ..transport.status_board import StatusBoard
from .config import Config
from .loader_pool import weight_of
from .nursery import Nursery
from .sampler import FRAME_BYTES

_log = logging.getLogger("blobfeed")


class Sampling:
    """Runs at most one sampler process at a time. Each has a negative number of its own in the nursery."""

    def __init__(
        self, config: Config, nursery: Nursery, link: socket.socket, board: StatusBoard, schedule: SampledSchedule
    ) -> None:
        self.link = link
        self._task_timeout_s = config.plan.parameters.task_timeout_s
        self._nursery = nursery
        self._line = config.plan.status_lines - 1
        self._status = board.line(self._line)
        self.schedule = schedule
        self._drawn = SharedFile(config.descriptors.drawn)
        self.schedule.read = lambda offset, count: self._drawn.read(offset, count, np.int64)
        self._sealer = Sealer(config.key)
        self._answers: Opener[FromSampler] = Opener(config.key, FromSampler)
        self._processes = 0
        self._asked_for_one = False
        self._started = False
        self._sent: Draw | None = None
        """The request that the process has not answered."""
        self._deadline = 0.0
        self._killed = False
        self._suspicion = 0
        self._deaths = 0

    def turn(self, now: float) -> None:
        """Request the next epoch and free the memory of past epochs. Raises NurseryDied."""
        for offset, size in self.schedule.freed():
            self._drawn.free(offset, size)
        wanted = self.schedule.wanted()
        if wanted is None:
            return
        if not self._asked_for_one:
            self._processes += 1
            self._asked_for_one, self._started, self._killed = True, False, False
            self._status.begin(-self._processes, 0)
            self._nursery.spawn(-self._processes, self._line)
        if self._sent != wanted:
            # A dead process may have left the request in the socket. Then the epoch is drawn twice, with equal results.
            self.link.send(self._sealer.seal(wanted))
            self._sent, self._deadline = wanted, now + self._task_timeout_s

    def receive(self) -> None:
        """Receive the answers of the process."""
        for frame in waiting(self.link, FRAME_BYTES):
            if (answer := self._answers.open(frame)) is not None:
                self._answer(answer)

    def _answer(self, answer: FromSampler) -> None:
        if self.schedule.note_drawn(answer):
            self._sent, self._suspicion, self._deaths = None, 0, 0

    def handle_event(self, event: LoaderStarted | LoaderEnded, now: float) -> None:
        """Record the nursery's event about the process."""
        if isinstance(event, LoaderStarted):  # its deadline starts now: the nursery may have imported before
            self._started, self._deadline = True, now + self._task_timeout_s
            return
        how, weight = event.how, weight_of(event)
        if self._killed:
            how += f" by us: it took longer than task_timeout_s={self._task_timeout_s:g}"
            weight = Weight.HUNG
        self.receive()  # its last answer may already lie in the socket
        _log.warning("the sampler's process died: %s, %s", self._status.read(), how)
        self._status.end()
        self._asked_for_one = False
        draw, self._sent = self._sent, None
        if draw is not None:
            self._suspicion += weight
            self._deaths += 1
            if self._suspicion >= ENOUGH_TO_CONVICT:
                what = f"{self.schedule.about.name}, epoch {draw.epoch}"
                text = f"{what}: {self._deaths} processes died on it, the last one {how}"
                self._answer(DrawFailed(draw.request, text))

    def next_deadline(self) -> float | None:
        return None if self._sent is None or self._killed or not self._started else self._deadline

    def kill_overdue(self, now: float) -> None:
        deadline = self.next_deadline()
        if deadline is not None and now > deadline:
            self._killed = True
            self._nursery.kill(-self._processes)
