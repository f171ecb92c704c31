"""The plan of a run: its whole description, made once in the trainer and sent to the assembler and the loaders.

    trainer     counts and unpacks batches: `unpack`, `begin`, `resumed`, `cut`
    assembler   chooses the next rows: `schedule`
    loaders     make them: `worker`

`parameters` is the only place of `batch_size`, `seed` and other parameters; no component stores a copy.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ..api import AnySource, ArraySpec, Parameters, Rows
from ..base import ParameterError
from ..loading import CROPS, Conversion, RowConverter, RowDecoder, Worker, Workplace, converted_specs
from ..order import At, Cut, Schedule, Supply, by_batch
from ..transport import About, Announce, Packed, Ring, RowsLayout, processors_granted
from .batch import Batch, SlotTops
from .state import State, check_state

_AHEAD = 4
"""`prefetch_batches: auto` keeps so many tasks' batches ahead of the trainer, besides the one that it reads. With
only two, the trainer waited at every fourth one of tiny batches."""

_TASK_BYTES = 4 << 20
_TASK_S = 0.004
"""Twice the useful time, because the trial of a row takes twice as long beside other work."""
_MOST_BATCHES = 64

_NO_LIMIT = 1 << 40

_STATE_VERSION = 3
_BEGINNING = At(0, 0)


def raise_unordered(use: str, names: Iterable[str]) -> NoReturn:
    raise ParameterError(
        f"{use}, and nothing says the order of {', '.join(names)}: names that are known, such as data, image, x or "
        f"tokens before label, y, target or mask, are put in order; give 'tops' for others: tops={list(names)}, in the "
        "order that you mean"
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The description of a run. It does not change while the pipeline runs.

    `supply` says which samples come; the first round begins at `start`. `first_number`: batches that an earlier run
    took.

    `decoded` holds the source and the hooks: user code, which only the trainer and the loaders open.
    `specs`: the tops, by name and in order. `slot_specs`: these and the other arrays of a slot. `conversions`: what the
    loaders do to these tops on their way into the slots, where they are float32 then.
    `is_ordered`: true if the user or the tops' names say their order. `postprocesses`: true with a postprocess hook.
    `seconds_per_row`: measured in setup on one sample, a first guess. `tried`: the sample that setup has made.
    `rows_at_once`: the minimum of rows in a task, which the source fetches concurrently. `batches_per_task`: the
    maximum. `most_slots`: at most so many are used with `prefetch_batches: auto`.
    `loans`: the most batches whose slots the trainer may keep, beside those.
    """

    parameters: Parameters
    decoded: Packed[Any]
    specs: Mapping[str, ArraySpec]
    slot_specs: Mapping[str, ArraySpec]
    postprocesses: bool
    max_loaders: int
    supply: Supply
    start: At = _BEGINNING
    first_number: int = 0
    is_ordered: bool = True
    seconds_per_row: float = 0.0
    rows_at_once: int = 1
    batches_per_task: int = 1
    tried: int = 0
    most_slots: int = _NO_LIMIT
    loans: int = 0
    conversions: Mapping[str, Conversion] = field(default_factory=dict)

    def require_order(self, use: str) -> None:
        """Raise ParameterError, begun by `use`, which takes tops by position, if nothing says their order."""
        if not self.is_ordered:
            raise_unordered(use, self.specs)

    @cached_property
    def cut(self) -> Cut:
        return self.supply.cut(self.parameters)

    def batches_of(self, epochs: int | None, at: At | None = None) -> int | None:
        """Return this rank's batches from `at`, else the start, to the end of `epochs` epochs; None: unknown."""
        return self.cut.count(at or self.start, epochs)

    @cached_property
    def total_batches(self) -> int | None:
        return self.batches_of(self.parameters.epochs)

    def unpack(
        self, announce: Announce, rows: Mapping[str, Rows], made: dict[int, SlotTops] | None = None
    ) -> list[Batch]:
        """Return the batches of an announcement, as views on `rows`, those of all slots.

        `made`: the views of slots that were made before, by slot; more are added.
        """
        size, replaced, done = self.parameters.batch_size, dict(announce.replaced), 0
        first_row, sequence, supply, delivered = announce.slot * size, announce.batch, self.supply, self.delivered
        batches, made = list[Batch](), {} if made is None else made
        for place, runs in by_batch(announce.runs, size).items():
            begin, (first, *others) = place * size, runs
            count = first.rows + sum([run.rows for run in others]) if others else first.rows
            end = begin + count
            tops = made.get(announce.slot + place) if count == size else None
            if tops is None:
                tops = SlotTops({name: rows[name][first_row + begin : first_row + end] for name in delivered})
                if count == size:
                    made[announce.slot + place] = tops
            mine = (
                {row - begin: index for row, index in replaced.items() if begin <= row < end} if replaced else replaced
            )
            number = self.first_number + sequence + place
            batch = Batch(number, first.epoch, first.position, count, tops, sequence + place, runs, supply, mine)
            if announce.ends:
                batch.drawn, batch.end = announce.indices[8 * done : 8 * (done + count)], At(*announce.ends[place])
                done += count
            batches.append(batch)
        batches[0].together = len(batches)
        return batches

    @property
    def modules(self) -> tuple[str, ...]:
        """Those that opening it imports."""
        return (*self.decoded.modules, type(self.supply).__module__)

    # ---- where a run stands

    def begin(self) -> Position:
        return Position(self)

    def resumed(self, state: Mapping[str, object]) -> Plan:
        """Return this plan continued from `state`; raises ParameterError if that is not possible."""
        checked = check_state(state, self.begin().state(), self.supply.fixed, self.parameters.changed_data)
        supply, at = self.supply.land(self.parameters, checked)
        return replace(self, supply=supply).moved(at, int(checked["batches"]))

    def moved(self, at: At, number: int) -> Plan:
        """Return this plan from `at` on, where batch `number` begins, or the epoch's rest is no round."""
        return replace(self, start=self.cut.start(at, 0), first_number=number)

    def from_start(self) -> Plan:
        """Return this plan from the beginning of the run."""
        return self.moved(self.supply.land(self.parameters)[1], 0)

    def at_batch(self, number: int) -> Plan:
        """Return this plan from batch `number` of the run on; raises ParameterError if arithmetic cannot say where."""
        if number < 0:
            raise ParameterError(f"there is no batch {number}: batches are counted from 0")
        start = self.from_start()
        found = start.nearest(number)
        if found.first_number != number:
            raise ParameterError(
                f"where batch {number} begins is not known: {self.supply.name} says how long an epoch is when it is "
                "read; keep state_dict() beside each snapshot, and give it to load_state_dict"
            )
        if (last := start.total_batches) is not None and number > last:
            raise ParameterError(
                f"there is no batch {number}: epochs={self.parameters.epochs} have {last}; give more "
                "epochs, or leave 'epochs' out"
            )
        return found

    def nearest(self, number: int) -> Plan:
        """Return this plan from batch `number` of the run on, or, where only reading says where that begins, as it is.

        Of an epoch whose length is known when it is read, nobody can say it before.
        """
        return self if self.supply.items is None else self.from_batch(number - self.first_number)

    def from_batch(self, taken: int) -> Plan:
        """Return this plan without its first `taken` batches; the lengths of its epochs are known."""
        return Position(self, taken).rest

    def reweighed(self, weights: object) -> Plan:
        """Return this plan with other weights for its sampler; raises ParameterError."""
        return replace(self, supply=self.supply.reweighed(weights))

    # ---- for the others

    def schedule(self) -> Schedule:
        """Return the schedule for one assembler, from the plan's start."""
        return Schedule(self.supply.rounds(self.parameters, self.start))

    def new_ring(self) -> Ring:
        """Make the ring, in the trainer; raises RingAllocationError."""
        return Ring.create(self.layout, self.slots)

    def ring(self, descriptor: int) -> Ring:
        """Return the ring of an inherited descriptor."""
        return Ring(descriptor, self.layout, self.slots)

    def prepare(self) -> None:
        """Do what all loaders need, once, in the process from which they are forked."""

    def worker(self, place: Workplace) -> Worker:
        """Return the worker for one loader; raises any exception of unpickling user code."""
        decoded: RowDecoder = self.decoded.value
        if self.conversions:
            converter = RowConverter(self.conversions, self.slot_specs, self.gathered)
            place = msgspec.structs.replace(place, converter=converter)
        return decoded.worker(self.supply, self.parameters, place)

    @property
    def source(self) -> AnySource:
        decoded: RowDecoder = self.decoded.value
        return decoded.source

    @cached_property
    def _copies_rows(self) -> bool:
        """True if rows are only copied as they are stored: nothing is decoded."""
        decoded: RowDecoder = self.decoded.value
        return not self.postprocesses and decoded.rows.changes_nothing and decoded.source.stores_rows

    @property
    def reads_only(self) -> bool:
        """True if rows are only copied as they are stored, and no user code runs."""
        return self.supply.is_computed and self._copies_rows

    @property
    def gathered(self) -> Collection[str]:
        """The tops whose rows may be converted on the way out of a mapped file: see ConvertedRows."""
        return self.source.gathered if self._copies_rows else ()

    @property
    def copies_memory(self) -> bool:
        """True if rows are only copied from memory: no file can be cut or hang, and no loader would be faster."""
        return self.reads_only and self.source.in_memory

    @property
    def data(self) -> dict[str, str]:
        """The identity of the data by its name in states, where they have it: see `Source.identity`."""
        identity: str = self.decoded.value.identity
        return {"data": identity} if identity else {}

    @cached_property
    def delivered(self) -> tuple[str, ...]:
        """The names of the slot's arrays that the trainer reads."""
        return (*self.specs, *(name for name in self._in_slots if name == CROPS))

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

    @cached_property
    def _in_slots(self) -> Mapping[str, ArraySpec]:
        return converted_specs(self.slot_specs, self.conversions)

    @property
    def layout(self) -> RowsLayout:
        """The layout of a slot, which holds a batch."""
        return RowsLayout(self._in_slots, self.parameters.batch_size)

    @property
    def batch_bytes(self) -> int:
        return sum(spec.nbytes for spec in self._in_slots.values()) * self.parameters.batch_size

    @property
    def description(self) -> About:
        """The status board's description of the run, made in the trainer."""
        given = sys.argv[0] if sys.argv else ""
        program = Path(given).name or Path("/proc/self/exe").readlink().name  # an embedded interpreter has no script
        return About(os.getpid(), self.slots, self.batches_per_task, self.source.kind, program)

    @property
    def slots(self) -> int:
        """The number of slots: for the batches prefetched, and for those that are lent to the trainer."""
        ahead = self.parameters.prefetch_batches
        made_ahead = min(self.most_slots, (_AHEAD + 1) * self.batches_per_task)
        return self.loans + (made_ahead if ahead == "auto" else ahead)

    def sized(self) -> Plan:
        """Return this plan with the number of batches in a task that its measured time suggests."""
        if self.supply.parts:  # each batch is another part's, and so another loader's
            return self
        size, ahead = self.parameters.batch_size, self.parameters.prefetch_batches
        together = batches_per_task(self.batch_bytes, size, self.seconds_per_row, None if ahead == "auto" else ahead)
        return replace(self, batches_per_task=together)

    def converted(self, conversions: Mapping[str, Conversion]) -> Plan:
        """Return this plan with `conversions` done by the loaders.

        Without them if a hook runs over whole batches, which come before it, or rows travel over a network, four times
        as long then.
        """
        stays = self.postprocesses or self.parameters.remote_loaders is not None
        return replace(self, conversions={} if stays else conversions)


