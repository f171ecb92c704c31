"""The plan of a run: all that describes it, made once in the trainer, and handed whole to assembler and loaders.

    trainer     what the batches are: `unpack`, `begin`, `resumed`, and how many there are
    assembler   what to make next: `schedule`
    loaders     how to make it: `worker`

Reading by index, the usual way, is `IndexedPlan`; reading in a sampler's order and as a stream have files of their own.
Anyone who needs `batch_size`, `seed` or another parameter asks `parameters`; nobody keeps a copy.
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

from ..base.errors import ParameterError
from ..base.parameters import Parameters
from ..base.source import Source
from ..base.specs import ArraySpec, Rows
from ..loading.stream_worker import DecodedStream
from ..loading.transform import CROPS
from ..loading.worker import DecodedSource, OrderedWorker, Worker, Workplace
from ..order.batches import Batches, Groups, batches_per_slot
from ..order.epoch_order import EpochOrder
from ..order.weights_log import NewWeights
from ..sources.stream import StreamSource
from ..transport.messages import Announce, DrawnRows, Replaced, StreamBatch
from ..transport.packed import Packed
from ..transport.ring import SlotLayout
from ..transport.status_board import About
from .batch import Batch

State = dict[str, int | str]

_STATE_VERSION = 3
"""Of the state of an IndexedPlan."""

_AHEAD = 4
"""Slots made ahead of the trainer by `prefetch_batches: auto`, besides the one that it reads. With only two,
the trainer waited at every fourth slot of tiny batches."""


class Progress(Protocol):
    """How far the trainer has come. It never changes: the next one takes its place, in one step."""

    @property
    def taken(self) -> int:
        """Batches since the plan begins."""

    def after(self, batch: Batch) -> Progress:
        """The progress when the trainer has received `batch` too."""

    def state(self) -> State:
        """Plain values from which `Plan.resumed` goes on."""


class Schedule(ABC):
    """What the assembler asks, group by group in rising order; no I/O."""

    __slots__ = ()

    @property
    def can_be_cut(self) -> bool:
        """Whether rows of one affinity may be made by several loaders."""
        return True

    @abstractmethod
    def has(self, group: int) -> bool:
        """Whether there is such a group, now; asked until it is there."""

    @abstractmethod
    def rows_of(self, group: int) -> int:
        """Rows to be made."""

    def affinity(self, group: int, row: int) -> int | None:
        """Rows of one affinity had better be made by one loader, since they lie in the same storage chunks or come from
        the same shard of a stream; None if any loader will do.
        """
        return None

    def stream_batch(self, group: int) -> StreamBatch | None:
        """Which batch of a stream the group is; None if it is no stream's."""
        return None

    def drawn(self, group: int, first_row: int, rows: int) -> tuple[DrawnRows, ...]:
        """Where the indices of these rows lie, if a sampler drew them."""
        return ()

    @abstractmethod
    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        """The rows of each batch in the group that lies within its first `good_rows` rows."""

    def note_done(self, group: int, stream_rows: int) -> None:  # noqa: B027 - all that was asked for is there
        """A loader has made rows of the group; `stream_rows`: how many a stream had for it."""

    @abstractmethod
    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        """(epoch, index, where) of the sample in `row`, as far as it is known here; `seen`: what a loader was at."""

    @abstractmethod
    def announcement(self, group: int, slot: int, replaced: Replaced, good_rows: int = -1) -> Announce | None:
        """What to tell the trainer; None if there is nothing for it in the group.

        `good_rows`: if the run ends with a bad row of the group, how many lie before it.
        """

    @property
    def complaint(self) -> str:
        """Why there is no way on, or nothing."""
        return ""

    @property
    def cause(self) -> tuple[int, str]:
        """The exception behind the complaint: its number on the error channel and its traceback, (0, "") if none."""
        return 0, ""

    @property
    def finished(self) -> bool:
        """Whether the trainer must be told that no more groups will come; never if it knows by itself."""
        return False


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """What does not change while the pipeline runs.

    `decoded` holds the source and the hooks: user code, which only the trainer and the loaders open.
    `specs`: what the tops' rows are, by name and in order. `slot_specs`: those, and what a slot has beside them.
    `postprocesses`: whether there is such a hook.
    `seconds_per_row`: measured in setup on one sample, a first guess. `first_number`: batches that an earlier run took.
    `rows_at_once`: the least rows in a task, since its source fetches them at the same time. `batches_per_slot`: at
    most. `tried`: the sample that setup has made.
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

    needs_sampler: ClassVar[bool] = False
    """Whether a process draws the epochs."""

    ends: ClassVar[str] = "the stream has ended in all of its epochs"
    """What is told behind the last batch, if the number of batches is not known."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """Samples in an epoch, over all ranks; raises SourceError for a stream, which does not know."""

    @property
    def batches(self) -> Batches | None:
        """All batches of this rank, if every epoch is as long."""
        return None

    @cached_property
    def total_batches(self) -> int | None:
        return None if self.batches is None else self.batches.total

    @abstractmethod
    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        """The batches of an announced group, as views on its slot's rows."""

    @abstractmethod
    def begin(self) -> Progress: ...

    @abstractmethod
    def resumed(self, state: Mapping[str, object]) -> Self:
        """The same, going on from `state`; raises ParameterError if that is not possible."""

    @abstractmethod
    def schedule(self) -> Schedule:
        """For one assembler, from the plan's start."""

    @abstractmethod
    def worker(self, place: Workplace) -> Worker:
        """For one loader; raises whatever unpickling user code raises."""

    def reweigh(self, weights: object, progress: Progress, *, started: bool) -> NewWeights:
        """Note new weights for the sampler, and from where on they count; raises ParameterError."""
        raise ParameterError(
            "set_weights: this pipeline has no sampler with weights: declare sampler: {weights: FILE, draws: n}, or "
            "{draws: n} to begin with equal ones"
        )

    @property
    def source(self) -> Source | StreamSource:
        decoded: DecodedSource | DecodedStream = self.decoded.value
        return decoded.source

    @property
    def data(self) -> str:
        """What states hold of the data: see `Source.identity`."""
        identity: str = self.decoded.value.identity
        return identity

    @cached_property
    def delivered(self) -> tuple[str, ...]:
        """What of a slot's rows the trainer gets."""
        return (*self.specs, *(name for name in self.slot_specs if name == CROPS))

    @property
    def status_lines(self) -> int:
        """Of the status board: the local loaders', the remote ones', and the last one for the sampler."""
        return self.max_loaders + self.max_remote_loaders + 1

    @property
    def max_remote_loaders(self) -> int:
        remote = self.parameters.remote_loaders
        return 0 if remote is None else remote.most

    @property
    def layout(self) -> SlotLayout:
        return SlotLayout(self.slot_specs, self.batches_per_slot * self.parameters.batch_size)

    @property
    def description(self) -> About:
        """Made in the trainer."""
        return About(os.getpid(), self.slots, self.batches_per_slot, self.source.kind)

    @property
    def slots(self) -> int:
        """Slots in the ring: for the batches made ahead, at most a number given, and one that is lent by view."""
        ahead = self.parameters.prefetch_batches
        if ahead == "auto":
            return _AHEAD + 1
        return ahead // self.batches_per_slot + (self.parameters.delivery == "view")

    def most_ahead(self, in_slot: int) -> int:
        """What the ring holds at most if up to `in_slot` batches share a slot: as many for copies as for views."""
        ahead = self.parameters.prefetch_batches
        return (_AHEAD + 1) * in_slot if ahead == "auto" else ahead + in_slot


