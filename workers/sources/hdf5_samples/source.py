"""HDF5 with one data set, or one group of data sets, per sample: found by an index, read at its place in the file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from ...base.checks import check_options, nearest
from ...base.errors import ParameterError
from ...base.source import Source
from ...base.specs import ArraySpec, IndexArray, NamedRows
from ..hdf5.files import list_hdf5_files
from ..stored.columns import Access, Locking
from ..stored.file import FileStamp
from ..stored.paths import as_strings
from ..stored.runs import require_in_range
from .index import SamplesIndex, Wanted
from .index_file import load_index, save_index
from .read import SampleFiles

_WHAT = "source hdf5_samples"
_DATA = "data"

Positive = Annotated[int, msgspec.Meta(ge=1)]


class HDF5SamplesOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stands under `source: {hdf5_samples: …}`.

    path: an HDF5 file, a list of them, a glob, or a text file that lists them.
    groups: only what lies in these groups, at any depth; without it everything in the file.
    datasets: where a sample is a group of several data sets, their paths in it; each is a top. Without it each data set
        is a sample, and the top "data".
    labels: attributes of a sample that are tops, as a list of names or a mapping from top to attribute.
    limit: only the first so many samples.
    index_cache: a file in which the index is kept from run to run, as long as the HDF5 files stay as they are.
    locking: whether files are locked while open; false for network file systems that cannot lock.
    open_files: files that each loader keeps open at a time; without it what a quarter of its descriptors allows.
    memory_map: true or false to read always or never from a memory map; by the size of a sample where it is left out.
    """

    path: str | tuple[str, ...]
    groups: tuple[str, ...] = ("",)
    datasets: tuple[str, ...] = ()
    labels: tuple[str, ...] | dict[str, str] = ()
    limit: Positive | None = None
    index_cache: str | None = None
    locking: Locking = None
    open_files: Positive | None = None
    memory_map: bool | None = None


class HDF5SamplesSource(Source):
    """Samples that are a data set, or a group of data sets, each, in natural order (trajectory_2 before trajectory_10).

    What lies in one piece is read at its place in the file, the rest by h5py. Where shapes differ between samples, the
    spec varies and has the largest extents. Raises ParameterError for a bad option, SourceError for what files hold.
    """

    kind = "hdf5_samples"

    def __init__(self, *, tops: Sequence[str] | None = None, base_dir: Path = Path(), **options: object) -> None:
        """`options`: the fields of HDF5SamplesOptions. `tops`: which of "data" (or `datasets`) and labels, in order."""
        given = {name: as_strings(value) for name, value in options.items()}
        checked = check_options(given, HDF5SamplesOptions, _WHAT)
        wanted = _wanted(checked, tops)
        self._tops = tuple(tops or (*wanted.data, *wanted.labels))
        stamps = [FileStamp.of(path) for path in list_hdf5_files(checked.path, base_dir, _WHAT)]
        self._key = hashlib.sha256(repr((stamps, wanted)).encode()).hexdigest()
        cache = checked.index_cache and base_dir / checked.index_cache
        self._index = _make_index(stamps, wanted, checked.locking, Path(cache) if cache else None, self._key)
        self._access = Access(checked.memory_map, checked.locking, open_files=checked.open_files)
        if any(data.needs_library for data in self._index.data.values()):
            self.modules = ("h5py",)
        self._files = SampleFiles(self._index, self._access)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, tops: Sequence[str] | None, base_dir: Path) -> Self:
        return cls(tops=tops, base_dir=base_dir, **options)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return {top: self._spec(top) for top in self._tops}

    def _spec(self, top: str) -> ArraySpec:
        if top in self._index.data:
            return self._index.data[top].spec
        values = self._index.labels[top]
        return ArraySpec(values.shape[1:], values.dtype)

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        if len(indices):
            require_in_range(indices, len(self))
            self._files.read(indices, out)

    def will_need(self, indices: IndexArray) -> None:
        if len(indices):
            require_in_range(indices, len(self))
            self._files.will_need(indices)

    def where(self, index: int) -> str:
        return self._index.where(index)

    def fingerprint(self) -> str:
        return f"{self.kind}:{self._key}"

    def close(self) -> None:
        self._files.close()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_files"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = SampleFiles(self._index, self._access)


def _wanted(options: HDF5SamplesOptions, tops: Sequence[str] | None) -> Wanted:
    """What to look for: tops that are no data set are attributes, those that `labels` renames by their other name."""
    data = {path: path for path in options.datasets} or {_DATA: ""}
    if isinstance(options.labels, dict):
        labels = dict(options.labels)
    else:
        labels = {name: name for name in options.labels or (top for top in tops or () if top not in data)}
    known = (*data, *labels)
    for top in tops or ():
        if top not in known:
            raise ParameterError(f"{_WHAT}: no data set and no label for the top {top!r}{nearest(top, known)}: {known}")
    chosen = tops or known
    if not any(top in data for top in chosen):
        raise ParameterError(
            f"{_WHAT}: the tops {tuple(chosen)} are labels only; {', '.join(data)} has to be among them"
        )
    return Wanted(
        {top: path for top, path in data.items() if top in chosen},
        {top: name for top, name in labels.items() if top in chosen},
        options.groups,
        options.limit,
    )


def _make_index(
    stamps: Sequence[FileStamp], wanted: Wanted, locking: Locking, cache: Path | None, key: str
) -> SamplesIndex:
    kept = load_index(cache, key) if cache else None
    if kept is not None:
        return kept
    from .scan import Scan  # which imports h5py: not where the index is kept and all is read directly

    scan = Scan(wanted)
    for stamp in stamps:
        scan.add_file(stamp, locking)
    index = scan.index()
    if cache:
        save_index(index, cache, key)
    return index
