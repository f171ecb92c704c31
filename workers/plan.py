"""From parameters to everything a run needs: source, order, batches, recipe. Opens and checks; starts nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .batch_plan import BatchPlan, rand_skip_of
from .dispatch import batches_per_unit
from .epoch_order import EpochOrder, make_order
from .mixing import MixedOrder
from .parameters import Parameters, Transform
from .recipe import Hooks, Recipe
from .ring import SlotLayout
from .sources import Source, open_source
from .sources.mixed import MixedSource, open_mix
from .specs import allocate_rows
from .transform import CropMirror
from .units import UnitPlan

_TRIAL_ROWS = 32
_TRIAL_S = 0.02
"""Setup makes a few rows to see how long they take, but not where that would be felt."""

_FEWEST_SLOTS = 3
"""One that the trainer reads, one that lies ready, one that is being filled."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What does not change while the pipeline runs."""

    parameters: Parameters
    recipe: Recipe
    units: UnitPlan
    seconds_per_row: float

    @property
    def batches(self) -> BatchPlan:
        return self.units.plan

    @property
    def slots(self) -> int:
        """Slots in the ring: those to prefetch, and the one that the trainer holds."""
        prefetched = -(-self.parameters.prefetch_batches // self.units.batches_per_unit)
        return max(_FEWEST_SLOTS, prefetched + 1)

    @property
    def layout(self) -> SlotLayout:
        return SlotLayout(self.recipe.specs, self.units.rows)

    @property
    def max_loaders(self) -> int:
        wanted = self.parameters.num_loaders
        return usable_cores() if wanted == "auto" else wanted

    def starting_at(self, position: int) -> Plan:
        """The same, beginning with the batch at the global position `position`."""
        batches = _batch_plan(self.parameters, self.recipe.order.samples, position)
        return replace(self, units=UnitPlan(batches, self.units.batches_per_unit))


def usable_cores() -> int:
    """Cores that this process may use: its affinity mask counts, not what the machine has."""
    return len(os.sched_getaffinity(0))


def make_plan(parameters: Parameters, hooks: Hooks, base_dir: Path, train: bool, source: Source | None) -> Plan:
    """Open the source, make one sample, lay out the batches; raises ParameterError, SourceError, what decode raises."""
    source = source or _open_source(parameters, base_dir)
    order = _order(parameters, source)
    if parameters.cache is not None:
        from .sample_cache import CachedSource  # few runs have one

        source = CachedSource(source, base_dir / parameters.cache.path, parameters.cache.size_limit)
    batches = _batch_plan(parameters, order.samples, rand_skip_of(parameters.seed, parameters.rand_skip))
    recipe = Recipe(
        source,
        order,
        hooks,
        tops=parameters.tops,
        seed=parameters.seed,
        transform=_crop_mirror(parameters.transform, train),
        max_shapes=parameters.max_shapes,
        trial_index=int(order.indices(batches.start, 1)[0]),
    )
    seconds = _seconds_per_row(recipe, batches.start)
    source.close()
    batch_bytes = sum(spec.nbytes for spec in recipe.specs.values()) * batches.batch_size
    units = UnitPlan(batches, batches_per_unit(batch_bytes, batches.batch_size, seconds))
    return Plan(parameters, recipe, units, seconds)


def _open_source(parameters: Parameters, base_dir: Path) -> Source:
    if parameters.source is not None:
        return open_source(parameters.source, tops=parameters.tops, base_dir=base_dir)
    return open_mix(parameters.mix, tops=parameters.tops, base_dir=base_dir)


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
    """Time to make a row when everything is warm: the first run opens files; rows in a run share a call's cost.

    The least of several runs, since other processes can only add to it.
    """
    seconds = _seconds_for(recipe, position, 1)
    for rows in (1, *[_TRIAL_ROWS] * 3):
        if seconds * rows < _TRIAL_S:
            seconds = min(seconds, _seconds_for(recipe, position, rows) / rows)
    return seconds


def _seconds_for(recipe: Recipe, position: int, rows: int) -> float:
    indices = recipe.order.indices(position, rows)
    epochs = np.full(rows, position // recipe.order.samples, np.int64)
    out = allocate_rows(recipe.specs, rows)
    begun = time.perf_counter()
    recipe.make(indices, epochs, out, lambda _: None)
    return time.perf_counter() - begun
