"""The contents of a source and the speed of reading it here: facts for `blobfeed inspect`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..sources.arrays import open_arrays
from ..sources.files import list_hdf5_files, stamp_of
from ..sources.stored.hdf5_library import open_file
from ..supplies import make_order
from ..workers.api import AnyArray, ArraySpec, IndexArray, NamedRows, Source, allocate_rows
from ..workers.base import BlobfeedError
from .found import Found, samples_of

_BATCH = 64
_BATCH_BYTES = 64 << 20
_LABELS_AT_ONCE = 4096
_RANDOM = 14
"""Samples that are looked at beside the first ones and the last one."""

_LABELS_S = 1.0
_PACKED_BYTES = 64 << 20
_PACKED_S = 1.0
_MOST_CLASSES = 10_000
_FILTERS = {1: "gzip {}", 2: "byte shuffle", 3: "checksums", 32000: "lzf"}


Bad = dict[int, str]
"""The error of each sample that cannot be read, by index; `some` has no such sample."""


@dataclass(frozen=True)
class Storage:
    """The storage of one top's data set in its first file.

    `chunk`: None for contiguous. `compression`: "" for none. `raw_bytes`: the size of its values.
    """

    chunk: tuple[int, ...] | None
    compression: str
    stored_bytes: int
    raw_bytes: int

    def __str__(self) -> str:
        layout = f"chunks of {'×'.join(map(str, self.chunk))}" if self.chunk else "contiguous"
        return f"{layout}, {self.compression}" if self.compression else layout


@dataclass(frozen=True)
class Labels:
    """The first `looked_at` numbers of a top that has one whole number for each sample."""

    counts: Mapping[int, int]
    looked_at: int
    is_sorted: bool


@dataclass
class Facts:
    """The facts that `blobfeed inspect` has found.

    `rates`: samples/s by the order of reading, "packed" among them. `some`: the first, the last and random samples.
    """

    kind: str
    samples: int
    specs: Mapping[str, ArraySpec]
    storage: Mapping[str, Storage] = field(default_factory=dict)
    labels: Mapping[str, Labels] = field(default_factory=dict)
    first: tuple[Mapping[str, AnyArray], ...] = ()
    some: tuple[Mapping[str, AnyArray], ...] = ()
    rates: dict[str, float] = field(default_factory=dict)
    packed_samples: int = 0
    bad: Bad = field(default_factory=dict)

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
        facts.storage = _storage(found, tuple(source.specs))
        facts.first = tuple(samples_of(source, range(min(shown, len(source))), facts.bad))
        others = np.random.default_rng(0).integers(0, len(source), _RANDOM).tolist()
        facts.some = (*facts.first, *samples_of(source, sorted({len(source) - 1, *others}), facts.bad))
        scalars = [top for top, spec in facts.specs.items() if not spec.shape and spec.dtype.kind in "iuf"]
        if len(facts.specs) > 1:  # else they are the data, and no classes
            facts.labels = {top: counted for top in scalars if (counted := _count(found, top, facts.bad))}
        if seconds:
            facts.rates["in order"] = _rate(source, False, seconds, facts.bad)
            if source.chunk_samples is not None:
                facts.rates["by chunks (shuffle: chunk)"] = _rate(source, "chunk", seconds, facts.bad)
            facts.rates["shuffled (shuffle: true)"] = _rate(source, True, seconds, facts.bad)
            if not (facts.varies or facts.bad):  # else it cannot be packed
                packed = _packed(source, facts.sample_bytes, facts.bad)
                facts.rates["packed, shuffled"] = _rate(packed, True, min(seconds, 0.5), {})
                facts.packed_samples = len(packed)
    return facts


def _rate(source: Source, shuffle: Any, seconds: float, bad: Bad) -> float:
    """Samples/s of one process that reads batches in the order that `shuffle` asks for, nothing in its caches."""
    source.close()
    order = make_order(len(source), shuffle=shuffle, seed=0, chunk_samples=source.chunk_samples)
    size = max(1, min(_BATCH, _BATCH_BYTES // max(1, sum(spec.nbytes for spec in source.specs.values()))))
    rows = allocate_rows(source.specs, size)
    position, read, begun = 0, 0, time.perf_counter()
    while position == 0 or time.perf_counter() - begun < seconds:
        read += _read(source, order.indices(position, size), rows, bad)
        position += size
    return read / (time.perf_counter() - begun)


def _packed(source: Source, sample_bytes: int, bad: Bad) -> Source:
    """The first samples as `blobfeed pack` would lay them out, in memory."""
    count = max(1, min(len(source), _PACKED_BYTES // max(1, sample_bytes)))
    rows = allocate_rows(source.specs, count)
    until, read = time.monotonic() + _PACKED_S, 0
    while read < count and time.monotonic() < until:
        end = min(read + _BATCH, count)
        _read(source, np.arange(read, end), {top: array[read:end] for top, array in rows.items()}, bad)
        read = end
    return open_arrays({top: np.asarray(array)[:read] for top, array in rows.items()})


def _read(source: Source, indices: IndexArray, rows: NamedRows, bad: Bad) -> int:
    """Return the number of `indices` that could be read."""
    try:
        source.read(indices, rows)
    except BlobfeedError:
        return len(list(samples_of(source, indices, bad)))
    return len(indices)


def _count(found: Found, top: str, bad: Bad) -> Labels | None:
    """The classes of `top`, None if these are no whole numbers, nearly each sample has its own, or some are noted in
    `bad`, since they cannot be read.
    """
    values: list[AnyArray] = []
    with closing(Found(found.declared, (top,)).open()) as source:
        until = time.monotonic() + _LABELS_S
        for start in range(0, len(source), _LABELS_AT_ONCE):
            indices = np.arange(start, min(start + _LABELS_AT_ONCE, len(source)))
            rows = allocate_rows(source.specs, len(indices))
            try:
                source.read(indices, rows)
            except BlobfeedError:
                list(samples_of(source, indices, bad))
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
    """Return the storage of each data set of an HDF5 file; the facts of other kinds of source say enough."""
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
    return Storage(dataset.chunks, " + ".join(names), dataset.id.get_storage_size(), dataset.nbytes)
