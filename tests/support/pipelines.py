"""Pipelines to do harm to: a source whose samples can be told apart, faults that strike in loaders, and the check that
what was delivered is what an undisturbed run would have delivered.
"""

from __future__ import annotations

import ctypes
import enum
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil  # type: ignore[import-untyped]
from blobfeed.readers.opening import open_pipeline
from blobfeed.supplies import EpochOrder, make_order
from blobfeed.workers.api import AnyArray, Hooks, IndexArray, NamedRows, Parameters
from blobfeed.workers.order import SampleRng, replacements
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.plan import Batch
from blobfeed.workers.processes import Event, Home

from blobfeed import ArraySpec, Sample, Source

from .batches import BatchRange, RankedBatches
from .waiting import DEADLINE_S, wait_until

LARGE = 70_000
"""Items of a sample so large that a batch of four has a slot to itself; smaller ones share slots."""

SAMPLES = 40


class Fault(enum.StrEnum):
    """What may go wrong with a sample, or with a loader."""

    EXCEPTION = "exception"
    UNPICKLABLE_EXCEPTION = "unpicklable exception"
    EXCEPTION_THAT_BREAKS_UNPICKLING = "exception that breaks unpickling"
    EXCEPTION_WITHOUT_TEXT = "exception whose str() raises"
    SYS_EXIT = "sys.exit"
    OS_EXIT = "os._exit"
    SEGMENTATION_FAULT = "segmentation fault"
    KILLED = "SIGKILL"
    HANG = "hang"
    STOPPED = "SIGSTOP"
    ENDLESS_LOOP_IN_C = "endless loop in C"
    WRONG_SHAPE = "wrong shape"
    WRONG_TYPE = "wrong type"


RAISING = (
    Fault.EXCEPTION,
    Fault.UNPICKLABLE_EXCEPTION,
    Fault.EXCEPTION_THAT_BREAKS_UNPICKLING,
    Fault.EXCEPTION_WITHOUT_TEXT,
)
DYING = {
    Fault.SYS_EXIT: "exited with code 5",
    Fault.OS_EXIT: "exited with code 6",
    Fault.SEGMENTATION_FAULT: "killed by SIGSEGV",
    Fault.KILLED: "killed by SIGKILL",
}
"""Faults that end the loader, and how its end is told."""

HANGING = (Fault.HANG, Fault.STOPPED, Fault.ENDLESS_LOOP_IN_C)
DEADLY = (*DYING, *HANGING)


class Harm(ValueError):
    """What a faulty sample raises; its argument is the sample's index."""


class NeedsTwoArguments(Exception):
    """Stores one argument and wants two: it pickles well, and fails to unpickle."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.why = why


class HoldsALock(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        import threading

        self.lock = threading.Lock()


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text available")


def _raise(error: Exception) -> NoReturn:
    raise error


def _segmentation_fault() -> None:
    ctypes.string_at(0)


def _hang() -> None:
    while True:
        time.sleep(1000)


def _loop_in_c() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")  # backtracks for longer than the universe is old, and keeps the GIL


_STRIKE: dict[Fault, Callable[[int], object]] = {
    Fault.EXCEPTION: lambda index: _raise(Harm(index)),
    Fault.UNPICKLABLE_EXCEPTION: lambda index: _raise(HoldsALock(f"harm in {index}")),
    Fault.EXCEPTION_THAT_BREAKS_UNPICKLING: lambda index: _raise(NeedsTwoArguments(f"harm in {index}", "so")),
    Fault.EXCEPTION_WITHOUT_TEXT: lambda _: _raise(WithoutText()),
    Fault.SYS_EXIT: lambda _: sys.exit(5),
    Fault.OS_EXIT: lambda _: os._exit(6),
    Fault.SEGMENTATION_FAULT: lambda _: _segmentation_fault(),
    Fault.KILLED: lambda _: os.kill(os.getpid(), signal.SIGKILL),
    Fault.HANG: lambda _: _hang(),
    Fault.STOPPED: lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    Fault.ENDLESS_LOOP_IN_C: lambda _: _loop_in_c(),
}


class Place(enum.StrEnum):
    START = "start"
    READ = "read"
    DECODE = "decode"


@dataclass(frozen=True)
class Trap:
    """`fault` strikes at `place` on each of `samples`; with a `marker` file only the first time in all processes."""

    fault: Fault
    place: Place
    samples: frozenset[int] = frozenset()
    marker: Path | None = None

    def springs(self, place: Place, index: int = -1) -> bool:
        """Only in loaders: setup makes its trial sample in the trainer, and shall succeed."""
        if place is not self.place or os.environ.get("BLOBFEED_ROLE") != "loader":
            return False
        if place is not Place.START and index not in self.samples:
            return False
        return self.marker is None or first_of_all(self.marker)

    def meet(self, place: Place, index: int = -1) -> None:
        if self.fault in _STRIKE and self.springs(place, index):
            _STRIKE[self.fault](index)

    def hooks(self) -> Hooks:
        return Hooks(decode=self.decode)

    def decode(self, sample: Sample, rng: np.random.Generator) -> tuple[AnyArray, ...]:
        self.meet(Place.DECODE, sample.index)
        data = sample["data"]
        if self.fault is Fault.WRONG_SHAPE and self.springs(Place.DECODE, sample.index):
            data = data[:-1]
        if self.fault is Fault.WRONG_TYPE and self.springs(Place.DECODE, sample.index):
            data = data.astype(np.float64)
        return data, sample["label"], rng.integers(1 << 60, size=2)


def first_of_all(marker: Path) -> bool:
    """Whether this is the first call for `marker`, in all processes."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


