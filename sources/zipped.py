"""Several sources side by side, for `zip`: sample i has the arrays of sample i of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ..workers.api import (
    AnyArray,
    ArraySpec,
    IndexArray,
    NamedRows,
    Needs,
    Outlier,
    Source,
    Tops,
    allocate_rows,
    check_options,
    chosen,
)
from ..workers.base import ParameterError, SourceError
from .mixed import SeveralSources, open_part


class _Beside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options beside a part: its tops, or for each top its name there."""

    tops: str | tuple[str, ...] | dict[str, str]

    @property
    def by_top(self) -> dict[str, str]:
        if isinstance(self.tops, dict):
            return self.tops
        return {name: name for name in ([self.tops] if isinstance(self.tops, str) else self.tops)}


class ZipSource(SeveralSources):
    """`sources` must have the same length, and `names`, the top that each name of theirs becomes, must all differ.
    `first`: the tops that come first.

    Raises SourceError for other lengths, ParameterError for a name that two have.
    """

    kind = "zip"

    def __init__(
        self, sources: Sequence[Source], names: Sequence[Mapping[str, str]], first: Sequence[str] = ()
    ) -> None:
        super().__init__(sources)
        self._names = tuple(dict(each) for each in names)
        for other in self.sources[1:]:
            if len(other) != len(self):
                raise SourceError(
                    f"source zip: all sources need the same number of samples; {self.sources[0].where(0)} is the first "
                    f"of {len(self)}, {other.where(0)} of {len(other)}"
                )
        specs: dict[str, ArraySpec] = {}
        for source, tops in zip(self.sources, self._names, strict=True):
            for name, spec in source.specs.items():
                if (top := tops[name]) in specs:
                    raise ParameterError(
                        f"source zip: two sources have {top!r}, the later one is {source.where(0)}: give one another "
                        f"name, by tops beside it, such as {{{source.kind}: …, tops: {{{top}2: {name}}}}}"
                    )
                specs[top] = spec
        self._specs = {top: specs[top] for top in dict.fromkeys((*first, *specs))}
        self._largest = max(self.sources, key=lambda source: max(spec.nbytes for spec in source.specs.values()))

    def __len__(self) -> int:
        return len(self.sources[0])

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def _parts(self) -> Iterator[tuple[Source, dict[str, str]]]:
        return zip(self.sources, self._names, strict=True)

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for source, rows in self._rows(out):
            source.read(indices, rows)

    def read_at(self, indices: IndexArray, positions: IndexArray, out: NamedRows) -> None:
        for source, rows in self._rows(out):
            source.read_at(indices, positions, rows)

    def _rows(self, out: NamedRows) -> Iterator[tuple[Source, NamedRows]]:
        """The rows of `out` of each source, under its own names; tops that are made elsewhere are not in `out`."""
        for source, tops in self._parts():
            if rows := {name: out[top] for name, top in tops.items() if top in out}:
                yield source, rows

    def lend(self, indices: IndexArray) -> Iterable[Mapping[str, AnyArray]] | None:
        return self._lent(indices, [source.lend(indices) for source in self.sources])

    def lend_needed(self, indices: IndexArray, needs: Needs) -> Iterable[Mapping[str, AnyArray]] | None:
        first = next(iter(self._specs))
        lent = [
            source.lend_needed(indices, needs) if next(iter(tops.values())) == first else source.lend(indices)
            for source, tops in self._parts()
        ]
        return self._lent(indices, lent)

    def _lent(
        self, indices: IndexArray, lent: Sequence[Iterable[Mapping[str, AnyArray]] | None]
    ) -> Iterable[Mapping[str, AnyArray]] | None:
        """The samples side by side; those of a source that lends none are read. None if no source lends any."""
        if not any(each is not None for each in lent):
            return None
        views = [
            _read(source, indices) if each is None else each for source, each in zip(self.sources, lent, strict=True)
        ]
        samples = (
            {top: arrays[name] for tops, arrays in zip(self._names, each, strict=True) for name, top in tops.items()}
            for each in zip(*views, strict=True)
        )
        return list(samples) if all(isinstance(each, Sequence) for each in views) else samples

    @property
    def gathered(self) -> Collection[str]:
        return {tops[name] for source, tops in self._parts() for name in source.gathered}

    @property
    def outliers(self) -> Mapping[str, Outlier]:
        return {tops[name]: outlier for source, tops in self._parts() for name, outlier in source.outliers.items()}

    def where(self, index: int) -> str:
        return " and ".join(source.where(index) for source in self.sources)

    def will_need(self, indices: IndexArray) -> None:
        for source in self.sources:
            source.will_need(indices)

    @property
    def chunk_samples(self) -> int | None:
        """The samples in a chunk of the source with the largest samples."""
        return self._largest.chunk_samples

    @property
    def chunks_are_cheap(self) -> bool:
        return self._largest.chunks_are_cheap

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}:{self._names}"


def _read(source: Source, indices: IndexArray) -> list[dict[str, AnyArray]]:
    rows = allocate_rows(source.specs, len(indices))
    source.read(indices, rows)
    return [dict(zip(rows, arrays, strict=True)) for arrays in zip(*rows.values(), strict=True)]


def open_zip(parts: object, *, tops: Tops, base_dir: Path) -> ZipSource:
    """Open what `source: {zip: [{image_list: {…}}, {hdf5: {…}, tops: {mask: data}}, …]}` declares.

    `tops` beside a part are its tops, or a mapping from top to its name there; without it those of the part. A part of
    which `tops` has none is not read. Raises ParameterError, SourceError.
    """
    if not isinstance(parts, list | tuple) or not parts:
        raise ParameterError(f"source zip: expected a list of sources, got {parts!r}")
    by_part: list[Source | None] = []
    names: list[dict[str, str]] = []
    known: dict[str, None] = {}
    for number, part in enumerate(parts):
        what, spec, named = f"zip[{number}]", part, None
        if isinstance(part, Mapping) and "tops" in part:
            spec = {kind: options for kind, options in part.items() if kind != "tops"}
            named = check_options({"tops": part["tops"]}, _Beside, what).by_top
            if len(set(named.values())) < max(1, len(named)):
                raise ParameterError(
                    f"{what}: parameter 'tops' is {part['tops']!r}: expected at least one top, and for each another "
                    "array of the source; copy an array in decode, and leave out a source that is not read"
                )
            if isinstance(part["tops"], Mapping):
                what += ", with tops: {its name in a batch: its name in the source}"
        source = None if named else open_part(what, spec, None, base_dir)
        by_top = named or {name: name for name in (source.specs if source else ())}
        known |= dict.fromkeys(by_top)
        wanted = {top: name for top, name in by_top.items() if tops is None or top in tops}
        if source is not None and len(wanted) < len(by_top):
            source.close()
            source = None
        if source is None and wanted:
            source = open_part(what, spec, tuple(wanted.values()), base_dir)
        by_part.append(source)
        if source is not None:
            # A source of the user's own has all of its arrays, whatever is asked for.
            tops_of = {name: top for top, name in wanted.items()}
            names.append({name: tops_of.get(name, name) for name in source.specs})
    chosen(known, tops, "source zip")
    opened = ZipSource([source for source in by_part if source is not None], names, tops or ())
    opened.by_part = by_part
    return opened
