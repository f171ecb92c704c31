"""What sources of stored arrays have in common: all but the finding and checking of the arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ...base.errors import SourceError
from ...base.source import Source
from ...base.specs import ArraySpec, IndexArray, NamedRows
from .columns import Access, Column, Columns
from .layout import Chunked, StoredArray, ThroughLibrary
from .runs import require_in_range


class StoredSource(Source):
    """Samples of stored arrays, one column of them for each top; all columns have the same length.

    `limit`: only the first so many samples.
    """

    def __init__(self, columns: Mapping[str, Column], access: Access, *, limit: int | None) -> None:
        lengths = {top: len(column) for top, column in columns.items()}
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{top} has {length}" for top, length in lengths.items())
            raise SourceError(f"source {self.kind}: the tops differ in length: {said}; each needs one entry per sample")
        self.modules = _modules(columns)
        self._columns = columns
        self._access = access
        self._samples = min(limit or len(self._first), len(self._first))
        self._specs = {top: column.spec for top, column in columns.items()}
        self._require_content()
        self._reading = Columns(columns, access)

    @property
    def _first(self) -> Column:
        return next(iter(self._columns.values()))

    def _require_content(self) -> None:
        if not self._samples:
            raise SourceError(f"source {self.kind}: no samples: {self._first.arrays[0]} is empty")
        for top, spec in self._specs.items():
            if not spec.varies and not spec.nbytes:
                raise SourceError(f"source {self.kind}: samples of {top!r} are empty: their shape is {spec.shape}")

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        if len(indices):
            require_in_range(indices, self._samples)
            self._reading.read(indices, out)

    def will_need(self, indices: IndexArray) -> None:
        if len(indices):
            require_in_range(indices, self._samples)
            self._reading.will_need(indices)

    def where(self, index: int) -> str:
        array, number = self._first.locate(index)
        return f"{array}[{number}]"

    @property
    def chunk_samples(self) -> int | None:
        """Samples in a chunk of the largest top, where a chunk is decoded as a whole."""
        first_arrays = [column.arrays[0] for column in self._columns.values()]
        return max(first_arrays, key=lambda array: array.sample_bytes).chunk_samples

    def fingerprint(self) -> str:
        arrays = [array for column in self._columns.values() for array in column.arrays]
        stored = [(array.file, array.others, array.name, array.arrangement) for array in arrays]
        specs = [(name, str(spec)) for name, spec in self._specs.items()]
        text = repr((stored, specs, self._samples))
        return f"{self.kind}:{hashlib.sha256(text.encode()).hexdigest()}"

    def close(self) -> None:
        self._reading.close()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_reading"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reading = Columns(self._columns, self._access)


def _modules(columns: Mapping[str, Column]) -> tuple[str, ...]:
    arrays = [array for column in columns.values() for array in column.arrays]
    needed = {name for array in arrays for name in _needed_by(array)}
    return tuple(sorted(needed))


def _needed_by(array: StoredArray) -> tuple[str, ...]:
    if isinstance(array.layout, ThroughLibrary):
        return ("h5py", "hdf5plugin") if array.layout.plugin else ("h5py",)
    return (f"{__package__}.chunked_rows",) if isinstance(array.layout, Chunked) else ()
