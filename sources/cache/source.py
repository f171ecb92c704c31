"""The decoded cache: a source in front of another one, which keeps what that one has read in a database on disk.

It keeps what `read` gives: samples after the deterministic part of decoding, before anything random. The first epoch
fills it, whichever process reads; from then on, and in later runs, a sample is a copy out of LMDB's map.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ...workers.api import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows, Rows, Source
from ...workers.base import text_digest
from .database import Database
from .form import Form

_VERSION = 5


class CachedSource(Source):
    """The samples of `source`, read from it once and from a database in the folder `path` ever after.

    Samples that are not kept (`size_limit`, see Database) are read from `source` each time. Another content is another
    source, changed files or other decode options. A sample whose checksum is wrong is read from `source` again;
    `cache_counts` has those that this process met. Raises ParameterError and SourceError.
    """

    kind = "cache"

    def __init__(self, source: Source, path: Path, size_limit: int) -> None:
        self._source = source
        self.modules = source.modules
        self.descriptors = source.descriptors
        self.rows_at_once = source.rows_at_once
        self._form = Form(source.specs)
        arrays = [(name, str(spec), spec.dtype.str) for name, spec in source.specs.items()]
        content = text_digest(json.dumps([_VERSION, source.fingerprint(), len(source), arrays]))
        self._database = Database(path, size_limit, content, len(source))

    def __len__(self) -> int:
        return len(self._source)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._source.specs

    @property
    def runs_user_code(self) -> bool:
        return self._source.runs_user_code

    @property
    def chunk_samples(self) -> int | None:
        # That of the source behind, even if all is cached: the order of samples must not depend on what a run finds.
        return self._source.chunk_samples

    @property
    def chunks_are_cheap(self) -> bool:
        return self._source.chunks_are_cheap

    @property
    def cached_samples(self) -> int:
        """The number of samples in the database, without those that are pending in a process."""
        return len(self._database)

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        missing = np.ones(len(indices), np.bool_)
        with self._database.reading() as get:
            for row, index in enumerate(indices.tolist()):
                if (sample := self._whole(index, get(index))) is not None:
                    for name, top in out.items():
                        if isinstance(top, RaggedRows):
                            top.put(row, sample[name])
                        else:
                            top[row] = sample[name]
                    missing[row] = False
        rows = np.flatnonzero(missing)
        self._count(hits=len(indices) - len(rows), misses=len(rows))
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else ():
            here = slice(int(run[0]), int(run[-1]) + 1)
            read = {name: top[here] for name, top in out.items()}
            self._source.read(indices[here], read)
            self._keep(indices[here], read)

    def lend(self, indices: IndexArray) -> Iterator[Mapping[str, AnyArray]] | None:
        samples = self._views(indices)
        return samples if next(samples, None) is not None else None

    def _views(self, indices: IndexArray) -> Iterator[Mapping[str, AnyArray]]:
        """Yield something if all are there and whole, and then the samples, which lie in the database."""
        with self._database.reading() as get:
            samples = []
            for index in indices.tolist():
                if (sample := self._whole(index, get(index))) is None:
                    return
                samples.append(sample)
            self._count(hits=len(samples))
            yield {}
            yield from samples

    def _whole(self, index: int, value: memoryview | bytes | None) -> Mapping[str, AnyArray] | None:
        """Return sample `index`; None if it is not there or damaged."""
        if value is None or (sample := self._form.read(index, value)) is not None:
            return None if value is None else sample
        self._database.note_damaged(index, self.where(index))
        return None

    def where(self, index: int) -> str:
        return self._source.where(index)

    def corners(self, indices: IndexArray) -> Mapping[str, IndexArray]:
        return self._source.corners(indices)

    def will_need(self, indices: IndexArray) -> None:
        missing = np.ones(len(indices), np.bool_)
        with self._database.reading() as get:
            missing[:] = [get(index) is None for index in indices.tolist()]
        if missing.any():
            self._source.will_need(indices[missing])

    def identity(self) -> dict[str, str]:
        return self._source.identity()

    def fingerprint(self) -> str:
        return f"{self.kind}:{self._source.fingerprint()}"

    def close(self) -> None:
        self._database.close()
        self._source.close()

    def _count(self, hits: int = 0, misses: int = 0) -> None:
        self._database.count(hits, misses)
        self.cache_counts = self._database.counts

    def _keep(self, indices: IndexArray, rows: Mapping[str, Rows]) -> None:
        if len(rows) == len(self.specs):  # a sample is stored whole or not at all
            self._database.keep(self._form.write(indices, rows))
