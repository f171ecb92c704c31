"""The table of crashes: what may go wrong with a sample, where, when, and what then has to happen."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.transport import RemoteError

from blobfeed import LoaderDied, SampleError, SampleShapeError

from .pipelines import (
    DEADLY,
    DYING,
    HANGING,
    LARGE,
    RAISING,
    SAMPLES,
    Delivered,
    Fault,
    Harm,
    Place,
    Promise,
    Trap,
    WithoutText,
    deliver,
    parameters,
    trapped_pipeline,
)

_LATER = 3 * SAMPLES // 4


@functools.cache
def hung_s() -> float:
    """The task_timeout_s under which hangs are tested: a task takes a millisecond, but longer on a busy machine.

    How busy it is, is asked at the first of these tests: when the modules are imported, this run's own load is not
    there yet.
    """
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return round(0.6 * min(10.0, max(1.0, busy)), 1)


@dataclass(frozen=True)
class Case:
    """`once`: an accident, which strikes one loader and no other. `later`: on a later task than the first."""

    fault: Fault
    place: Place
    later: bool
    once: bool
    on_error: Literal["raise", "replace"] = "raise"
    items: int = LARGE

    def __str__(self) -> str:
        when = "on a later task" if self.later else "on the first task"
        often = "once" if self.once else f"always, on_error: {self.on_error}"
        return f"{self.fault} in {self.place} {when}, {often}"

    @property
    def promise(self) -> Promise:
        bad = frozenset() if self.once else frozenset({self.victim})
        return Promise(parameters(**self._values), items=self.items, noise=self.place is Place.DECODE, bad=bad)

    @property
    def _values(self) -> dict[str, Any]:
        hangs = self.fault in HANGING
        return {
            "on_error": self.on_error,
            "task_timeout_s": hung_s() if hangs else 60.0,
            "epochs": 1 if hangs else 2,
            "num_loaders": 1 if self.place is Place.START else 2,  # or the other might make all before it is noticed
        }

    @property
    def position(self) -> int:
        return _LATER if self.later else 0

    @property
    def victim(self) -> int:
        return Promise(parameters()).sample_at(self.position)

    def pipeline(self, folder: Path) -> Pipeline:
        trap = Trap(self.fault, self.place, frozenset({self.victim}), folder / "struck" if self.once else None)
        return trapped_pipeline(trap, items=self.items, **self._values)


def accidents() -> Iterator[Case]:
    """What strikes once must leave no trace in what is delivered."""
    for fault, place, later in itertools.product(Fault, (Place.READ, Place.DECODE), (False, True)):
        yield Case(fault, place, later, once=True)
    for fault in DEADLY:
        yield Case(fault, Place.START, later=False, once=True)


def poisons() -> Iterator[Case]:
    """What strikes whenever the sample is touched."""
    for fault, place, later in itertools.product(Fault, (Place.READ, Place.DECODE), (False, True)):
        yield Case(fault, place, later, once=False, on_error="raise")
        yield Case(fault, place, later, once=False, on_error="replace")


def start_ups() -> Iterator[Fault]:
    """What may happen to every loader before it is ready."""
    yield from (*RAISING, *DEADLY)


def check_accident(case: Case, folder: Path) -> int:
    """Nothing is to be seen of it but in the counts; returns how many batches were delivered."""
    with case.pipeline(folder) as pipeline:
        delivered = list(deliver(pipeline))
        counted = pipeline.statistics()
    assert delivered == case.promise.batches()
    assert (folder / "struck").exists(), "the fault never struck"
    assert counted.replaced == 0
    assert counted.loader_deaths >= (case.fault in DEADLY)
    assert counted.loader_deaths <= (case.fault in DEADLY) or case.fault in HANGING
    return len(delivered)


def check_poison(case: Case, folder: Path) -> int:
    return check_replaced(case, folder) if case.on_error == "replace" else check_raised(case, folder)


def check_replaced(case: Case, folder: Path) -> int:
    """The bad sample's rows hold its replacement, and are counted; every other row is as ever."""
    with case.pipeline(folder) as pipeline:
        delivered = list(deliver(pipeline))
        assert pipeline.statistics().replaced == case.promise.given.epochs
    assert delivered == case.promise.batches()
    return len(delivered)


def check_raised(case: Case, folder: Path) -> int:
    """All whole batches before the bad sample, then SampleError that names it and its reason, now and ever after."""
    delivered: list[Delivered] = []
    with case.pipeline(folder) as pipeline:
        with pytest.raises(SampleError) as caught:
            delivered.extend(deliver(pipeline))
        with pytest.raises(SampleError) as again:
            pipeline.peek()
    undisturbed = Promise(case.promise.given, items=case.items, noise=case.promise.noise).batches()
    assert delivered == undisturbed[: case.position // 4]
    assert str(again.value) == str(caught.value)
    error = caught.value
    assert (error.index, error.path, error.source) == (case.victim, f"shelf/{case.victim}", "numbered")
    _check_reason(case.fault, error)
    return len(delivered)


def _check_reason(fault: Fault, error: SampleError) -> None:
    cause = error.__cause__
    if fault in DEADLY:
        assert cause is None
        assert DYING.get(fault, f"longer than task_timeout_s={hung_s():g}") in str(error)
        return
    assert cause is not None
    told = f"{cause!r} {''.join(getattr(cause, '__notes__', ()))}"
    kind, words = _TOLD[fault]
    assert isinstance(cause, kind)
    if isinstance(cause, SampleShapeError):  # blobfeed's own look at what decode returned: no line of the user's failed
        assert re.search(r"top \S+ got .* expected", str(cause))
        return
    assert "Traceback (most recent call last)" in told
    assert words in told
    if fault is Fault.EXCEPTION:
        assert cause.args == (error.index,)


_TOLD: dict[Fault, tuple[type[Exception], str]] = {
    Fault.EXCEPTION: (Harm, "Harm"),
    Fault.UNPICKLABLE_EXCEPTION: (RemoteError, "HoldsALock: harm in"),
    Fault.EXCEPTION_THAT_BREAKS_UNPICKLING: (RemoteError, "NeedsTwoArguments: harm in"),
    Fault.EXCEPTION_WITHOUT_TEXT: (WithoutText, "WithoutText"),
    Fault.WRONG_SHAPE: (ValueError, "shape"),
    Fault.WRONG_TYPE: (ValueError, "ValueError"),
}


def check_start_up(fault: Fault) -> None:
    """Loaders that cannot start are an error that says how they ended, within seconds."""
    trap = Trap(fault, Place.START)
    with trapped_pipeline(trap, num_loaders=1, task_timeout_s=hung_s()) as pipeline:
        with pytest.raises(LoaderDied) as caught:
            pipeline.peek()
        assert pipeline.statistics().batches == 0
    error = caught.value
    if fault in DEADLY:
        assert len(error.exits) > 1
        assert all(DYING.get(fault, f"not ready after {hung_s():g} s") in way for way in error.exits)
    else:
        assert isinstance(error.__cause__, _TOLD[fault][0])
        assert len(error.exits) == 1
