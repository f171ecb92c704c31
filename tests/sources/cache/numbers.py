"""Samples that follow from their index, and what each of them must be once it was cached."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
from blobfeed.sources.cache import CachedSource
from blobfeed.workers.api import AnyArray, IndexArray, NamedRows, allocate_rows

from blobfeed import ArraySpec, RaggedRows, Source

LIMIT = 1 << 30
SAMPLES = 60

SPECS = {
    "data": ArraySpec((2, 3, 5), np.dtype("float32")),
    "label": ArraySpec((), np.dtype("int64")),
    "words": ArraySpec((4, 6), np.dtype("uint16"), varies=True),
}


class Numbers(Source):
    """Samples that follow from their index; counts how often each is read."""

    def __init__(self, names: tuple[str, ...] = ("data", "label"), samples: int = SAMPLES, version: int = 0) -> None:
        self._specs = {name: SPECS[name] for name in names}
        self._version = version
        self.reads = np.zeros(samples, int)
        self.needed: list[int] = []
        self.modules = ("json",)

    def __len__(self) -> int:
        return len(self.reads)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    @property
    def chunk_samples(self) -> int:
        return 7

    def sample(self, name: str, index: int) -> AnyArray:
        spec = self._specs[name]
        shape = (1 + index % 4, 1 + index % 6) if spec.varies else spec.shape
        return np.random.default_rng([index, self._version]).integers(0, 1000, shape).astype(spec.dtype)

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        for row, index in enumerate(indices.tolist()):
            self.reads[index] += 1
            for name, top in out.items():
                if isinstance(top, RaggedRows):
                    top.put(row, self.sample(name, index))
                else:
                    top[row] = self.sample(name, index)

    def will_need(self, indices: IndexArray) -> None:
        self.needed += indices.tolist()

    def corners(self, indices: IndexArray) -> Mapping[str, IndexArray]:
        return {"step": indices}

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}:{self._version}"


def check(source: Source, truth: Numbers, indices: list[int]) -> None:
    """Read `indices` and compare each sample with what it must be."""
    rows = allocate_rows(source.specs, len(indices))
    source.read(np.array(indices, np.int64), rows)
    for name, top in rows.items():
        for row, index in enumerate(indices):
            read = top.get(row) if isinstance(top, RaggedRows) else top[row]
            np.testing.assert_array_equal(read, truth.sample(name, index))


def check_lent(source: CachedSource, truth: Numbers, indices: list[int]) -> None:
    """Borrow `indices`, all of them cached, and compare each sample with what it must be."""
    lent = source.lend(np.array(indices, np.int64))
    assert lent is not None
    for sample, index in zip(lent, indices, strict=True):
        assert list(sample) == list(truth.specs)
        for name, array in sample.items():
            np.testing.assert_array_equal(array, truth.sample(name, index))
            assert array.dtype == truth.specs[name].dtype
            assert not array.flags.writeable


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


everything = list(range(SAMPLES))


def database(path: Path) -> Path:
    """The one database of the cache at `path`."""
    (folder,) = path.iterdir()
    return folder / "data.mdb"


def filled(path: Path, inner: Numbers) -> None:
    with closing(CachedSource(inner, path, LIMIT)) as source:
        check(source, inner, everything)
