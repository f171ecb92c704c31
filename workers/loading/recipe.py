"""The recipe: how rows of samples become rows of the tops. The same object runs on trial in setup and in each loader.

    source.read → raw arrays → decode hook (if any) → crop and mirror (if any) → the slot's rows

Where there is neither hook nor crop, the source reads straight into the slot. Else raw samples go through a small
scratch memory, allocated once, a block of rows at a time; what a crop needs of samples that the source can lend, as
from the decoded cache, is copied straight from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..base.hooks import DecodeHook, Hooks, PostprocessHook, Sample
from ..base.source import Source
from ..base.specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows, Rows, allocate_rows
from ..order.epoch_order import EpochOrder
from .row_maker import RowMaker
from .transform import CropMirror

__all__ = ["DecodeHook", "Hooks", "PostprocessHook", "Progress", "Recipe", "Sample"]

_SCRATCH_BYTES = 1 << 20
"""Raw samples are read in blocks of about this size: large enough for a batched read to pay, small enough for the
cache to still hold the block when it is decoded."""

_MOST_SCRATCH_ROWS = 64

Progress = Callable[[int], None]
"""Told the index of the sample that decode gets next."""


class Recipe:
    """`specs`: what the tops' rows are, by name and in order; learnt by making one sample."""

    def __init__(
        self,
        source: Source,
        order: EpochOrder,
        hooks: Hooks,
        *,
        tops: tuple[str, ...] | None,
        seed: int,
        transform: CropMirror | None,
        max_shapes: Mapping[str, tuple[int, ...]],
        trial_index: int,
    ) -> None:
        self.source = source
        self.order = order
        self.hooks = hooks
        self._scratch: dict[str, Rows] = {}
        self._rows = RowMaker(
            hooks,
            source.specs,
            lambda: self._read_one(trial_index),
            tops=tops,
            seed=seed,
            transform=transform,
            max_shapes=max_shapes,
        )

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._rows.specs

    @property
    def slot_specs(self) -> Mapping[str, ArraySpec]:
        """Those, and what a slot has beside them."""
        return self._rows.slot_specs

    @property
    def is_batched(self) -> bool:
        """Whether rows are made together, by the source alone, so that many take less time than one by one."""
        return self._rows.changes_nothing

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_scratch": {}}

    def make(self, indices: IndexArray, epochs: IndexArray, out: NamedRows, progress: Progress) -> None:
        """Make sample indices[i] of epochs[i] into row i of every top of `out`; raises whatever a sample raises."""
        if self._rows.changes_nothing:
            self.source.read(indices, out)
            return
        for row, arrays in enumerate(self._raw_samples(indices)):
            sample = Sample(arrays, int(indices[row]), int(epochs[row]))
            progress(sample.index)
            self._rows.put(sample, out, row)

    def _raw_samples(self, indices: IndexArray) -> Iterator[Mapping[str, AnyArray]]:
        """The raw samples in turn, each valid until the next one."""
        # A decode hook may write to what it gets, so it gets a copy in any case.
        if self.hooks.decode is None and (lent := self.source.lend(indices)) is not None:
            yield from lent
            return
        scratch = self._raw_rows()
        block = len(next(iter(scratch.values())))
        for first in range(0, len(indices), block):
            some = indices[first : first + block]
            raw = {name: rows[: len(some)] for name, rows in scratch.items()}
            self.source.read(some, raw)
            yield from (_row_of(raw, row) for row in range(len(some)))

    def _raw_rows(self) -> dict[str, Rows]:
        if not self._scratch:
            sample_bytes = max(1, sum(spec.nbytes for spec in self.source.specs.values()))
            self._scratch = allocate_rows(
                self.source.specs, min(max(1, _SCRATCH_BYTES // sample_bytes), _MOST_SCRATCH_ROWS)
            )
        return self._scratch

    def _read_one(self, index: int) -> Sample:
        raw = allocate_rows(self.source.specs, 1)
        self.source.read(np.array([index], np.int64), raw)
        return Sample(_row_of(raw, 0), index, 0)


def _row_of(raw: Mapping[str, Rows], row: int) -> dict[str, AnyArray]:
    return {name: rows.get(row) if isinstance(rows, RaggedRows) else rows[row] for name, rows in raw.items()}
