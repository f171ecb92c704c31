"""Several sources as one, for `concat` and `mix`: the samples of the first, then those of the second, and so on.

For a mix the order decides how often a sample is drawn from each (mixed_order.py); here an index is only looked up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ..workers.api import (
    AnySource,
    ArraySpec,
    IndexArray,
    NamedRows,
    Outlier,
    Source,
    Tops,
    check_options,
    hdf5_if_path,
)
from ..workers.base import ParameterError, SourceError
from . import open_source
from .files import locate_part, split_by_part


class _Weight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class SeveralSources(Source):
    """A source that is made of `sources`, of any kinds, also the user's own: what all such have in common."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self.by_part: Sequence[Source | None] = self.sources
        """For each part of the declaration its source; None for one that is not read."""
        self.modules = tuple(dict.fromkeys(name for source in sources for name in source.modules))
        self.descriptors = tuple(number for source in sources for number in source.descriptors)
        self.rows_at_once = max(source.rows_at_once for source in sources)

    def without_close(self) -> list[AnySource]:
        return [each for source in self.sources for each in source.without_close()]

    @property
    def stores_rows(self) -> bool:
        return all(source.stores_rows for source in self.sources)

    @property
    def in_memory(self) -> bool:
        return all(source.in_memory for source in self.sources)

    @property
    def runs_user_code(self) -> bool:
        return any(source.runs_user_code for source in self.sources)

    def check_samples(self) -> None:
        for source in self.sources:
            source.check_samples()

    def _content(self) -> dict[str, str]:
        parts = [source.identity() for source in self.sources]
        names = [name for name in dict.fromkeys(chain(*parts)) if name not in ("source", "arrays")]
        return {name: "; ".join(part.get(name, "none") for part in parts) for name in names}

    def fingerprint(self) -> str:
        return f"{self.kind}:" + "|".join(source.fingerprint() for source in self.sources)

    def close(self) -> None:
        for source in self.sources:
            source.close()


class ConcatSource(SeveralSources):
    """`sources` must have the same names, shapes and types; raises SourceError if they do not."""

    kind = "concat"

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__(sources)
        self.sizes = tuple(len(source) for source in sources)
        self._starts = np.cumsum([0, *self.sizes])
        first = sources[0]
        for other in sources[1:]:
            if dict(other.specs) != dict(first.specs):
                raise SourceError(
                    f"{self.kind}: all sources need the same arrays; {first.where(0)} has {_in_words(first)}, "
                    f"{other.where(0)} has {_in_words(other)}"
                )

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self.sources[0].specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for number, inside, positions in split_by_part(self._starts, indices):
            if len(positions) == len(indices):
                self.sources[number].read(inside, out)
            else:
                self.sources[number].read_at(inside, positions, out)

    @property
    def gathered(self) -> Collection[str]:
        return set.intersection(*(set(source.gathered) for source in self.sources))

    @property
    def outliers(self) -> Mapping[str, Outlier]:
        found: dict[str, list[Outlier]] = {}
        for start, source in zip(self._starts.tolist(), self.sources, strict=False):
            for top, outlier in source.outliers.items():
                found.setdefault(top, []).append(replace(outlier, index=start + outlier.index))
        return {top: max(each, key=lambda outlier: outlier.items) for top, each in found.items()}

    def where(self, index: int) -> str:
        number, inside = locate_part(self._starts, index)
        return self.sources[number].where(inside)

    def will_need(self, indices: IndexArray) -> None:
        for number, inside, _ in split_by_part(self._starts, indices):
            self.sources[number].will_need(inside)

    @property
    def chunk_samples(self) -> int | None:
        """The samples in a chunk, if all sources have as many."""
        sizes = {source.chunk_samples for source in self.sources}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def chunks_are_cheap(self) -> bool:
        return all(source.chunks_are_cheap for source in self.sources)


class MixedSource(ConcatSource):
    """The same for `mix`: each source has a weight."""

    kind = "mix"

    def __init__(self, sources: Sequence[Source], weights: Sequence[float]) -> None:
        super().__init__(sources)
        self.weights = tuple(weights)

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}:{self.weights}"


def _in_words(source: Source) -> str:
    return ", ".join(f"{name} {spec}" for name, spec in source.specs.items())


def open_concat(parts: object, *, tops: Tops, base_dir: Path) -> ConcatSource:
    """Open what `source: {concat: [{hdf5: {…}}, {npy: {…}}, …]}` declares; raises ParameterError, SourceError."""
    if not isinstance(parts, list | tuple) or not parts:
        raise ParameterError(f"source concat: expected a list of sources, got {parts!r}")
    return ConcatSource([open_part(f"concat[{number}]", part, tops, base_dir) for number, part in enumerate(parts)])


def open_part(what: str, spec: object, tops: Tops, base_dir: Path) -> Source:
    try:
        return open_source(hdf5_if_path(spec), tops=tops, base_dir=base_dir)
    except (ParameterError, SourceError) as error:
        raise type(error)(f"{what}: {error}") from error


def open_mix(parts: Sequence[Mapping[str, Any]], *, tops: Tops, base_dir: Path) -> MixedSource:
    """Open what `mix: [{hdf5: {…}, weight: 0.7}, …]` declares: sources as anywhere, each with a weight, else 1.

    Raises ParameterError, SourceError.
    """
    sources, weights = [], []
    for number, part in enumerate(parts):
        weight = {key: value for key, value in part.items() if key == "weight"}
        weights.append(check_options(weight, _Weight, f"mix[{number}]").weight)
        spec = {kind: options for kind, options in part.items() if kind != "weight"}
        sources.append(open_part(f"mix[{number}]", spec, tops, base_dir))
    return MixedSource(sources, weights)
