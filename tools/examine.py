"""What a source holds and how fast it can be read here: facts for `blobfeed inspect`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..workers.base.errors import BlobfeedError
from ..workers.base.source import Source
from ..workers.base.specs import AnyArray, ArraySpec, IndexArray, NamedRows, allocate_rows
from ..workers.order.make_order import make_order
from ..workers.sources.arrays import ArraysSource
from ..workers.sources.files.paths import list_hdf5_files
from ..workers.sources.files.remote import stamp_of
from ..workers.sources.stored.library_rows import open_file
from .recognise import Found, sample_of

_BATCH = 64
_BATCH_BYTES = 64 << 20
_LABELS_AT_ONCE = 4096
_LABELS_S = 1.0
_PACKED_BYTES = 64 << 20
_PACKED_S = 1.0
_MOST_CLASSES = 10_000
_FILTERS = {1: "gzip {}", 2: "byte shuffle", 3: "checksums", 32000: "lzf"}


@dataclass(frozen=True)
class Storage:
    """How the data set of one top lies in its file. `chunk`: None for contiguous; `compression`: "" for none."""

    chunk: tuple[int, ...] | None
    compression: str
    stored_bytes: int

    def __str__(self) -> str:
        layout = f"chunks of {'×'.join(map(str, self.chunk))}" if self.chunk else "contiguous"
        return f"{layout}, {self.compression}" if self.compression else layout


@dataclass(frozen=True)
class Labels:
    """Of a top with one whole number for each sample, the first `looked_at` samples' numbers."""

    counts: Mapping[int, int]
    looked_at: int
    is_sorted: bool


@dataclass
class Facts:
    """What `blobfeed inspect` has found out. `rates`: samples/s by the order of reading, "packed" among them."""

    kind: str
    samples: int
    specs: Mapping[str, ArraySpec]
    storage: Mapping[str, Storage] = field(default_factory=dict)
    labels: Mapping[str, Labels] = field(default_factory=dict)
    first: tuple[Mapping[str, AnyArray], ...] = ()
    rates: dict[str, float] = field(default_factory=dict)
    packed_samples: int = 0
    bad: dict[int, str] = field(default_factory=dict)

    @property
    def varies(self) -> bool:
        return any(spec.varies for spec in self.specs.values())

    @property
    def sample_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs.values())


def examine(found: Found, *, seconds: float, shown: int) -> Facts:
    """Look into `found`: its storage, classes and first `shown` samples; read it for `seconds` in each order."""
    with closing(found.open()) as source:
        facts = Facts(found.kind, len(source), dict(source.specs))
        looking = _Looking(source, facts.bad)
        facts.storage = _storage(found, tuple(source.specs))
        facts.first = tuple(looking.samples(range(min(shown, len(source)))))
        facts.labels = {top: counted for top in _scalars(source) if (counted := _count(found, top, facts.bad))}
        packed = None
        if seconds:
            facts.rates["in order"] = looking.rate(False, seconds)
            if source.chunk_samples is not None:
                facts.rates["by chunks (shuffle: chunk)"] = looking.rate("chunk", seconds)
            facts.rates["shuffled (shuffle: true)"] = looking.rate(True, seconds)
            packed = looking.packed()
    if packed is not None:
        with closing(packed):
            facts.rates["packed, shuffled"] = _Looking(packed, {}).rate(True, min(seconds, 0.5))
        facts.packed_samples = len(packed)
    return facts


