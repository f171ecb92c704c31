"""An indexed source seen through the hooks: samples become rows of the tops. Run on trial in setup, and by each loader.

    source.read → raw arrays → decode hook (if any) → crop and mirror (if any) → the slot's rows

Without hook and crop, the source reads straight into the slot. Else raw samples go through a small scratch memory,
allocated once, a block of rows at a time; what a crop needs of samples that the source can lend, such as those of the
decoded cache, is copied straight from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..base.hooks import Sample
from ..base.source import Source
from ..base.specs import AnyArray, IndexArray, NamedRows, RaggedRows, Rows, allocate_rows
from .row_maker import RowMaker

_SCRATCH_BYTES = 1 << 20
"""Raw samples are read in blocks of about this size: large enough for a batched read to pay, small enough for the
cache to still hold the block when it is decoded."""

_MOST_SCRATCH_ROWS = 64


class DecodedSource:
    """`source`'s samples as `rows` makes them."""

    def __init__(self, source: Source, rows: RowMaker) -> None:
        self.source = source
        self.rows = rows
        self._scratch: dict[str, Rows] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_scratch": {}}

    def make(self, indices: IndexArray, epochs: IndexArray, out: NamedRows, progress: Callable[[int], None]) -> None:
        """Make sample indices[i] of epochs[i] into row i of every top of `out`; raises whatever a sample raises.

        `progress` is told the index of the sample that decode gets next.
        """
        if self.rows.changes_nothing:
            self.source.read(indices, out)
            return
        for row, arrays in enumerate(self._raw_samples(indices)):
            sample = Sample(arrays, int(indices[row]), int(epochs[row]))
            progress(sample.index)
            self.rows.put(sample, out, row)

    def _raw_samples(self, indices: IndexArray) -> Iterator[Mapping[str, AnyArray]]:
        """The raw samples in turn, each valid until the next one."""
        # A decode hook may write to what it gets, so it gets a copy in any case.
        if self.rows.hooks.decode is None and (lent := self.source.lend(indices)) is not None:
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


def read_one(source: Source, index: int) -> Sample:
    """Sample `index` as stored, for epoch 0, in memory of its own."""
    raw = allocate_rows(source.specs, 1)
    source.read(np.array([index], np.int64), raw)
    return Sample(_row_of(raw, 0), index, 0)


def _row_of(raw: Mapping[str, Rows], row: int) -> dict[str, AnyArray]:
    return {name: rows.get(row) if isinstance(rows, RaggedRows) else rows[row] for name, rows in raw.items()}
