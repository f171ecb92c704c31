"""The supply of a run whose batches the trainer gives one by one: what a user's own sampler yields.

A batch is one task of one loader, which finds in the ring what to make of it, and makes it in a slot that grows. So a
plan of such a run has slots and a worker of its own.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from ..workers.api import Parameters
from ..workers.loading import BatchSamples, Worker, Workplace
from ..workers.order import At, Placed, Rounds, Supply
from ..workers.plan import Plan, max_loaders
from ..workers.transport import Activity, Fill, Give, LoaderStatus, Packed, RowsLayout, Run, ToLoader, WorkDone
from .growing_slots import GrowingSlot, GrowingSlots


class GivenSupply(Supply):
    """The batches that the trainer gives. It knows itself where it stands, and which samples come."""

    name = "given batches"

    def land(self, given: Parameters, state: Mapping[str, int | str] | None = None) -> tuple[Supply, At]:
        return self, At(0, 0)

    def rounds(self, given: Parameters, at: At) -> GivenRounds:
        return GivenRounds(given)

    def samples_of(self, run: Run) -> NoReturn:
        raise TypeError(f"only their loader knows the samples of given batches, as of {run!r}")

    def identify(self, given: Parameters, at: At) -> dict[str, int | str]:
        return {}

    def batch_key(self, run: Run, batch_size: int) -> tuple[int, ...]:
        return ()


@dataclass
class GivenRounds(Rounds):
    """The batches in the order of their numbers. They have no end: the trainer knows when it has given the last one."""

    parameters: Parameters
    epoch: int = 0
    item: int = 0
    """The number of the next batch."""
    ended: bool = False
    failure: str = ""
    _given: dict[int, Give] = field(default_factory=dict)

    can_be_cut = False

    def give(self, given: Give) -> None:
        if given.batch >= self.item:
            self._given.setdefault(given.batch, given)

    def place(self, row: int, most: int) -> Placed | None:
        if row or (given := self._given.pop(self.item, None)) is None:
            return None
        self.item += 1
        return Placed([Run(row, max(1, given.rows), given.epoch, 0, shard=given.shard)], 1, ())

    def affinity(self, run: Run, skipped: int) -> int | None:
        """Return the shard of an iterable dataset, which one loader iterates over; None if any loader will do."""
        return None if run.shard < 0 else run.shard

    def sample_in(self, run: Run, skipped: int, seen: int) -> tuple[int, int, str]:
        return run.epoch, seen, ""


class _NoSource:
    """Stands for the source: the maker reads by itself."""

    descriptors: tuple[int, ...] = ()
    runs_user_code = True

    def __init__(self, kind: str) -> None:
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class GivenPlan(Plan):
    """`decoded` is the Maker, and `kind` what it reads, in a word. There are no tops, and a batch is one task."""

    kind: str = "dataset"
    given_slots: int

    @classmethod
    def of(cls, maker: Packed[Any], parameters: Parameters, *, kind: str, slots: int) -> GivenPlan:
        most = max_loaders(parameters)
        common = {"specs": {}, "slot_specs": {}, "postprocesses": False, "max_loaders": most, "given_slots": slots}
        common["supply"] = GivenSupply()
        return cls(parameters=parameters, decoded=maker, kind=kind, **common)  # type: ignore[arg-type]

    @property
    def source(self) -> Any:
        return _NoSource(self.kind)

    @property
    def slots(self) -> int:
        return self.given_slots

    @property
    def layout(self) -> RowsLayout:
        return RowsLayout({}, 1)

    def new_ring(self) -> Any:
        return GrowingSlots.create(self.slots)

    def ring(self, descriptor: int) -> Any:
        return GrowingSlots(descriptor, self.slots)

    def prepare(self) -> None:
        """Unpickle the user's code and data once; loaders share the pages, which the garbage collector leaves alone."""
        gc.disable()  # it would go through what has come so far again and again, and find nothing
        try:
            _ = self.decoded.value
        finally:
            gc.freeze()
            gc.enable()

    def worker(self, place: Workplace) -> GivenWorker:
        maker: Maker = self.decoded.value
        return GivenWorker(maker, self.max_loaders, place)


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
