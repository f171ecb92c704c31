"""The plan of a run over samples with indices, in an order that is computed, or that a sampler draws epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import msgspec

from ..base.errors import ParameterError, SourceError
from ..base.parameters import without_source
from ..loading.drawing import SamplerRunner
from ..loading.worker import IndexedWorker, Workplace
from ..order.batches import Batches, batches_per_slot
from ..order.drawn_order import DrawnOrder
from ..order.epoch_order import EpochOrder
from ..order.rounds import Rounds
from ..order.weights_log import NewWeights, WeightsLog, check_weights
from ..transport.shared_file import SharedFile
from .batch import Batch
from .plan import Plan, Progress, State, check_state
from .schedule import OrderedSchedule

_STATE_VERSION = 3

_PARTS_OF_EPOCH = 16
"""A slot holds at most 1/16 of an epoch if weights may be set. By default there are five slots."""


@dataclass(frozen=True, kw_only=True)
class OrderedPlan(Plan):
    """A plan with an `order`, or with a `sampling` that draws one.

    `epoch`, `position`: the start of the first round, in samples or the sampler's batches.
    """

    epoch: int = 0
    position: int = 0

    ends: ClassVar[str] = "all batches have been delivered"

    @property
    def samples(self) -> int:
        if self.order is not None:
            return self.order.samples
        assert self.sampling is not None
        about = self.sampling.about
        if about.length is None or about.gives_batches:
            raise SourceError(f"{about.name} says how many samples an epoch has when it has drawn it")
        return about.length

    @cached_property
    def batches(self) -> Batches | None:
        """The batches of this rank, counted in items; None if the length of an epoch is unknown."""
        given, each = self.parameters, self.parameters.batch_size
        if self.order is not None:
            items: int | None = self.order.samples
        else:
            assert self.sampling is not None
            items = self.sampling.about.length
            each = 1 if self.sampling.about.gives_batches else each
        if items is None:
            return None
        return Batches(items, msgspec.structs.replace(given, batch_size=each), self.epoch * items + self.position)

    def sized(self) -> OrderedPlan:
        """Return this plan with the number of batches in a slot that its measured time suggests."""
        in_slot, batches, sampling = self._batches_in_slot(self.seconds_per_row), self.batches, self.sampling
        if batches is None or sampling is None or not sampling.about.takes_weights:
            return replace(self, batches_per_slot=in_slot)
        # New weights apply after all batches that may be planned. With tiny batches in full slots that would be epochs.
        most = min(self._batches_in_slot(0), max(1, batches.batches_per_epoch // _PARTS_OF_EPOCH))
        return replace(self, batches_per_slot=min(in_slot, most), sampling=replace(sampling, most_in_slot=most))

    def _batches_in_slot(self, seconds_per_row: float) -> int:
        size, ahead = self.parameters.batch_size, self.parameters.prefetch_batches
        return batches_per_slot(self.batch_bytes, size, seconds_per_row, None if ahead == "auto" else ahead)

    # ---- for the trainer

    def begin(self) -> OrderedProgress:
        return OrderedProgress(self, 0, None)

    def resumed(self, state: Mapping[str, object]) -> OrderedPlan:
        fixed = "samples", "seed", "shuffle" if self.sampling is None else "sampler", "order"
        checked = check_state(state, self.begin().state(), fixed, self.parameters.changed_data)
        number, position = int(checked["batches"]), int(checked["position"])
        if self.sampling is None:
            return self._normal(replace(self, epoch=0, position=position, first_number=number))
        log = WeightsLog.from_text(str(checked["weights"]), self.sampling.samples)
        if log.changes and not self.sampling.about.takes_weights:
            raise ParameterError(f"the state has weights, and {self.sampling.about.name} takes none")
        sampling = replace(self.sampling, log=log)
        moved = self.moved(int(checked["epoch"]), position, number)
        return self._normal(replace(moved, sampling=sampling))

    def _normal(self, plan: OrderedPlan) -> OrderedPlan:
        """Return `plan` from its first round on: of an epoch there may be less left than a round."""
        if plan.batches is None:
            return plan
        return plan.moved(*divmod(plan.batches.round_start(0), plan.batches.samples), plan.first_number)

    def moved(self, epoch: int, position: int, number: int) -> OrderedPlan:
        """Return this plan from another position on, which is batch `number`."""
        return replace(self, epoch=epoch, position=position, first_number=number)

    def from_batch(self, taken: int) -> OrderedPlan:
        """Return this plan without its first `taken` batches; the lengths of its epochs are known."""
        return self.moved(*OrderedProgress(self, taken, None).at, self.first_number + taken)

    def reweigh(self, weights: object, progress: Progress, *, started: bool) -> NewWeights:
        if self.sampling is None:
            return super().reweigh(weights, progress, started=started)
        if not self.sampling.about.takes_weights or not isinstance(progress, OrderedProgress):
            raise ParameterError(
                f"set_weights: this pipeline has {self.sampling.about.name}, which has no weights: declare "
                "sampler: {weights: FILE, draws: n}, or {draws: n} to begin with equal ones"
            )
        checked, log = check_weights(weights, self.sampling.samples, "set_weights"), self.sampling.log
        planned = self.parameters.device_prefetch + self.most_ahead(self.sampling.most_in_slot) if started else 0
        # The first epoch of which no batch is among those taken, nor among the next `planned` ones.
        (epoch, position), samples = progress.at, self.samples
        rest = Batches(samples, self.parameters, epoch * samples + position)
        change = log.add(-(-rest.round_start(planned) // samples), checked)
        return NewWeights(change, checked, log.forget(epoch))

    # ---- for the others

    def _ordered(self) -> EpochOrder | DrawnOrder:
        if self.order is not None:
            return self.order
        assert self.sampling is not None
        return DrawnOrder(without_source(self.parameters), self.sampling.about, list(self.sampling.log.changes))

    def schedule(self) -> OrderedSchedule:
        order, most = self._ordered(), self.batches_per_slot
        rounds = Rounds(order, without_source(self.parameters), self.epoch, self.position)
        return OrderedSchedule(order, rounds, most, 1 if self.starts_small else most)

    def worker(self, place: Workplace) -> IndexedWorker:
        order, given = self._ordered(), self.parameters
        if self.sampling is None or isinstance(order, EpochOrder):
            return IndexedWorker(self.decoded.value, order, given, place)
        order.file = SharedFile(place.drawn)
        draw = SamplerRunner(self.sampling, given, place).answer
        return IndexedWorker(self.decoded.value, order, given, place, draw)


class OrderedProgress(msgspec.Struct, frozen=True):
    """Counts batches. `end`: the position of the next round, if only the sampler's epochs say so."""

    plan: OrderedPlan
    taken: int
    end: tuple[int, int] | None

    def after(self, batch: Batch) -> OrderedProgress:
        return OrderedProgress(self.plan, self.taken + 1, batch.end)

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the item at which the next round begins."""
        if self.end is not None or self.plan.batches is None or not self.taken:
            return self.end or (self.plan.epoch, self.plan.position)
        return divmod(self.plan.batches.round_start(self.taken), self.plan.batches.samples)

    def state(self) -> State:
        plan, (epoch, position), sampling = self.plan, self.at, self.plan.sampling
        number, seed = plan.first_number + self.taken, plan.parameters.seed
        common: State = {"version": _STATE_VERSION, "batches": number}
        if plan.order is not None:
            return {
                **common,
                "position": epoch * plan.samples + position,
                "samples": plan.samples,
                "seed": seed,
                "shuffle": str(plan.parameters.shuffle),
                "order": plan.order.declared,
                "data": plan.data,
                "world_size": plan.parameters.world_size or 1,
            }
        assert sampling is not None
        return {
            **common,
            "epoch": epoch,
            "position": position,
            "samples": sampling.samples,
            "seed": seed,
            "sampler": sampling.about.name,
            "order": sampling.about.declared,
            "data": plan.data,
            "weights": sampling.log.as_text(epoch),
        }
