"""Small runs to be explored: what is made, and which faults may strike how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blobfeed.supplies import AboutSampler, DrawnSupply, SequentialOrder, StreamSupply
from blobfeed.workers.api import Parameters
from blobfeed.workers.plan import Plan
from blobfeed.workers.transport import Packed

SHARD_ROWS = (3, 1)
"""Rows that each shard of the stream has: the last batch of each is short."""

DRAWN = ((5, 3, 4), (1,))
"""Samples of epochs that a sampler draws: the last batch of the first one is short."""


@dataclass(frozen=True)
class Faults:
    """How often each may strike in one run."""

    deaths: int = 0
    hangs: int = 0
    repeats: int = 0
    dismissals: int = 0
    stops: int = 0


@dataclass(frozen=True)
class Variant:
    """`bad_batch`: one whose first row cannot be made. `rows_per_task`: of `rows` in a batch, or of several batches.

    `keeps`: so many batches the trainer may keep while it asks for others.
    `drawn`: the samples of each epoch, if a sampler draws them.
    """

    name: str
    faults: Faults = Faults()
    batches: int = 3
    rows: int = 2
    rows_per_task: int = 1
    slots: int = 2
    keeps: int = 1
    postprocess: bool = False
    affinity: bool = False
    stream: bool = False
    shards: int = len(SHARD_ROWS)
    drawn: tuple[tuple[int, ...], ...] = ()
    on_error: str = "raise"
    bad_batch: int = -1
    may_fail: bool = False

    def plan(self) -> Plan:
        parameters = Parameters(
            batch_size=self.rows,
            num_loaders=2,
            on_error=self.on_error,  # type: ignore[arg-type]
            epochs=len(self.drawn) or 1,
            last_batch="partial",
            timeout_s=1e-9,
        )
        common: dict[str, Any] = {
            "parameters": parameters,
            "decoded": Packed(None, ()),
            "specs": {},
            "slot_specs": {},
            "postprocesses": self.postprocess,
            "max_loaders": 2,
            "seconds_per_row": 0.010 / self.rows_per_task,
            "batches_per_task": max(1, self.rows_per_task // self.rows),
            "variant": self,
        }
        if self.stream:
            return SmallPlan(supply=StreamSupply(self.shards), **common)
        if self.drawn:
            sampler: Packed[Any] = Packed(None, ())
            drawn = DrawnSupply(sampler=sampler, about=AboutSampler("sampler()"), source_samples=10)
            return SmallPlan(supply=drawn, **common)
        samples = self.batches * self.rows
        order = SmallOrder(samples, has_windows=self.affinity)
        return SmallPlan(supply=order, **common)


_KNOWN: dict[int, Plan] = {}


def _known(number: int) -> Plan:
    return _KNOWN[number]


@dataclass(frozen=True, kw_only=True)
class SmallPlan(Plan):
    """Remembered states refer to the plan and do not hold it: it does not change."""

    variant: Variant

    @property
    def slots(self) -> int:
        return self.variant.slots

    def __reduce__(self) -> tuple[Any, ...]:
        _KNOWN[id(self)] = self
        return _known, (id(self),)


class SmallOrder(SequentialOrder):
    """Its windows, if it has some, are runs of three rows, across the borders of batches."""

    def __init__(self, samples: int, *, has_windows: bool) -> None:
        super().__init__(samples)
        self.has_windows = has_windows

    def window_at(self, position: int) -> int | None:
        return position // 3 if self.has_windows else None


VARIANTS = (
    Variant("nothing happens"),
    Variant("a death", Faults(deaths=1)),
    Variant("two deaths", Faults(deaths=2), batches=1),
    Variant("two deaths, one task a batch", Faults(deaths=2), batches=2, rows=1),
    Variant("a death, postprocess", Faults(deaths=1), batches=2, postprocess=True),
    Variant("a death, affinity", Faults(deaths=1), affinity=True),
    Variant("a death, tasks of two rows", Faults(deaths=1), batches=2, rows=4, rows_per_task=2),
    Variant("a death, stream", Faults(deaths=1), stream=True),
    Variant("a repeated message, stream", Faults(repeats=1), stream=True),
    Variant("a death, stream, postprocess", Faults(deaths=1), stream=True, postprocess=True),
    Variant("a death, drawn", Faults(deaths=1), drawn=DRAWN),
    Variant("two hangs, drawn", Faults(hangs=2), drawn=DRAWN, may_fail=True),
    Variant("a repeated message, drawn", Faults(repeats=1), drawn=DRAWN),
    Variant("a dismissed loader, drawn", Faults(dismissals=1), drawn=DRAWN),
    Variant("two hangs of one row", Faults(hangs=2), batches=1, may_fail=True),
    Variant("two hangs, one task a batch", Faults(hangs=2), batches=2, rows=1, may_fail=True),
    Variant("two hangs, replaced", Faults(hangs=2), batches=1, on_error="replace"),
    Variant("a hang, postprocess", Faults(hangs=1), batches=2, postprocess=True),
    Variant("two hangs, postprocess", Faults(hangs=2), batches=1, postprocess=True, may_fail=True),
    Variant("a bad batch", Faults(deaths=1), batches=2, bad_batch=1, may_fail=True),
    Variant("a repeated message", Faults(repeats=1), batches=2),
    Variant("a repeated message and a death", Faults(repeats=1, deaths=1), batches=1, rows=2),
    Variant("a dismissed loader and a death", Faults(dismissals=1, deaths=1), batches=2),
    Variant("a dismissed loader, affinity", Faults(dismissals=1), affinity=True),
    Variant("a stop", Faults(stops=1), batches=2),
    Variant("loans", rows=1, batches=5, slots=3, keeps=2),
    Variant("loans, a repeated message", Faults(repeats=1), rows=1, batches=4, slots=3, keeps=2),
    Variant("loans, a death, drawn", Faults(deaths=1), slots=3, keeps=2, drawn=DRAWN),
    Variant("loans, stream", Faults(repeats=1), slots=3, keeps=2, stream=True),
    Variant("two batches a task", Faults(deaths=1), rows=2, rows_per_task=4, batches=5, slots=4),
    Variant("two batches a task, loans", Faults(deaths=1), rows=1, rows_per_task=2, batches=6, slots=4, keeps=2),
    Variant("two batches a task, postprocess", Faults(deaths=1), rows_per_task=4, batches=4, slots=4, postprocess=True),
    Variant("two batches a task, drawn", Faults(deaths=1, repeats=1), rows_per_task=4, slots=4, drawn=DRAWN),
    Variant("two batches a task, affinity", Faults(deaths=1), rows_per_task=4, batches=4, slots=4, affinity=True),
    Variant(
        "two batches a task, a bad one",
        Faults(deaths=1),
        rows_per_task=4,
        batches=4,
        slots=4,
        bad_batch=1,
        may_fail=True,
    ),
)
