"""The plan of a run: its whole description, made once in the trainer and sent to the assembler and the loaders.

    trainer     counts and unpacks batches: `unpack`, `begin`, `resumed`, `batches`
    assembler   chooses the next rows: `schedule`
    loaders     make them: `worker`

`parameters` is the only place of `batch_size`, `seed` and other parameters; no component stores a copy.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ..api import AnySource, ArraySpec, Parameters, Rows
from ..base import ParameterError, SourceError
from ..loading import (
    CROPS,
    RowDecoder,
    SamplerRunner,
    Sampling,
    Worker,
    Workplace,
)
from ..order import (
    Batches,
    DrawnOrder,
    EpochOrder,
    GivenBatches,
    Rounds,
    Schedule,
    ShardRounds,
    Shards,
    batches_per_task,
    by_batch,
    no_weights,
    rand_skip_of,
)
from ..transport import About, Announce, GrowingSlots, Packed, Ring, RowsLayout, SharedFile, processors_granted
from .batch import Batch
from .state import State, check_state

_AHEAD = 4
"""`prefetch_batches: auto` keeps so many tasks' batches ahead of the trainer, besides the one that it reads. With
only two, the trainer waited at every fourth one of tiny batches."""

_NO_LIMIT = 1 << 40

_STATE_VERSION = 3

AnyRing = Ring | GrowingSlots


def raise_unordered(use: str, names: Iterable[str]) -> NoReturn:
    raise ParameterError(
        f"{use}, and nothing says the order of {', '.join(names)}: names that are known, such as data, image, x or "
        f"tokens before label, y, target or mask, are put in order; give 'tops' for others: tops={list(names)}, in the "
        "order that you mean"
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The description of a run. It does not change while the pipeline runs.

    One of three gives the samples: `order` computes them, `sampling` draws them epoch by epoch, and a stream gives them
    as they come, in `shards`. The first round begins at `position` of `epoch`, which counts items: samples, a sampler's
    batches, or batches of the shards in turn. `first_number`: batches that an earlier run took.

    `decoded` holds the source and the hooks: user code, which only the trainer and the loaders open.
    `specs`: the tops, by name and in order. `slot_specs`: these and the other arrays of a slot.
    `is_ordered`: true if the user or the tops' names say their order. `postprocesses`: true with a postprocess hook.
    `seconds_per_row`: measured in setup on one sample, a first guess. `tried`: the sample that setup has made.
    `rows_at_once`: the minimum of rows in a task, which the source fetches concurrently. `batches_per_task`: the
    maximum. `most_slots`: so many are used with `prefetch_batches: auto`.
    `loans`: the most batches whose slots the trainer may keep, beside those.
    """

    parameters: Parameters
    decoded: Packed[Any]
    specs: Mapping[str, ArraySpec]
    slot_specs: Mapping[str, ArraySpec]
    postprocesses: bool
    max_loaders: int
    order: EpochOrder | None = None
    sampling: Sampling | None = None
    shards: Shards | None = None
    epoch: int = 0
    position: int = 0
    first_number: int = 0
    is_ordered: bool = True
    seconds_per_row: float = 0.0
    rows_at_once: int = 1
    batches_per_task: int = 1
    tried: int = 0
    most_slots: int = _NO_LIMIT
    loans: int = 0

    def require_order(self, use: str) -> None:
        """Raise ParameterError, begun by `use`, which takes tops by position, if nothing says their order."""
        if not self.is_ordered:
            raise_unordered(use, self.specs)

    @property
    def end_text(self) -> str:
        """The message of EndOfData behind the last batch, if the number of batches is not known."""
        if self.shards is not None:
            return "the stream has ended in all of its epochs"
        return "all batches have been delivered"

    @property
    def samples(self) -> int:
        """The number of samples in an epoch, over all ranks; raises SourceError where it is unknown."""
        if self.order is not None:
            return self.order.samples
        if self.sampling is None:
            raise SourceError("a stream does not know how many samples it has: read it until its end")
        about = self.sampling.about
        if about.length is None or about.gives_batches:
            raise SourceError(f"{about.name} says how many samples an epoch has when it has drawn it")
        return about.length

    @cached_property
    def batches(self) -> Batches | None:
        """The batches of this rank, counted in items; None if the length of an epoch is unknown."""
        given = self.parameters
        about = None if self.sampling is None else self.sampling.about
        items = self.order.samples if self.order is not None else None if about is None else about.length
        if items is None:
            return None
        if about is not None and about.gives_batches:
            given = msgspec.structs.replace(given, batch_size=1)
        return Batches(items, given, self.epoch * items + self.position)

    @cached_property
    def total_batches(self) -> int | None:
        return None if self.batches is None else self.batches.total

    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        """Return the batches of an announcement, as views on `rows`, those of all slots."""
        size, replaced, done = self.parameters.batch_size, dict(announce.replaced), 0
        first_row, sequence, order, delivered = announce.slot * size, announce.batch, self.order, self.delivered
        batches = []
        for place, runs in by_batch(announce.runs, size).items():
            begin, (first, *others) = place * size, runs
            count = first.rows + sum([run.rows for run in others]) if others else first.rows
            end = begin + count
            tops = {name: rows[name][first_row + begin : first_row + end] for name in delivered}
            mine = (
                {row - begin: index for row, index in replaced.items() if begin <= row < end} if replaced else replaced
            )
            number = self.first_number + sequence + place
            batch = Batch(number, first.epoch, first.position, count, tops, sequence + place, runs, mine, order)
            if announce.ends:
                batch.drawn, batch.end = announce.indices[8 * done : 8 * (done + count)], announce.ends[place]
                done += count
            batches.append(batch)
        return batches

    # ---- where a run stands

    def begin(self) -> Position:
        return Position(self)

    @property
    def _joined_epochs(self) -> int:
        """The number of epochs that a stream joins without a border, each loop; 0 if it joins none, or all."""
        return self.parameters.epochs or 0 if self.parameters.last_batch == "wrap" else 0

    def resumed(self, state: Mapping[str, object]) -> Plan:
        """Return this plan continued from `state`; raises ParameterError if that is not possible."""
        fixed: tuple[str, ...] = ("samples", "seed", "shuffle" if self.sampling is None else "sampler", "order")
        if self.shards is not None:
            fixed = ("seed", "batch_size", "last_batch", "epochs", "world_size", "capacity")
            fixed += () if self.shards.any_number else ("shards",)
        checked = check_state(state, self.begin().state(), fixed, self.parameters.changed_data)
        plan = self.moved(int(checked.get("epoch", 0)), int(checked["position"]), int(checked["batches"]))
        if self.shards is not None:
            return plan._with_shards(self.shards, int(checked["shards"]))
        if plan.batches is None:
            return plan
        # Of an epoch there may be less left than a round.
        return plan.moved(*divmod(plan.batches.round_start(0), plan.batches.samples), plan.first_number)

    def _with_shards(self, shards: Shards, count: int) -> Plan:
        if not count:
            raise ParameterError("the state's shards are 0: expected at least one")
        if count != shards.count:
            self.decoded.value.num_shards = count * self.parameters.ranks
        return replace(self, shards=replace(shards, count=count))

    def moved(self, epoch: int, position: int, number: int) -> Plan:
        """Return this plan from another position on, which is batch `number`."""
        return replace(self, epoch=epoch, position=position, first_number=number)

    def from_start(self) -> Plan:
        """Return this plan from the beginning of the run, behind what `rand_skip` skips."""
        if self.order is None:
            return self.moved(0, 0, 0)
        skipped = rand_skip_of(self.parameters.seed, self.parameters.rand_skip)
        return self.moved(*divmod(skipped, self.order.samples), 0)

    def at_batch(self, number: int) -> Plan:
        """Return this plan from batch `number` of the run on; raises ParameterError if arithmetic cannot say where."""
        start = self.from_start()
        if start.batches is None:
            what = "a stream" if self.sampling is None else self.sampling.about.name
            raise ParameterError(
                f"where batch {number} begins is not known: {what} says how long an epoch is when it is read; keep "
                "state_dict() beside each snapshot, and give it to load_state_dict"
            )
        if number < 0:
            raise ParameterError(f"there is no batch {number}: batches are counted from 0")
        if start.batches.total is not None and number > start.batches.total:
            raise ParameterError(
                f"there is no batch {number}: epochs={self.parameters.epochs} have {start.batches.total}; give more "
                "epochs, or leave 'epochs' out"
            )
        return start.from_batch(number)

    def from_batch(self, taken: int) -> Plan:
        """Return this plan without its first `taken` batches; the lengths of its epochs are known."""
        return self.moved(*Position(self, taken).at, self.first_number + taken)

    def reweighed(self, weights: object) -> Plan:
        """Return this plan with other weights for its sampler; raises ParameterError."""
        if self.sampling is None:
            raise ParameterError(no_weights("no sampler with weights"))
        return replace(self, sampling=self.sampling.reweighed(weights))

    # ---- for the others

    def _drawn_order(self) -> DrawnOrder | None:
        if self.sampling is None:
            return None
        return DrawnOrder(self.parameters, self.sampling.about)

    def schedule(self) -> Schedule | GivenBatches:
        """Return the schedule for one assembler, from the plan's start."""
        given, drawn = self.parameters, self._drawn_order()
        if self.shards is not None:
            return Schedule(ShardRounds(given, self.shards.count, self.epoch, self.position))
        order = drawn or self.order
        assert order is not None
        return Schedule(Rounds(order, given, self.epoch, self.position), drawn)

    def new_ring(self) -> AnyRing:
        """Make the ring, in the trainer; raises RingAllocationError."""
        return Ring.create(self.layout, self.slots)

    def ring(self, descriptor: int) -> AnyRing:
        """Return the ring of an inherited descriptor."""
        return Ring(descriptor, self.layout, self.slots)

    def prepare(self) -> None:
        """Do what all loaders need, once, in the process from which they are forked."""

    def worker(self, place: Workplace) -> Worker:
        """Return the worker for one loader; raises any exception of unpickling user code."""
        decoded: RowDecoder = self.decoded.value
        given, drawn = self.parameters, self._drawn_order()
        if self.sampling is None or drawn is None:
            return decoded.worker(given, place, self.order)
        drawn.file = SharedFile(place.drawn)
        return decoded.worker(given, place, drawn, SamplerRunner(self.sampling, given, place).answer)

    @property
    def source(self) -> AnySource:
        decoded: RowDecoder = self.decoded.value
        return decoded.source

    @cached_property
    def reads_only(self) -> bool:
        """True if rows are only copied as they are stored: nothing is decoded, and no user code runs."""
        if self.order is None or self.postprocesses:
            return False
        decoded: RowDecoder = self.decoded.value
        return decoded.rows.changes_nothing and decoded.source.stores_rows

    @property
    def copies_memory(self) -> bool:
        """True if rows are only copied from memory: no file can be cut or hang, and no loader would be faster."""
        return self.reads_only and self.source.in_memory

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
    def layout(self) -> RowsLayout:
        """The layout of a slot, which holds a batch."""
        return RowsLayout(self.slot_specs, self.parameters.batch_size)

    @property
    def batch_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.slot_specs.values()) * self.parameters.batch_size

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
        return replace(self, batches_per_task=self._batches_in_task(self.seconds_per_row))

    def _batches_in_task(self, seconds_per_row: float) -> int:
        size, ahead = self.parameters.batch_size, self.parameters.prefetch_batches
        return batches_per_task(self.batch_bytes, size, seconds_per_row, None if ahead == "auto" else ahead)