@dataclass(frozen=True, kw_only=True)
class IndexedPlan(Plan, Schedule):
    """Its own schedule: what is in a group follows from its number. `rounds`: all of them, with this rank's batches."""

    order: EpochOrder
    rounds: Batches

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.rounds, self.batches_per_slot)

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
        """The same, from the batch on that follows the first `taken` ones of this plan."""
        return self.resumed(IndexedProgress(self, taken).state())

    @property
    def batch_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.slot_specs.values()) * self.parameters.batch_size

    def batches_in_slot(self, seconds_per_row: float) -> int:
        """How many had better share a slot if it takes so long to make a row."""
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
        """Rows of one window of a chunked order have chunks in common: one loader decompresses them, once."""
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
    """Counts batches: which samples they were follows from the plan."""

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
    """Cores that this process may use: its affinity mask counts, not what the machine has."""
    return len(os.sched_getaffinity(0))


def max_loaders(parameters: Parameters) -> int:
    return usable_cores() if parameters.num_loaders == "auto" else parameters.num_loaders


def check_state(
    state: Mapping[str, object], ours: State, fixed: tuple[str, ...], changed_data: str = "refuse"
) -> State:
    """Return `state`, if it has the names and types of `ours`, and the same values for `fixed`.

    Raises ParameterError, also if its `data` are others, but with "accept".
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
"""By the name that only the states of such pipelines have."""
