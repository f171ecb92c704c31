"""The decoded cache: a source in front of another one, which keeps what that one has read in a memory-mapped file.

It keeps what `read` gives: samples after the deterministic part of decoding, before anything random. The first epoch
fills the file, whichever process reads; from then on, and in later runs, a sample is a copy out of the map.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...api import AnyArray, ArraySpec, CacheCounts, IndexArray, NamedRows, Outlier, RaggedRows, Rows, Source
from ...base import another_host
from .file import CacheFile, attach, prepare
from .layout import lay_out

_log = logging.getLogger(__name__)


class CachedSource(Source):
    """The samples of `source`, read from it once and from the file at `path` ever after.

    `size_limit`: bytes that the file may take on the disk. The disk for samples of fixed size is taken at once, so that
    a limit or a disk too small for them is an error here. Of samples that vary in size, those that go beyond the limit
    are read from `source` each time; the log says so once.

    A file that holds other content (another source, changed files, other decode options), or is damaged, is replaced;
    processes that use it keep it. Two runs may share one. A sample whose checksum is wrong is read from `source` again;
    `cache_counts` has those that this process met. Raises ParameterError and SourceError, see `prepare`.
    """

    kind = "cache"

    def __init__(self, source: Source, path: Path, size_limit: int) -> None:
        self._source = source
        self.modules = source.modules
        self.descriptors = source.descriptors
        self.rows_at_once = source.rows_at_once
        self._path = path.absolute()
        self._size_limit = size_limit
        self._layout = lay_out(source.specs, len(source), source.fingerprint())
        self._file: CacheFile | None = None
        self._usable = True
        self._fills = True
        self._damaged: set[int] = set()
        prepare(self._path, self._layout, size_limit)

    def __len__(self) -> int:
        return len(self._source)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._source.specs

    @property
    def chunk_samples(self) -> int | None:
        # That of the source behind, even if all is cached: the order of samples must not depend on what a run finds.
        return self._source.chunk_samples

    @property
    def chunks_are_cheap(self) -> bool:
        return self._source.chunks_are_cheap

    @property
    def cached_samples(self) -> int:
        file = self._opened()
        return 0 if file is None else int(np.count_nonzero(file.states))

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        file = self._opened()
        if file is None:
            self._source.read(indices, out)
            self._count(misses=len(indices))
            return
        hits = file.states[indices] != 0
        found = int(np.count_nonzero(hits))
        self._count(hits=found, misses=len(hits) - found)
        edges = [0, *(np.flatnonzero(np.diff(hits)) + 1).tolist(), len(hits)]
        for start, stop in itertools.pairwise(edges if len(hits) else []):
            here = {name: top[start:stop] for name, top in out.items()}
            if hits[start]:
                for row in file.take(indices[start:stop], here):
                    self._make_anew(file, indices[start + row : start + row + 1], here, row)
            else:
                self._source.read(indices[start:stop], here)
                self._keep(file, indices[start:stop], here)

    def lend(self, indices: IndexArray) -> Sequence[Mapping[str, AnyArray]] | None:
        file = self._opened()
        if file is None or not file.states[indices].all():
            return None
        samples = file.lend(indices)
        if samples is None:  # `read` makes the damaged ones anew
            return None
        self._count(hits=len(samples))
        return [{name: sample[name] for name in self.specs} for sample in samples]

    @property
    def outliers(self) -> Mapping[str, Outlier]:
        return self._source.outliers

    def where(self, index: int) -> str:
        return self._source.where(index)

    def will_need(self, indices: IndexArray) -> None:
        file = self._opened()
        hits = np.zeros(len(indices), np.bool_) if file is None else file.states[indices] != 0
        if file is not None and hits.any():
            file.will_need(indices[hits])
        if not hits.all():
            self._source.will_need(indices[~hits])

    def identity(self) -> dict[str, str]:
        return self._source.identity()

    def fingerprint(self) -> str:
        return f"{self.kind}:{self._source.fingerprint()}"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._source.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if another_host() is not None:  # each has a file of its own at this path
            prepare(self._path, self._layout, self._size_limit)

    def _opened(self) -> CacheFile | None:
        if self._file is None and self._usable:
            self._file = attach(self._path, self._layout, self._size_limit)
            if self._file is None:
                self._usable = False
                _log.warning(
                    "cache %s cannot be used any more (another run has replaced it, or it is gone or cannot be "
                    "opened): this run goes on without",
                    self._path,
                )
        return self._file

    def _make_anew(self, file: CacheFile, index: IndexArray, out: NamedRows, row: int) -> None:
        """Sample `index`, damaged on the disk or never written there, from the source into this row and the cache."""
        if not self._damaged:
            _log.warning(
                "cache %s: sample %d (%s) is damaged, or the machine stopped before it was on the disk: its checksum "
                "is wrong; it is made anew from its source, and so are others; statistics().damaged_in_cache counts "
                "them, and if they are many, look at the disk",
                *(self._path, index[0], self.where(int(index[0]))),
            )
        self._damaged.add(int(index[0]))
        self._count()
        here = {name: top[row : row + 1] for name, top in out.items()}
        self._source.read(index, here)
        self._keep(file, index, here)

    def _count(self, hits: int = 0, misses: int = 0) -> None:
        before = self.cache_counts
        self.cache_counts = CacheCounts(before.hits + hits, before.misses + misses, len(self._damaged))

    def _keep(self, file: CacheFile, indices: IndexArray, rows: Mapping[str, Rows]) -> None:
        """Store what was just read; a cache that is full, or fails, costs speed and no sample."""
        if not self._fills or len(rows) < len(self.specs):  # a sample is published whole or not at all
            return
        try:
            for row, index in enumerate(indices.tolist()):
                file.store(index, {name: _sample(top, row) for name, top in rows.items()})
        except OSError as error:
            self._fills = False
            held = int(np.count_nonzero(file.states))
            _log.warning(
                "cache %s takes no more samples, it holds %d of %d: %s; the others are read from the source each time",
                *(self._path, held, len(self), error.strerror),
            )


def _sample(rows: Rows, row: int) -> AnyArray:
    return rows.get(row) if isinstance(rows, RaggedRows) else rows[row : row + 1]