class _Looking:
    """Reads samples of a source. `bad`: by index, what those say that cannot be read; they are left out."""

    def __init__(self, source: Source, bad: dict[int, str]) -> None:
        self._source = source
        self._bytes = sum(spec.nbytes for spec in source.specs.values())
        self._bad = bad

    def samples(self, indices: Iterable[int]) -> Iterator[dict[str, AnyArray]]:
        """Those that can be read, one by one."""
        for index in indices:
            try:
                yield sample_of(self._source, index)
            except BlobfeedError as error:
                self._bad[int(index)] = str(error)

    def rate(self, shuffle: Any, seconds: float) -> float:
        """Samples/s of one process that reads batches in the order that `shuffle` asks for, nothing in its caches."""
        source = self._source
        source.close()
        order = make_order(len(source), shuffle=shuffle, seed=0, chunk_samples=source.chunk_samples)
        size = max(1, min(_BATCH, _BATCH_BYTES // max(1, self._bytes)))
        rows = allocate_rows(source.specs, size)
        position, read, begun = 0, 0, time.perf_counter()
        while position == 0 or time.perf_counter() - begun < seconds:
            read += self._read(order.indices(position, size), rows)
            position += size
        return read / (time.perf_counter() - begun)

    def packed(self) -> Source | None:
        """The first samples as `blobfeed pack` would lay them out, in memory; None if they differ in size, or some are
        bad."""
        if any(spec.varies for spec in self._source.specs.values()) or self._bad:
            return None
        count = max(1, min(len(self._source), _PACKED_BYTES // max(1, self._bytes)))
        rows = allocate_rows(self._source.specs, count)
        until, read = time.monotonic() + _PACKED_S, 0
        while read < count and time.monotonic() < until:
            step = slice(read, min(read + _BATCH, count))
            self._read(np.arange(step.start, step.stop), {top: array[step] for top, array in rows.items()})
            read = step.stop
        return ArraysSource({top: np.asarray(array)[:read] for top, array in rows.items()})

    def _read(self, indices: IndexArray, rows: NamedRows) -> int:
        """How many of `indices` could be read."""
        try:
            self._source.read(indices, rows)
        except BlobfeedError:
            return len(list(self.samples(indices)))
        return len(indices)


def _scalars(source: Source) -> list[str]:
    """The tops that may be classes."""
    specs = source.specs
    return [top for top, spec in specs.items() if not spec.shape and spec.dtype.kind in "iuf" and len(specs) > 1]


def _count(found: Found, top: str, bad: dict[int, str]) -> Labels | None:
    """The classes of `top`, None if these are no whole numbers, nearly each sample has its own, or some are noted in
    `bad`, since they cannot be read."""
    values: list[AnyArray] = []
    with closing(Found(found.declared, (top,)).open()) as source:
        until = time.monotonic() + _LABELS_S
        for start in range(0, len(source), _LABELS_AT_ONCE):
            indices = np.arange(start, min(start + _LABELS_AT_ONCE, len(source)))
            rows = allocate_rows(source.specs, len(indices))
            try:
                source.read(indices, rows)
            except BlobfeedError:
                list(_Looking(source, bad).samples(indices))
                return None
            values.append(np.asarray(rows[top]))
            if time.monotonic() > until:
                break
    read = np.concatenate(values)
    if not np.isfinite(read).all() or (read != np.floor(read)).any():
        return None
    classes, counts = np.unique(read, return_counts=True)
    if len(classes) > min(_MOST_CLASSES, max(2, len(read) // 2)):
        return None
    changes = int((read[1:] != read[:-1]).sum())
    is_sorted = len(classes) > 1 and changes < 2 * len(classes) < len(read) // 2
    return Labels(dict(zip(map(int, classes.tolist()), counts.tolist(), strict=True)), len(read), is_sorted)


def _storage(found: Found, tops: tuple[str, ...]) -> dict[str, Storage]:
    """Of an HDF5 file with a data set for each top; of other kinds the source's own facts say enough."""
    if found.kind != "hdf5":
        return {}
    options = found.declared["hdf5"]
    path = list_hdf5_files(options["path"], Path.cwd(), "inspect")[0]
    with open_file(stamp_of(path), options.get("locking")) as file:
        return {top: _storage_of(file[top]) for top in tops if top in file and not file[top].is_virtual}


def _storage_of(dataset: Any) -> Storage:
    plist = dataset.id.get_create_plist()
    filters = (plist.get_filter(number) for number in range(plist.get_nfilters()))
    names = [
        _FILTERS.get(number, name.decode(errors="replace").partition(";")[0]).format(*values)
        for number, _, values, name in filters
    ]
    return Storage(dataset.chunks, " + ".join(names), dataset.id.get_storage_size())
