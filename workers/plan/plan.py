"""The plan of a run: its whole description, made once in the trainer and sent to the assembler and the loaders.

    trainer     counts and unpacks batches: `unpack`, `begin`, `resumed`, `batches`
    assembler   chooses the next rows: `schedule`
    loaders     make them: `worker`

OrderedPlan and StreamPlan have files of their own. `parameters` is the only place of `batch_size`, `seed` and other
parameters; no component stores a copy.
"""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

from ..base.errors import ParameterError
from ..base.parameters import Parameters
from ..base.source import Source
from ..base.specs import ArraySpec, Rows
from ..loading.sampling import Sampling
from ..loading.stream_worker import StreamDecoder
from ..loading.transform import CROPS
from ..loading.worker import SampleDecoder, Worker, Workplace
from ..order.batches import Batches
from ..order.epoch_order import EpochOrder
from ..order.rounds import by_batch
from ..order.weights_log import NewWeights
from ..sources.stream import StreamSource
from ..transport.control_groups import processors_granted
from ..transport.messages import Announce
from ..transport.packed import Packed
from ..transport.ring import SlotLayout
from ..transport.status_board import About
from .batch import Batch
from .schedule import Schedule

State = dict[str, int | str]

_AHEAD = 4
"""The slots that `prefetch_batches: auto` fills ahead of the trainer, besides the one that it reads. With only two, the
trainer waited at every fourth slot of tiny batches."""


class Progress(Protocol):
    """The trainer's position in a run. Immutable: each batch replaces it by the next one in a single assignment."""

    @property
    def taken(self) -> int:
        """The number of batches since the start of the plan."""

    def after(self, batch: Batch) -> Progress:
        """Return the progress after the trainer has also received `batch`."""

    def state(self) -> State:
        """Return plain values from which `Plan.resumed` continues."""


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """The description of a run. It does not change while the pipeline runs.

    `decoded` holds the source and the hooks: user code, which only the trainer and the loaders open.
    `specs`: the tops, by name and in order. `slot_specs`: these and the other arrays of a slot.
    `postprocesses`: true with a postprocess hook.
    `seconds_per_row`: measured in setup on one sample, a first guess. `first_number`: batches that an earlier run took.
    `rows_at_once`: the minimum of rows in a task, which the source fetches concurrently. `batches_per_slot`: the
    maximum. `tried`: the sample that setup has made. `auto_slots`: the slots of `prefetch_batches: auto`. `order`: the
    order, if it is computed. `sampling`: the sampler, if one draws it. A stream has neither.
    """

    parameters: Parameters
    decoded: Packed[Any]
    specs: Mapping[str, ArraySpec]
    slot_specs: Mapping[str, ArraySpec]
    postprocesses: bool
    max_loaders: int
    seconds_per_row: float = 0.0
    first_number: int = 0
    rows_at_once: int = 1
    batches_per_slot: int = 1
    tried: int = 0
    auto_slots: int = _AHEAD + 1
    order: EpochOrder | None = None
    sampling: Sampling | None = None
    starts_small: bool = False
    """The first slot gets one batch, whatever the others get."""

    ends: ClassVar[str] = "the stream has ended in all of its epochs"
    """The message of EndOfData behind the last batch, if the number of batches is not known."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """The number of samples in an epoch, over all ranks; raises SourceError for a stream, where it is unknown."""

    @property
    def batches(self) -> Batches | None:
        """All batches of this rank, if all epochs have the same length; else None."""
        return None

    @cached_property
    def total_batches(self) -> int | None:
        return None if self.batches is None else self.batches.total

    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        """Return the batches of an announced group, as views on its slot's rows."""
        size, replaced, done = self.parameters.batch_size, dict(announce.replaced), 0
        number, group, order, delivered = (
            self.first_batch(announce.group),
            announce.group,
            self.order,
            self.delivered,
        )
        batches = []
        for place, runs in by_batch(announce.runs, size).items():
            begin, (first, *others) = place * size, runs
            count = first.rows + sum([run.rows for run in others]) if others else first.rows
            end = begin + count
            tops = {name: rows[name][begin:end] for name in delivered}
            mine = (
                {row - begin: index for row, index in replaced.items() if begin <= row < end} if replaced else replaced
            )
            batch = Batch(number + place, first.epoch, first.position, count, tops, group, runs, mine, order)
            if announce.ends:
                batch.drawn, batch.end = announce.indices[8 * done : 8 * (done + count)], announce.ends[place]
                done += count
            batches.append(batch)
        return batches

    @abstractmethod
    def begin(self) -> Progress: ...

    @abstractmethod
    def resumed(self, state: Mapping[str, object]) -> Self:
        """Return this plan continued from `state`; raises ParameterError if that is not possible."""

    @abstractmethod
    def schedule(self) -> Schedule:
        """Return the schedule for one assembler, from the plan's start."""

    @abstractmethod
    def worker(self, place: Workplace) -> Worker:
        """Return the worker for one loader; raises any exception of unpickling user code."""

    def reweigh(self, weights: object, progress: Progress, *, started: bool) -> NewWeights:
        """Record new weights for the sampler and the first epoch that uses them; raises ParameterError."""
        raise ParameterError(
            "set_weights: this pipeline has no sampler with weights: declare sampler: {weights: FILE, draws: n}, or "
            "{draws: n} to begin with equal ones"
        )

    @property
    def source(self) -> Source | StreamSource:
        decoded: SampleDecoder | StreamDecoder = self.decoded.value
        return decoded.source

    @property
    def data(self) -> str:
        """The identity of the data, as stored in states: see `Source.identity`."""
        identity: str = self.decoded.value.identity
        return identity

    @cached_property
    def delivered(self) -> tuple[str, ...]:
        """The names of the slot's arrays that the trainer reads."""
        return (*self.specs, *(name for name in self.slot_specs if name == CROPS))

    @property
    def status_lines(self) -> int:
        """The number of the status board's lines: for local loaders, then for remote ones."""
        return self.max_loaders + self.max_remote_loaders

    @property
    def task_s(self) -> float:
        """The target length of a task in seconds, at which its overhead is about a tenth at most.

        It costs about 0.1 ms on this host. On a cluster, where each result is an object that moves between nodes, it
        costs 5 to 10 ms of processor time.
        """
        return 0.010 if self.parameters.remote_loaders is None else 0.100

    @property
    def tasks_in_flight(self) -> int:
        """The most tasks of a local loader: the current one and the next.

        With a network in between there is one more, or none would be left to prefetch when the current one ends.
        """
        return 2 if self.rows_at_once == 1 else 3

    @property
    def max_remote_loaders(self) -> int:
        remote = self.parameters.remote_loaders
        return 0 if remote is None else remote.most

    @property
    def layout(self) -> SlotLayout:
        return SlotLayout(self.slot_specs, self.batches_per_slot * self.parameters.batch_size)

    def first_batch(self, group: int) -> int:
        """The number of the first batch of `group`; of a stream, whose groups may be empty, the highest it can have."""
        missing = self.batches_per_slot - 1 if self.starts_small else 0
        return self.first_number + max(0, group * self.batches_per_slot - missing)

    @property
    def batch_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.slot_specs.values()) * self.parameters.batch_size

    @property
    def description(self) -> About:
        """The status board's description of the run, made in the trainer."""
        return About(os.getpid(), self.slots, self.batches_per_slot, self.source.kind)

    @property
    def slots(self) -> int:
        """The number of slots: for the batches prefetched, plus one that `delivery: view` gives the trainer."""
        ahead = self.parameters.prefetch_batches
        if ahead == "auto":
            return self.auto_slots
        return ahead // self.batches_per_slot + (self.parameters.delivery == "view")

    def most_ahead(self, in_slot: int) -> int:
        """Return the most batches in the ring if up to `in_slot` share a slot; the same for copies and views."""
        ahead = self.parameters.prefetch_batches
        return (_AHEAD + 1) * in_slot if ahead == "auto" else ahead + in_slot


