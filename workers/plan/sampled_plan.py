"""The plan of a run whose epochs a sampler draws: samples have indices, and an epoch's are known one epoch ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import msgspec

from ..base.errors import ParameterError, SourceError
from ..base.parameters import without_source
from ..loading.drawing import SamplerRunner
from ..loading.worker import IndexedWorker, Workplace
from ..order.batches import Batches
from ..order.drawn_order import DrawnOrder
from ..order.draws import MOST_SAMPLES
from ..order.rounds import Rounds
from ..order.samplers import AboutSampler, Sampler
from ..order.weights_log import NewWeights, WeightsLog, check_weights
from ..transport.packed import Packed
from ..transport.shared_file import SharedFile
from .batch import Batch
from .plan import IndexedPlan, Plan, Progress, State, check_state
from .schedule import OrderedSchedule

_STATE_VERSION = 3

_PARTS_OF_EPOCH = 16
"""A slot holds at most 1/16 of an epoch if weights may be set. By default there are five slots."""


@dataclass(frozen=True, kw_only=True)
class SampledPlan(Plan):
    """A plan with a sampler. `epoch`, `position`: the start of the first round, in samples or the sampler's batches.

    `source_samples`: the number of samples to draw from. `most_in_slot`: the batches per slot if they took no time. The
    first epoch of new weights is computed from it, since it must not depend on measured times.
    """

    sampler: Packed[Sampler]
    about: AboutSampler
    source_samples: int
    most_in_slot: int = 1
    epoch: int = 0
    position: int = 0
    log: WeightsLog = field(default_factory=WeightsLog)

    ends = "all batches have been delivered"

    @classmethod
    def of(cls, plan: IndexedPlan, sampler: Sampler, samples: int) -> SampledPlan:
        """Make the plan that reads the source of `plan` in the sampler's order; raises ParameterError."""
        if samples > MOST_SAMPLES:
            raise ParameterError(
                f"{sampler.about.name} chooses among at most 2**48 samples, and the source has {samples}"
            )
        shared = {name: getattr(plan, name) for name in (each.name for each in fields(Plan))}
        made = cls(
            **shared,
            # Only the loader that draws imports its modules: often that is torch, which the others do not need.
            sampler=Packed(sampler, parts={sampler.about.name: sampler}),
            about=sampler.about,
            source_samples=samples,
        )
        batches = made.batches  # checks what can be checked before the first epoch is drawn
        if batches is None or not sampler.about.takes_weights:
            return made
        # New weights apply after all batches that may be planned. With tiny batches in full slots that would be epochs.
        part = max(1, batches.batches_per_epoch // _PARTS_OF_EPOCH)
        most = min(plan.batches_in_slot(0), part)
        return replace(made, batches_per_slot=min(made.batches_per_slot, most), most_in_slot=most)

    @property
    def samples(self) -> int:
        if self.about.length is None or self.about.gives_batches:
            raise SourceError(f"{self.about.name} says how many samples an epoch has when it has drawn it")
        return self.about.length

    @cached_property
    def batches(self) -> Batches | None:
        """The batches of this rank, counted in items; None if the length of an epoch is unknown."""
        items, given = self.about.length, self.parameters
        if items is None:
            return None
        each = 1 if self.about.gives_batches else given.batch_size
        start = self.epoch * items + self.position
        return Batches(items, msgspec.structs.replace(given, batch_size=each), start)

    # ---- for the trainer

    def begin(self) -> SampledProgress:
        return SampledProgress(self, 0, self.epoch, self.position)

    def resumed(self, state: Mapping[str, object]) -> SampledPlan:
        fixed = "samples", "seed", "sampler", "order"
        checked = check_state(state, self.begin().state(), fixed, self.parameters.changed_data)
        log = WeightsLog.from_text(str(checked["weights"]), self.source_samples)
        if log.changes and not self.about.takes_weights:
            raise ParameterError(f"the state has weights, and {self.about.name} takes none")
        epoch, position, number = (int(checked[name]) for name in ("epoch", "position", "batches"))
        made = replace(self, epoch=epoch, position=position, first_number=number, log=log)
        if made.batches is None:
            return made
        # With `drop` the rest of the epoch may be less than a round, if batch size or ranks have changed.
        epoch, position = divmod(made.batches.round_start(0), made.batches.samples)
        return replace(made, epoch=epoch, position=position)

    def reweigh(self, weights: object, progress: Progress, *, started: bool) -> NewWeights:
        if not self.about.takes_weights or not isinstance(progress, SampledProgress):
            raise ParameterError(
                f"set_weights: this pipeline has {self.about.name}, which has no weights: declare "
                "sampler: {weights: FILE, draws: n}, or {draws: n} to begin with equal ones"
            )
        checked = check_weights(weights, self.source_samples, "set_weights")
        planned = self.parameters.device_prefetch + self.most_ahead(self.most_in_slot) if started else 0
        change = self.log.add(self._epoch_behind(progress, planned), checked)
        return NewWeights(change, checked, self.log.forget(progress.epoch))

    def _epoch_behind(self, progress: SampledProgress, batches: int) -> int:
        """Return the first epoch of which no batch is among those taken, nor among the next `batches` ones."""
        samples = self.samples
        rest = Batches(samples, self.parameters, progress.epoch * samples + progress.position)
        return -(-rest.round_start(batches) // samples)

    # ---- for the others

    @property
    def _order(self) -> DrawnOrder:
        return DrawnOrder(without_source(self.parameters), self.about, list(self.log.changes))

    def schedule(self) -> OrderedSchedule:
        order, most = self._order, self.batches_per_slot
        return OrderedSchedule(order, Rounds(order, order.parameters, self.epoch, self.position), most, most)

    def worker(self, place: Workplace) -> IndexedWorker:
        runner = SamplerRunner(self.sampler, self.about, self.source_samples, self.log, self.parameters, place)
        order = self._order
        order.file = SharedFile(place.drawn)
        return IndexedWorker(self.decoded.value, order, self.parameters, place, runner.answer)


@dataclass(frozen=True, slots=True)
class SampledProgress:
    """The position of the next round."""

    plan: SampledPlan
    taken: int
    epoch: int
    position: int

    @property
    def number(self) -> int:
        return self.plan.first_number + self.taken

    def after(self, batch: Batch) -> SampledProgress:
        if batch.end is None:
            raise TypeError(f"batch {batch.number} of a sampler came without saying where the next one begins")
        return SampledProgress(self.plan, self.taken + 1, *batch.end)

    def state(self) -> State:
        return {
            "version": _STATE_VERSION,
            "batches": self.number,
            "epoch": self.epoch,
            "position": self.position,
            "samples": self.plan.source_samples,
            "seed": self.plan.parameters.seed,
            "sampler": self.plan.about.name,
            "order": self.plan.about.declared,
            "data": self.plan.data,
            "weights": self.plan.log.as_text(self.epoch),
        }