NO_TRAP = Trap(Fault.EXCEPTION, Place.READ)


class Numbered(Source):
    """Sample i holds `data`, shape (items,) int64, i, i+1, i+2, …, and `label`, i; it may stand in a trap."""

    kind = "numbered"

    def __init__(self, samples: int = SAMPLES, items: int = LARGE, trap: Trap = NO_TRAP) -> None:
        self._samples = samples
        self._items = items
        self._trap = trap

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return {"data": ArraySpec((self._items,), np.dtype(np.int64)), "label": ArraySpec((), np.dtype(np.int64))}

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for row, index in enumerate(indices.tolist()):
            self._trap.meet(Place.READ, index)
            fault = self._trap.fault
            if fault in (Fault.WRONG_SHAPE, Fault.WRONG_TYPE) and self._trap.springs(Place.READ, index):
                wrong = np.zeros(self._items - 1) if fault is Fault.WRONG_SHAPE else "no number"
                out["data"][row : row + 1][...] = wrong  # type: ignore[index]
        out["data"][...] = self.data_of(indices)  # type: ignore[index]
        out["label"][...] = indices  # type: ignore[index]

    def data_of(self, indices: IndexArray) -> AnyArray:
        """Shape (rows, items)."""
        return indices[:, None] + np.arange(self._items)

    def where(self, index: int) -> str:
        return f"shelf/{index}"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._trap.meet(Place.START)


def parameters(**values: Any) -> Parameters:
    """Two loaders, shuffled batches of four, two epochs, and deadlines that a test can wait for."""
    given = {"batch_size": 4, "num_loaders": 2, "epochs": 2, "seed": 5, "shuffle": True, "timeout_s": DEADLINE_S}
    return Parameters(**given | values)


def trapped_pipeline(
    trap: Trap = NO_TRAP,
    *,
    samples: int = SAMPLES,
    items: int = LARGE,
    kind: Callable[..., Pipeline] = open_pipeline,
    **values: Any,
) -> Pipeline:
    hooks = Hooks()
    if trap.place is Place.DECODE:
        hooks, values["tops"] = trap.hooks(), ("data", "label", "noise")
    return kind(parameters(**values), hooks, source=Numbered(samples, items, trap))


class NoHome(Home):
    """A home in which no loader ever starts."""

    def fileno(self) -> int:
        return -1

    def receive(self, now: float) -> Iterator[Event]:
        return iter(())

    def spawn(self, loader: int, line: int) -> None: ...

    def kill(self, loader: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Delivered:
    """One batch as it was delivered."""

    number: int
    indices: tuple[int, ...]
    tops: dict[str, bytes]

    @classmethod
    def copy_of(cls, batch: Batch) -> Delivered:
        tops = {name: np.asarray(top).tobytes() for name, top in batch.tops.items()}
        return cls(batch.number, tuple(batch.indices.tolist()), tops)


def deliver(pipeline: Pipeline) -> Iterator[Delivered]:
    """All batches to the end, each copied and released."""
    for _ in range(pipeline.total_batches or 0):
        pipeline.peek()  # as every delivery does
        batch = pipeline.take()
        delivered = Delivered.copy_of(batch)
        pipeline.release(batch)
        yield delivered


def the_assembler() -> psutil.Process:
    """The only assembler that this process has started."""
    (server,) = (child for child in psutil.Process().children() if "multiprocessing" not in " ".join(child.cmdline()))
    wait_until(server.children, "the assembler is forked")
    (found,) = server.children()
    return found


def take_for_ever(pipeline: Pipeline) -> NoReturn:
    while True:
        pipeline.release(pipeline.take())


def deliver_all(pipeline: Pipeline) -> list[Delivered]:
    with pipeline:
        return list(deliver(pipeline))


@dataclass(frozen=True)
class Promise:
    """What must be delivered, computed without any process. `bad`: samples that others have to stand in for."""

    given: Parameters
    samples: int = SAMPLES
    items: int = LARGE
    noise: bool = False
    bad: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        order = make_order(
            self.samples,
            shuffle=self.given.shuffle,
            seed=self.given.seed,
            chunk_samples=None,
            window_chunks=self.given.shuffle_window,
        )
        object.__setattr__(self, "order", order)

    order: EpochOrder = field(init=False)

    def sample_at(self, position: int) -> int:
        """The sample at a global position, as the order has it."""
        return int(self.order.indices(position, 1)[0])

    def stand_in(self, position: int) -> int:
        """The sample at a global position, or if it is bad the first of its replacements that is not."""
        epoch, within = divmod(position, self.samples)
        places = replacements(self.given.seed, epoch, within, range(self.samples))
        found = map(self.sample_at, chain([position], (epoch * self.samples + place for place in places)))
        return next(sample for sample in found if sample not in self.bad)

    def batches(self) -> list[Delivered]:
        plan = RankedBatches(self.samples, self.given)
        return [self._batch(k, plan.batch(k)) for k in range(plan.total or 0)]

    def _batch(self, number: int, where: BatchRange) -> Delivered:
        positions = range(where.start, where.start + where.rows)
        rows = [(g // self.samples, self.stand_in(g)) for g in positions]
        indices = np.array([index for _, index in rows], np.int64)
        tops = {"data": Numbered(self.samples, self.items).data_of(indices), "label": indices}
        if self.noise:
            rng = SampleRng(self.given.seed)
            tops["noise"] = np.stack([rng.generator(*row).integers(1 << 60, size=2) for row in rows])
        return Delivered(number, tuple(indices.tolist()), {name: top.tobytes() for name, top in tops.items()})
