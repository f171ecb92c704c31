"""The plan of a run whose batches the trainer gives: a maker with the user's code, and slots that grow."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

from ..api import Parameters
from ..loading import GivenWorker, Maker, Workplace
from ..order import GivenBatches, GivenSupply
from ..transport import GrowingSlots, Packed, RowsLayout
from .plan import AnyRing, Plan, max_loaders


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

    def schedule(self) -> GivenBatches:
        return GivenBatches()

    def new_ring(self) -> AnyRing:
        return GrowingSlots.create(self.slots)

    def ring(self, descriptor: int) -> GrowingSlots:
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