class Position(msgspec.Struct, frozen=True):
    """The trainer's position in a run, behind `taken` batches of `plan`. Each batch replaces it in one assignment.

    `next`: where the next round begins, if only announcements say so.
    """

    plan: Plan
    taken: int = 0
    next: At | None = None

    def after(self, batch: Batch) -> Position:
        """Return the position after the trainer has also received `batch`."""
        return Position(self.plan, self.taken + 1, batch.end)

    @property
    def at(self) -> At:
        """The place where the next round begins."""
        return self.next or self.plan.cut.start(self.plan.start, self.taken)

    @property
    def epoch(self) -> int:
        """The epoch in which the next round begins."""
        return self.at.epoch

    @property
    def number(self) -> int:
        """The number of the next batch, counted from the run's start."""
        return self.plan.first_number + self.taken

    @property
    def rest(self) -> Plan:
        """The plan from here on."""
        return self.plan.moved(self.at, self.number)

    def epoch_behind(self, ahead: int) -> int:
        """Return the first epoch of which no batch was taken before, nor is one of the next `ahead`."""
        epoch, item = self.plan.cut.start(self.at, ahead)
        return epoch + (item > 0)

    def batches_before(self, epoch: int) -> int | None:
        """Return the number of batches to the first round that begins in `epoch` or later; None if it is unknown."""
        return self.plan.batches_of(epoch, self.at)

    def plan_from(self, epoch: int) -> Plan:
        """Return the plan from the first round on that begins in `epoch` or later."""
        skipped = self.batches_before(epoch)
        if skipped is not None:
            return self.plan.from_batch(self.taken + skipped)
        return self.plan.moved(At(epoch, 0), self.number)

    def state(self) -> State:
        """Return plain values from which `Plan.resumed` continues."""
        plan, given = self.plan, self.plan.parameters
        common: State = {"version": _STATE_VERSION, "batches": self.number, "seed": given.seed}
        return {**common, **plan.supply.identify(given, self.at), **plan.data}


def batches_per_task(batch_bytes: int, batch_size: int, seconds_per_row: float, ahead: int | None = None) -> int:
    """Return the number of batches that share a task: more than one only if they are small and quickly made.

    `ahead`: the bound on prefetched batches, or None. At least two tasks share that many.
    """
    by_size = _TASK_BYTES // max(1, batch_bytes)
    by_time = int(_TASK_S / max(1e-9, seconds_per_row * batch_size))
    return max(1, min(by_size, by_time, _MOST_BATCHES if ahead is None else ahead // 2))


def usable_cores() -> int:
    """Return the number of cores that this process may use, which may be fewer than the machine has.

    These are the cores of its affinity mask, or the processor time that its control groups grant, rounded up, if that
    is less: the rules of loky's `cpu_count`.
    """
    granted = processors_granted()
    cores = len(os.sched_getaffinity(0))
    return cores if granted is None else min(cores, math.ceil(granted))


def max_loaders(parameters: Parameters) -> int:
    """Return the most local loaders: with `num_loaders: auto` the cores in `cpu_share`, at least one."""
    if parameters.num_loaders != "auto":
        return parameters.num_loaders
    return max(1, int(usable_cores() * parameters.cpu_share + 1e-9))