class Position(msgspec.Struct, frozen=True):
    """The trainer's position in a run, behind `taken` batches of `plan`. Each batch replaces it in one assignment.

    `next`: the epoch and item at which the next round begins, if only announcements say so.
    """

    plan: Plan
    taken: int = 0
    next: tuple[int, int] | None = None

    def after(self, batch: Batch) -> Position:
        """Return the position after the trainer has also received `batch`."""
        return Position(self.plan, self.taken + 1, batch.end)

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the item at which the next round begins."""
        if self.next is not None or self.plan.batches is None:
            return self.next or (self.plan.epoch, self.plan.position)
        return divmod(self.plan.batches.round_start(self.taken), self.plan.batches.samples)

    @property
    def epoch(self) -> int:
        """The epoch in which the next round begins."""
        return self.at[0]

    def epoch_behind(self, ahead: int) -> int:
        """Return the first epoch of which no batch was taken before, nor is one of the next `ahead`.

        All epochs have the same length.
        """
        batches, (epoch, item) = self.plan.batches, self.at
        assert batches is not None
        rest = batches.begun_at(epoch * batches.samples + item, None)
        return -(-rest.round_start(ahead) // batches.samples)

    def batches_before(self, epoch: int) -> int | None:
        """Return the number of batches to the first round that begins in `epoch` or later; None if it is unknown."""
        (begun, position), batches = self.at, self.plan.batches
        return None if batches is None else batches.begun_at(begun * batches.samples + position, epoch).total

    def plan_from(self, epoch: int) -> Plan:
        """Return the plan from the first round on that begins in `epoch` or later."""
        skipped = self.batches_before(epoch)
        if skipped is not None:
            return self.plan.from_batch(self.taken + skipped)
        return self.plan.moved(epoch, 0, self.plan.first_number + self.taken)

    def state(self) -> State:
        """Return plain values from which `Plan.resumed` continues."""
        plan, given, (epoch, position) = self.plan, self.plan.parameters, self.at
        common: State = {"version": _STATE_VERSION, "batches": plan.first_number + self.taken, "seed": given.seed}
        if plan.order is not None:
            return {
                **common,
                "position": epoch * plan.samples + position,
                "samples": plan.samples,
                "shuffle": str(given.shuffle),
                "order": plan.order.declared,
                "data": plan.data,
                "world_size": given.ranks,
            }
        common |= {"epoch": epoch, "position": position}
        if plan.sampling is not None:
            return {
                **common,
                "samples": plan.sampling.samples,
                "sampler": plan.sampling.about.name,
                "order": plan.sampling.about.declared,
                "data": plan.data,
            }
        assert plan.shards is not None
        return {
            **common,
            "batch_size": given.batch_size,
            "shards": plan.shards.count,
            "world_size": given.ranks,
            "capacity": plan.shards.capacity,
            "last_batch": given.last_batch,
            "epochs": plan._joined_epochs,
        }


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