def usable_cores() -> int:
    """Return the number of cores that this process may use, which may be fewer than the machine has.

    These are the cores of its affinity mask, or the processor time that its control groups grant, rounded up, if that
    is less: the rules of loky's `cpu_count`.
    """
    granted = processors_granted()
    cores = len(os.sched_getaffinity(0))
    return cores if granted is None else max(1, min(cores, math.ceil(granted)))


def max_loaders(parameters: Parameters) -> int:
    """Return the most local loaders: with `num_loaders: auto` the cores in `cpu_share`, at least one."""
    if parameters.num_loaders != "auto":
        return parameters.num_loaders
    return max(1, int(usable_cores() * parameters.cpu_share + 1e-9))


def check_state(
    state: Mapping[str, object], ours: State, fixed: tuple[str, ...], changed_data: str = "refuse"
) -> State:
    """Check that `state` has the names and types of `ours` and its values of `fixed`, and return it.

    Raises ParameterError, also for other `data`, unless `changed_data` is "accept".
    """
    given = dict(state) if isinstance(state, Mapping) else {}
    version, expected = given.get("version"), int(ours["version"])
    if isinstance(version, int) and 0 < version < expected:
        raise ParameterError(
            f"the state has version={version}, as an earlier blobfeed saved it; this one reads version={expected}: "
            "go on with the blobfeed that saved it, or start without the state"
        )
    theirs, own = (next((name for name in _WAYS if name in of), "") for of in (given, ours))
    if theirs and theirs != own:
        raise ParameterError(
            f"the state was saved with {_WAYS[theirs]} ({theirs}={given[theirs]!r}), this pipeline has {_WAYS[own]} "
            f"({own}={ours[own]!r}): the same batches cannot follow; use the same source and order, or start without "
            "the state"
        )
    if given.keys() != ours.keys() or version != expected:
        raise ParameterError(
            f"this is no state of such a pipeline: {state!r}; expected the names {', '.join(ours)} "
            f"and version {expected}"
        )
    checked: State = {}
    for name, value in given.items():
        if not isinstance(value, int | str) or type(value) is not type(ours[name]) or str(value).startswith("-"):
            raise ParameterError(f"the state's {name} is {value!r}: expected a value such as {ours[name]!r}")
        checked[name] = value
    for name in fixed:
        if checked[name] != ours[name]:
            raise ParameterError(
                f"the state was saved with {name}={checked[name]!r}, this pipeline has {name}={ours[name]!r}: "
                "the same batches cannot follow; use the same source and order, or start without the state"
            )
    if changed_data == "refuse" and "data" in checked and checked["data"] != ours["data"]:
        raise ParameterError(
            f"the data have changed since the state was saved: {_changes(str(checked['data']), str(ours['data']))}; "
            "give changed_data='accept' to go on in the same order with the data as they are, or start without it"
        )
    return checked


def _changes(then: str, now: str) -> str:
    """The parts of two identities that differ, in words."""
    try:
        before, after = dict(json.loads(then)), dict(json.loads(now))
    except (ValueError, TypeError):
        return f"it has data={then!r}, expected {now!r}"
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    source = f"source {after.get('source')!r}: "
    return source + "; ".join(f"{name}: {before.get(name)} then, {after.get(name)} now" for name in names)


_WAYS = {"sampler": "a sampler", "sequences": "a stream", "shuffle": "no sampler"}
"""The kind of a pipeline, by a name that occurs only in states of that kind."""
