"""The plan of a run: its whole description, made once in the trainer and sent to the assembler and the loaders.

    trainer     counts and unpacks batches: `unpack`, `begin`, `resumed`, `batches`
    assembler   chooses the next rows: `schedule`
    loaders     make them: `worker`

`IndexedPlan` reads by index, the usual way. Plans for samplers and streams have files of their own. `parameters` is the
only place of `batch_size`, `seed` and other parameters; no component stores a copy.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import msgspec
import numpy as np

from ..base.errors import ParameterError
from ..base.parameters import Parameters
from ..base.source import Source
from ..base.specs import ArraySpec, IndexArray, Rows
from ..loading.stream_worker import StreamDecoder
from ..loading.transform import CROPS
from ..loading.worker import OrderedWorker, SampleDecoder, Worker, Workplace
from ..order.batches import Batches, Groups, batches_per_slot
from ..order.epoch_order import EpochOrder
from ..order.weights_log import NewWeights
from ..sources.stream import StreamSource
from ..transport.messages import Announce, Draw, Drawn, DrawnRows, Replaced, StreamBatch, WeightsChange
from ..transport.packed import Packed
from ..transport.ring import SlotLayout
from ..transport.status_board import About
from .batch import Batch

State = dict[str, int | str]

_STATE_VERSION = 3
"""The version of an IndexedPlan's state."""

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


class DrawsFile(Protocol):
    """The shared file that holds draws and sizes of batches; offsets and sizes in bytes."""

    def read(self, offset: int, count: int, kind: type[np.int64], /) -> IndexArray: ...

    def free(self, offset: int, size: int, /) -> None: ...


class Schedule(ABC):
    """The content of each group, requested by the assembler group by group in rising order; no I/O."""

    __slots__ = ()

    @property
    def can_be_cut(self) -> bool:
        """True if several loaders may make rows of one affinity."""
        return True

    @abstractmethod
    def has(self, group: int) -> bool:
        """Return true if the group exists by now; may be called until it does."""

    @abstractmethod
    def rows_of(self, group: int) -> int:
        """Return the number of rows to make."""

    def affinity(self, group: int, row: int) -> int | None:
        """Return the affinity of a row; None if any loader may make it.

        Rows of one affinity should be made by one loader, since they share storage chunks or a shard of a stream.
        """
        return None

    def stream_batch(self, group: int) -> StreamBatch | None:
        """Return the stream's batch that the group holds; None without a stream."""
        return None

    def called(self, draw: Draw) -> str:
        """Return the name of a drawn epoch for messages."""
        return f"epoch {draw.epoch}"

    def wanted(self) -> Draw | None:
        """Return the epoch that a sampler is to draw next, once; its task has no number yet. None if there is none."""
        return None

    def use_file(self, file: DrawsFile) -> None:  # noqa: B027
        """Record the file that holds drawn epochs."""

    def note_weights(self, change: WeightsChange) -> None:  # noqa: B027
        """Record new weights of the sampler."""

    def note_drawn(self, draw: Draw, answer: Drawn) -> None:  # noqa: B027 - only a sampler draws
        """Record the answer to `draw`."""

    def drawn(self, group: int, first_row: int, rows: int) -> tuple[DrawnRows, ...]:
        """Return the places of these rows' indices in the shared file; empty without a sampler."""
        return ()

    @abstractmethod
    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        """Return the number of rows of each batch that lies within the group's first `good_rows` rows."""

    def note_done(self, group: int, stream_rows: int) -> None:  # noqa: B027 - all that was asked for is there
        """Record that a loader has made rows of the group; `stream_rows`: the rows that a stream had for it."""

    @abstractmethod
    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        """Return (epoch, index, location) of the sample in `row`, as far as known; `seen`: the loader's last sample."""

    @abstractmethod
    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        """Return the trainer's message about the group; None if the group has no batch for it.

        `good_rows`: if the run ends with a bad row of the group, the number of rows before it.
        """

    @property
    def complaint(self) -> str:
        """The reason why the run cannot continue; "" if it can."""
        return ""

    @property
    def cause(self) -> tuple[int, str]:
        """The exception behind the complaint: its number on the error channel and its traceback; (0, "") for none."""
        return 0, ""

    @property
    def finished(self) -> bool:
        """True if no more groups will come and the trainer needs a message; it needs none if it knows their number."""
        return False


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """The description of a run. It does not change while the pipeline runs.

    `decoded` holds the source and the hooks: user code, which only the trainer and the loaders open.
    `specs`: the tops, by name and in order. `slot_specs`: these and the other arrays of a slot.
    `postprocesses`: true with a postprocess hook.
    `seconds_per_row`: measured in setup on one sample, a first guess. `first_number`: batches that an earlier run took.
    `rows_at_once`: the minimum of rows in a task, which the source fetches concurrently. `batches_per_slot`: the
    maximum. `tried`: the sample that setup has made.
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

    @abstractmethod
    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        """Return the batches of an announced group, as views on its slot's rows."""

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
        return self.first_number + group * self.batches_per_slot

    @property
    def description(self) -> About:
        """The status board's description of the run, made in the trainer."""
        return About(os.getpid(), self.slots, self.batches_per_slot, self.source.kind)

    @property
    def slots(self) -> int:
        """The number of slots: for the batches prefetched, plus one that `delivery: view` gives the trainer."""
        ahead = self.parameters.prefetch_batches
        if ahead == "auto":
            return _AHEAD + 1
        return ahead // self.batches_per_slot + (self.parameters.delivery == "view")

    def most_ahead(self, in_slot: int) -> int:
        """Return the most batches in the ring if up to `in_slot` share a slot; the same for copies and views."""
        ahead = self.parameters.prefetch_batches
        return (_AHEAD + 1) * in_slot if ahead == "auto" else ahead + in_slot


