"""Mean, scale and type, applied by the loaders where a slot itself is handed over: the trainer then copies nothing.

    source.read → decode → crop → rows as stored → conversion → the slot's rows, float32

The rows of a task are made in memory of the loader's own and converted from there. Stored rows that a source takes from
the map of its file are converted on the way out of it: each value is read once and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..api import ArraySpec, ConvertedRows, NamedRows, Rows, allocate_rows
from .conversion import Conversion
from .transform import CROPS

_Made = TypeVar("_Made")


def converted_specs(specs: Mapping[str, ArraySpec], conversions: Mapping[str, Conversion]) -> Mapping[str, ArraySpec]:
    """Return a slot's `specs` where `conversions` have been applied; nobody needs the notes of crops then."""
    if not conversions:
        return specs
    into = np.dtype(np.float32)
    return {
        name: replace(spec, dtype=into) if name in conversions else spec
        for name, spec in specs.items()
        if name != CROPS
    }


class RowConverter:
    """Converts the rows of tops, whose types float32 holds whole. `specs`: those of a slot without `conversions`.

    `gathered`: the tops whose source takes ConvertedRows.
    """

    def __init__(
        self, conversions: Mapping[str, Conversion], specs: Mapping[str, ArraySpec], gathered: Collection[str]
    ) -> None:
        self._conversions, self._gathered = conversions, gathered
        self._specs = {name: specs[name] for name in (*conversions, CROPS) if name in specs}
        self._scratch: dict[str, Rows] = {}

    def fill(self, out: NamedRows, rows: int, make: Callable[[NamedRows], _Made]) -> _Made:
        """Have `make` make `rows` rows, and convert them into `out`; returns what it returns."""
        if len(next(iter(self._scratch.values()), ())) < rows:
            self._scratch = allocate_rows(self._specs, rows)
        slot: dict[str, Any] = dict(out)
        into = {**slot, **{name: scratch[:rows] for name, scratch in self._scratch.items()}}
        left = dict(self._conversions)
        for name in self._gathered:
            if name in left and (gather := left[name].gather_into(slot[name], self._specs[name].dtype)):
                into[name] = ConvertedRows(slot[name], gather)
                del left[name]
        made = make(into)
        for name, conversion in left.items():
            conversion.put(into[name], slot[name], conversion.corners(into.get(CROPS)))
        return made
