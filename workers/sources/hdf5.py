"""HDF5 with one data set per top: one file or several, any layout, read into the rows of the batch slot."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..checks import check_options
from ..errors import ParameterError, SourceError
from ..specs import ArraySpec, IndexArray, NamedRows
from .base import Source
from .chunk_cache import RecentlyUsed
from .hdf5_dims import Arrangement, from_names, names_from_torch, plain
from .hdf5_layout import Part
from .hdf5_options import HDF5Options
from .hdf5_paths import list_hdf5_files
from .hdf5_readers import OpenPart

_DEFAULT_TOPS = ("data", "label")


class HDF5Source(Source):
    """The samples of one or several HDF5 files, concatenated; each top is the data set of that name.

    Raises ParameterError for a bad option, SourceError where a file or a data set is missing, damaged or does not fit
    the others.
    """

    kind = "hdf5"

    def __init__(self, *, tops: Sequence[str] | None = None, base_dir: Path = Path(), **options: object) -> None:
        """`options`: the fields of HDF5Options. `tops`: names of data sets, "data" and "label" where None."""
        # h5py costs a loader 0.1 s to import, and one that reads only by file offsets needs none of it.
        from .hdf5_examine import count_samples, examine_file, require_alike

        self.options = check_options(options, HDF5Options, "source hdf5")
        self.tops = tuple(tops or _DEFAULT_TOPS)
        paths = list_hdf5_files(self.options.path, base_dir, "source hdf5")
        self._parts = [examine_file(path, self.tops, self.options) for path in paths]
        self._arrangements = _arrange(self._parts[0], self.options)
        for part in self._parts[1:]:
            require_alike(self._parts[0], part, self._arrangements)
        counts = [count_samples(part, self._arrangements) for part in self._parts]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)
        self._samples = min(int(self._starts[-1]), self.options.limit or int(self._starts[-1]))
        if not self._samples:
            raise SourceError(f"source hdf5: no samples in {', '.join(map(repr, paths[:3]))}: the data sets are empty")
        self._specs = _specs(self._parts, self._arrangements)
        self._open = self._no_open_files()

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, tops: Sequence[str] | None, base_dir: Path) -> Self:
        return cls(tops=tops, base_dir=base_dir, **options)

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        require_in_range(indices, self._samples)
        if len(self._parts) == 1:
            self._opened(0).read(indices, np.arange(len(indices)), out)
            return
        for number, positions in self._by_part(indices):
            self._opened(number).read(indices[positions] - self._starts[number], positions, out)

    def where(self, index: int) -> str:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"{self._parts[number].path}:{self.tops[0]}[{index - int(self._starts[number])}]"

    def fingerprint(self) -> str:
        files = [(part.path, part.size, part.mtime_ns) for part in self._parts]
        text = repr((files, self.tops, self.options, sorted((name, str(spec)) for name, spec in self._specs.items())))
        return f"{self.kind}:{hashlib.sha256(text.encode()).hexdigest()}"

    def close(self) -> None:
        self._open.clear()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = self._no_open_files()

    def _no_open_files(self) -> RecentlyUsed[int, OpenPart]:
        return RecentlyUsed(self.options.open_files, discard=OpenPart.close)

    def _opened(self, number: int) -> OpenPart:
        part = self._open.get(number)
        if part is None:
            part = OpenPart(self._parts[number], self._arrangements, self.options)
            self._open.put(number, part)
        return part

    def _by_part(self, indices: IndexArray) -> Iterator[tuple[int, IndexArray]]:
        """The numbers of the files that `indices` lie in, each with the rows that come from it."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order])) + 1
        for positions in np.split(order, edges):
            yield int(numbers[positions[0]]), positions


def require_in_range(indices: IndexArray, samples: int) -> None:
    """Raises IndexError where an index is below 0 or not below `samples`."""
    # Seen as unsigned a negative index is huge: one pass finds both.
    if len(indices) and int(indices.view(np.uint64).max()) >= samples:
        bad = indices[(indices < 0) | (indices >= samples)]
        raise IndexError(f"sample index {int(bad[0])} is not in 0 … {samples - 1}")


def _arrange(part: Part, options: HDF5Options) -> dict[str, Arrangement]:
    ranks = {top: len(array.shape) for top, array in part.arrays.items()}
    named = _named_dims(next(iter(ranks)), options)
    for top in named:
        if top not in ranks:
            raise ParameterError(f"source hdf5: parameter 'dims' names {top!r}, which is no top: {', '.join(ranks)}")
    return {
        top: from_names(named[top], rank, f"source hdf5: {part.arrays[top]}") if top in named else plain(rank)
        for top, rank in ranks.items()
    }


def _named_dims(first_top: str, options: HDF5Options) -> dict[str, tuple[str, ...]]:
    places = {name: getattr(options, name) for name in ("num_dim", "h_dim", "w_dim", "cha_dim")}
    from_places = names_from_torch(places, "source hdf5")
    if from_places and options.dims:
        raise ParameterError("source hdf5: 'dims' and 'num_dim, h_dim, w_dim, cha_dim' say the same: give one of them")
    dims = from_places or options.dims or {}
    return dims if isinstance(dims, dict) else {first_top: dims}


def _specs(parts: Sequence[Part], arrangements: Mapping[str, Arrangement]) -> dict[str, ArraySpec]:
    specs = {}
    for top, array in parts[0].arrays.items():
        dtype = max((part.arrays[top].dtype.newbyteorder("=") for part in parts), key=lambda dtype: dtype.itemsize)
        longest = [part.arrays[top].longest for part in parts]
        specs[top] = (
            ArraySpec(arrangements[top].delivered(array.shape), dtype)
            if array.longest is None
            else ArraySpec((max(length or 0 for length in longest),), dtype, varies=True)
        )
    return specs
