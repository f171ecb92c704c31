"""The worker for batches that the trainer gives: a maker turns each request into bytes in the slot."""

from __future__ import annotations

from typing import Any, Protocol

from ..transport import Activity, Fill, GrowingSlot, LoaderStatus, ToLoader
from .postprocessing import BatchSamples
from .worker import WorkDone, Worker, Workplace


class Maker(Protocol):
    """Makes batches in a loader; the user's code is in it, so it is sent by pickle."""

    def begin(self, number: int, loaders: int, status: LoaderStatus) -> None:
        """Prepare in loader `number` of so many."""

    def make(self, request: bytes, slot: GrowingSlot) -> None:
        """Make what the request asks for in the slot; what the user's code raises lies there instead of a batch."""


class GivenWorker(Worker):
    """Hands each task's request to the maker."""

    def __init__(self, maker: Maker, loaders: int, place: Workplace) -> None:
        self.status, self.guard = place.status, place.guard
        self._maker = maker
        self._slots: Any = place.rows  # of a ring that grows, the slots themselves
        maker.begin(place.status.number, loaders, place.status)

    def work(self, message: ToLoader, rows: object = None) -> WorkDone:
        if not isinstance(message, Fill):
            raise TypeError(f"a loader of given batches got the task {message!r}")
        return self.fill(message)

    def fill(self, task: Fill, rows: object = None) -> WorkDone:
        slot: GrowingSlot = self._slots[task.slot]
        self.status.write(Activity.DECODING)
        if request := slot.requests.of(task.batch):
            self._maker.make(request, slot)
        else:
            slot.open()
            slot.used = 0
        return WorkDone()

    def samples_of(self, task: Fill, first: int, rows: int) -> BatchSamples:
        raise TypeError(f"rows {first} to {first + rows} of {task!r}: given batches have no postprocess")
