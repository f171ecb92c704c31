"""From parameters to everything a run needs: source, order, batches, recipe. Opens and checks; starts nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..base.hooks import Hooks
from ..base.parameters import Parameters, Transform
from ..base.specs import Rows, allocate_rows
from ..loading.recipe import Recipe
from ..loading.transform import CropMirror
from ..order.batches import BatchPlan, rand_skip_of
from ..order.epoch_order import EpochOrder
from ..order.make_order import make_order
from ..order.mixed_order import MixedOrder
from ..order.units import UnitPlan
from ..processes.dispatch import batches_per_unit
from ..processes.supply import IndexedSupply
from ..sources import Source, open_source
from ..sources.mixed import MixedSource, open_mix
from ..sources.stream import StreamSource
from ..transport.messages import Announce
from .batch import Batch
from .plan import RunPlan, State, check_state
from .stream_plan import make_stream_plan

_TRIAL_ROWS = 32
_TRIAL_S = 0.02
_AGAIN_S = 0.2
_TRIAL_BYTES = 1 << 20
"""Setup makes a few rows to see how long they take, but not where that would be felt in time or memory."""

_STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class IndexedPlan(RunPlan):
    """The plan of a pipeline whose samples have indices: all its batches are known beforehand."""

    parameters: Parameters
    recipe: Recipe
    units: UnitPlan
    seconds_per_row: float
    first_number: int = 0

    @property
    def batches_per_unit(self) -> int:
        return self.units.batches_per_unit

    @property
    def samples(self) -> int:
        return self.recipe.order.samples

    @property
    def batches_per_epoch(self) -> int:
        return self.units.plan.batches_per_epoch

    @property
    def total_batches(self) -> int | None:
        return self.units.plan.total

    def supply(self) -> IndexedSupply:
        return IndexedSupply(self.units, self.recipe.order)

    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        size, order, replaced = self.units.plan.batch_size, self.recipe.order, dict(announce.replaced)
        batches = []
        for place, k in enumerate(self.units.batches(announce.unit)):
            where, first = self.units.plan.batch(k), place * size
            if 0 <= announce.rows < first + size:
                break
            epoch, position = divmod(where.start, order.samples)
            tops = {name: top[first : first + where.rows] for name, top in rows.items()}
            mine = {row - first: index for row, index in replaced.items() if first <= row < first + where.rows}
            number = self.first_number + k
            batches.append(Batch(number, epoch, position, where.rows, tops, announce.unit, order, mine))
        return batches

    def begin(self) -> IndexedProgress:
        return IndexedProgress(self)

    def resumed(self, state: Mapping[str, object]) -> IndexedPlan:
        checked = check_state(state, self.begin().state(), ("samples", "seed", "shuffle"))
        batches = _batch_plan(self.parameters, self.samples, int(checked["position"]))
        units = UnitPlan(batches, self.batches_per_unit)
        return replace(self, units=units, first_number=int(checked["batches"]))


@dataclass(slots=True)  # a frozen one takes twice as long to make, once a batch
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
            "position": self.plan.units.plan.round_start(self.taken),
            "samples": self.plan.samples,
            "seed": self.plan.parameters.seed,
            "shuffle": str(self.plan.parameters.shuffle),
            "world_size": self.plan.parameters.world_size or 1,
        }


def make_plan(
    parameters: Parameters, hooks: Hooks, base_dir: Path, train: bool, source: Source | StreamSource | None
) -> RunPlan:
    """Open the source, make one sample, lay out the batches; raises ParameterError, SourceError, what decode raises."""
    source = source or _open_source(parameters, base_dir)
    transform = _crop_mirror(parameters.transform, train)
    if isinstance(source, StreamSource):
        return make_stream_plan(parameters, hooks, source, transform)
    order = _order(parameters, source)
    plain, cached_samples = source, 0
    if parameters.cache is not None:
        from ..sources.cache.source import CachedSource  # few runs have one

        source = CachedSource(source, base_dir / parameters.cache.path, parameters.cache.size_limit)
        cached_samples = source.cached_samples
    batches = _batch_plan(parameters, order.samples, rand_skip_of(parameters.seed, parameters.rand_skip))
    recipe = Recipe(
        source,
        order,
        hooks,
        tops=parameters.tops,
        seed=parameters.seed,
        transform=transform,
        max_shapes=parameters.max_shapes,
        trial_index=int(order.indices(batches.start, 1)[0]),
    )
    if plain is not source and cached_samples < len(plain):
        recipe.source = plain  # the trial sample has just been cached: it does not show how long the others will take
    seconds = _seconds_per_row(recipe, batches.start)
    recipe.source = source
    source.close()
    batch_bytes = sum(spec.nbytes for spec in recipe.specs.values()) * batches.batch_size
    units = UnitPlan(batches, batches_per_unit(batch_bytes, batches.batch_size, seconds))
    return IndexedPlan(parameters, recipe, units, seconds)


def _open_source(parameters: Parameters, base_dir: Path) -> Source | StreamSource:
    declared = parameters.source
    if declared is None:
        return open_mix(parameters.mix, tops=parameters.tops, base_dir=base_dir)
    if set(declared) == {StreamSource.kind}:
        return StreamSource.from_options(declared[StreamSource.kind], tops=parameters.tops, base_dir=base_dir)
    return open_source(declared, tops=parameters.tops, base_dir=base_dir)


def _order(parameters: Parameters, source: Source) -> EpochOrder:
    if isinstance(source, MixedSource):
        return MixedOrder(
            source.sizes,
            source.weights,
            shuffle=parameters.shuffle,
            seed=parameters.seed,
            chunk_samples=[part.chunk_samples for part in source.sources],
            window_chunks=parameters.shuffle_window,
        )
    return make_order(
        len(source),
        shuffle=parameters.shuffle,
        seed=parameters.seed,
        chunk_samples=source.chunk_samples,
        window_chunks=parameters.shuffle_window,
    )


def _batch_plan(parameters: Parameters, samples: int, start: int) -> BatchPlan:
    return BatchPlan(
        samples,
        parameters.batch_size,
        parameters.last_batch,
        parameters.epochs,
        parameters.rank or 0,
        parameters.world_size or 1,
        start,
    )


def _crop_mirror(transform: Transform, train: bool) -> CropMirror | None:
    crop_mirror = CropMirror(transform, train=train)
    return crop_mirror if crop_mirror.active else None


def _seconds_per_row(recipe: Recipe, position: int) -> float:
    """Time to make a row when everything is warm: the first run opens files and waits for the disk, so it is repeated
    even where it took long; rows in a run share a call's cost.

    The least of several runs, since other processes can only add to it.
    """
    seconds = _seconds_for(recipe, position, 1)
    row_bytes = sum(spec.nbytes for spec in recipe.specs.values())
    run = max(1, min(_TRIAL_ROWS, _TRIAL_BYTES // max(1, row_bytes)))
    for rows, limit_s in ((1, _AGAIN_S), *[(run, _TRIAL_S)] * (3 if recipe.is_batched else 0)):
        if seconds * rows < limit_s:
            seconds = min(seconds, _seconds_for(recipe, position, rows) / rows)
    return seconds


def _seconds_for(recipe: Recipe, position: int, rows: int) -> float:
    # The trial sample again and again: if another one is bad it is the run's to say so, with all that it knows.
    indices = np.repeat(recipe.order.indices(position, 1), rows)
    epochs = np.full(rows, position // recipe.order.samples, np.int64)
    out = allocate_rows(recipe.slot_specs, rows)
    begun = time.perf_counter()
    recipe.make(indices, epochs, out, lambda _: None)
    return time.perf_counter() - begun