@dataclass(frozen=True, kw_only=True)
class IndexedPlan(Plan, Schedule):
    """A plan that is its own schedule, since a group's number determines its content. `rounds`: this rank's batches."""

    order: EpochOrder
    rounds: Batches
    starts_small: bool = False
    """The first slot gets one batch, whatever the others get."""

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.rounds, self.batches_per_slot, self.starts_small)

    def first_batch(self, group: int) -> int:
        return self.first_number + self.groups.first(group)

    @property
    def samples(self) -> int:
        return self.order.samples

    @property
    def batches(self) -> Batches:
        return self.rounds

    # ---- for the trainer

    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        size, replaced = self.parameters.batch_size, dict(announce.replaced)
        batches = []
        for offset, k in enumerate(self.groups.numbers(announce.group)):
            where, first = self.rounds.batch(k), offset * size
            if 0 <= announce.rows < first + size:
                break
            epoch, position = divmod(where.start, self.order.samples)
            tops, mine = {name: rows[name][first : first + where.rows] for name in self.delivered}, replaced
            if replaced:
                mine = {row - first: index for row, index in replaced.items() if first <= row < first + where.rows}
            number = self.first_number + k
            batches.append(Batch(number, epoch, position, where.rows, tops, announce.group, self.order, mine))
        return batches

    def begin(self) -> IndexedProgress:
        return IndexedProgress(self)

    def resumed(self, state: Mapping[str, object]) -> IndexedPlan:
        fixed = "samples", "seed", "shuffle", "order"
        checked = check_state(state, self.begin().state(), fixed, self.parameters.changed_data)
        rounds = Batches(self.samples, self.parameters, int(checked["position"]))
        return replace(self, rounds=rounds, first_number=int(checked["batches"]))

    def from_batch(self, taken: int) -> IndexedPlan:
        """Return this plan without its first `taken` batches."""
        return self.resumed(IndexedProgress(self, taken).state())

    @property
    def batch_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.slot_specs.values()) * self.parameters.batch_size

    def batches_in_slot(self, seconds_per_row: float) -> int:
        """Return the number of batches that should share a slot if a row takes `seconds_per_row`."""
        size, ahead = self.parameters.batch_size, self.parameters.prefetch_batches
        return batches_per_slot(self.batch_bytes, size, seconds_per_row, None if ahead == "auto" else ahead)

    # ---- for the assembler

    def schedule(self) -> IndexedPlan:
        return self

    def has(self, group: int) -> bool:
        total = self.groups.total
        return total is None or group < total

    def rows_of(self, group: int) -> int:
        return self.groups.rows_of(group)

    def affinity(self, group: int, row: int) -> int | None:
        """Return the row's window in a chunked order. Rows of one window share chunks: one loader decodes them once."""
        return self.order.window_at(self.groups.position_of(group, row)) if self.order.has_windows else None

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        size, numbers = self.parameters.batch_size, self.groups.numbers(group)
        if self.parameters.last_batch != "partial":  # all are full, and this is asked of every group
            return (size,) * min(len(numbers), good_rows // size)
        sizes = [self.rounds.batch(k).rows for k in numbers]
        return tuple(rows for number, rows in enumerate(sizes) if number * size + rows <= good_rows)

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        index, epoch = self.order.with_epochs(self.groups.position_of(group, row), 1)
        return int(epoch[0]), int(index[0]), ""

    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        if 0 <= good_rows < self.parameters.batch_size:
            return None
        return Announce(group, slot, replaced, rows=good_rows)

    # ---- for a loader

    def worker(self, place: Workplace) -> OrderedWorker:
        return OrderedWorker(self.decoded.value, self.order, self.groups, self.parameters, place)


class IndexedProgress(msgspec.Struct, frozen=True):
    """Counts batches; the plan determines their samples."""

    plan: IndexedPlan
    taken: int = 0

    def after(self, batch: Batch) -> IndexedProgress:
        return IndexedProgress(self.plan, self.taken + 1)

    def state(self) -> State:
        return {
            "version": _STATE_VERSION,
            "batches": self.plan.first_number + self.taken,
            "position": self.plan.rounds.round_start(self.taken),
            "samples": self.plan.samples,
            "seed": self.plan.parameters.seed,
            "shuffle": str(self.plan.parameters.shuffle),
            "order": self.plan.order.declared,
            "data": self.plan.data,
            "world_size": self.plan.parameters.world_size or 1,
        }


def usable_cores() -> int:
    """Return the number of cores in this process's affinity mask, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def max_loaders(parameters: Parameters) -> int:
    return usable_cores() if parameters.num_loaders == "auto" else parameters.num_loaders


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
