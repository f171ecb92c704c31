"""The plan of a run whose samples have indices: all its batches are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..base.specs import NamedRows, Rows
from ..loading.worker import OrderedWorker
from ..order.batches import Batches, Groups
from ..order.epoch_order import EpochOrder
from ..transport.error_channel import SendError
from ..transport.messages import Announce
from ..transport.status_board import LoaderStatus
from .batch import Batch
from .plan import Plan, Schedule, State, check_state

_STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class IndexedPlan(Plan, Schedule):
    """It is its own schedule: what is in a group is a function of its number."""

    order: EpochOrder
    groups: Groups

    @property
    def batches_per_slot(self) -> int:
        return self.groups.batches_per_slot

    @property
    def samples(self) -> int:
        return self.order.samples

    @property
    def batches(self) -> Batches:
        return self.groups.batches

    # ---- for the trainer

    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        size, replaced = self.parameters.batch_size, dict(announce.replaced)
        batches = []
        for offset, k in enumerate(self.groups.numbers(announce.group)):
            where, first = self.groups.batches.batch(k), offset * size
            if 0 <= announce.rows < first + size:
                break
            epoch, position = divmod(where.start, self.order.samples)
            tops = {name: rows[name][first : first + where.rows] for name in self.delivered}
            mine = {row - first: index for row, index in replaced.items() if first <= row < first + where.rows}
            number = self.first_number + k
            batches.append(Batch(number, epoch, position, where.rows, tops, announce.group, self.order, mine))
        return batches

    def begin(self) -> IndexedProgress:
        return IndexedProgress(self)

    def resumed(self, state: Mapping[str, object]) -> IndexedPlan:
        fixed = "samples", "seed", "shuffle", "order"
        absent = {"order": self.order.declared}  # earlier versions did not say
        checked = check_state(state, self.begin().state(), fixed, absent)
        batches = Batches(self.samples, self.parameters, int(checked["position"]))
        return replace(self, groups=replace(self.groups, batches=batches), first_number=int(checked["batches"]))

    def from_batch(self, taken: int) -> IndexedPlan:
        """The same, from the batch on that follows the first `taken` ones of this plan."""
        return self.resumed(IndexedProgress(self, taken).state())

    @property
    def batch_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.slot_specs.values()) * self.parameters.batch_size

    def with_batches_per_slot(self, batches: int) -> IndexedPlan:
        """The same batches, so many of them in each group."""
        return replace(self, groups=replace(self.groups, batches_per_slot=batches))

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
        return self.order.window_at(self.groups.position_of(group, row))

    def batch_rows(self, group: int, good_rows: int) -> tuple[int, ...]:
        size, numbers = self.parameters.batch_size, self.groups.numbers(group)
        if self.parameters.last_batch != "partial":  # all are full, and this is asked of every group
            return (size,) * min(len(numbers), good_rows // size)
        sizes = [self.groups.batches.batch(k).rows for k in numbers]
        return tuple(rows for number, rows in enumerate(sizes) if number * size + rows <= good_rows)

    def sample_in(self, group: int, row: int, seen: int) -> tuple[int, int, str]:
        position = self.groups.position_of(group, row)
        return position // self.order.samples, int(self.order.indices(position, 1)[0]), ""

    def announcement(
        self, group: int, slot: int, replaced: tuple[tuple[int, int], ...], good_rows: int = -1
    ) -> Announce | None:
        if 0 <= good_rows < self.parameters.batch_size:
            return None
        return Announce(group, slot, replaced, rows=good_rows)

    # ---- for a loader

    def worker(
        self, slots: Sequence[NamedRows], status: LoaderStatus, send_error: SendError, drawn: int
    ) -> OrderedWorker:
        return OrderedWorker(self.decoded.value, self.order, self.groups, self.parameters, slots, status, send_error)


@dataclass(frozen=True, slots=True)
class IndexedProgress:
    """Counts batches: which samples they were follows from the plan."""

    plan: IndexedPlan
    taken: int = 0

    def after(self, _batch: Batch) -> IndexedProgress:
        return IndexedProgress(self.plan, self.taken + 1)

    def state(self) -> State:
        return {
            "version": _STATE_VERSION,
            "batches": self.plan.first_number + self.taken,
            "position": self.plan.groups.batches.round_start(self.taken),
            "samples": self.plan.samples,
            "seed": self.plan.parameters.seed,
            "shuffle": str(self.plan.parameters.shuffle),
            "order": self.plan.order.declared,
            "world_size": self.plan.parameters.world_size or 1,
        }
