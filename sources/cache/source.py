"""The decoded cache: a source in front of another one, which keeps what that one has read in a database on disk.

It keeps what `read` gives: samples after the deterministic part of decoding, before anything random. The first epoch
fills it, whichever process reads; from then on, and in later runs, a sample is a copy out of LMDB's map.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from ...workers.api import AnyArray, ArraySpec, CacheCounts, IndexArray, NamedRows, RaggedRows, Rows, Source
from ...workers.base import another_host, text_digest
from .form import Form
from .store import Store, prepare, remove

_VERSION = 5
_log = logging.getLogger(__name__)


class CachedSource(Source):
    """The samples of `source`, read from it once and from a database in the folder `path` ever after.

    `size_limit`: the largest size of the database in bytes. Samples that go beyond it, or beyond the disk, are read
    from `source` each time; the log says so once.

    Another content (another source, changed files, other decode options) replaces the database; processes that use it
    keep it. Several runs may share one. A sample whose checksum is wrong is read from `source` again; `cache_counts`
    has those that this process met. Raises ParameterError and SourceError, see `prepare`.
    """

    kind = "cache"

    def __init__(self, source: Source, path: Path, size_limit: int) -> None:
        self._source = source
        self.modules = source.modules
        self.descriptors = source.descriptors
        self.rows_at_once = source.rows_at_once
        self._path = path.absolute()
        self._size_limit = size_limit
        self._form = Form(source.specs)
        arrays = [(name, str(spec), spec.dtype.str) for name, spec in source.specs.items()]
        self._digest = text_digest(json.dumps([_VERSION, source.fingerprint(), len(source), arrays]))
        self._store: Store | None = None
        self._usable = True
        self._fills = True
        self._damaged: set[int] = set()
        self._folder = prepare(self._path, self._digest, size_limit)

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
        with self._reading():
            if self._store is not None:
                return len(self._store)
        return 0

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        missing = np.ones(len(indices), np.bool_)
        with self._reading() as get:
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
        with self._reading() as get:
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
        if not self._damaged:
            _log.warning(
                "cache %s: sample %d (%s) is damaged: its checksum is wrong; it is made anew from its source, and so "
                "are others; statistics().damaged_in_cache counts them, and if they are many, look at the disk",
                *(self._path, index, self.where(index)),
            )
        self._damaged.add(index)
        return None

    def where(self, index: int) -> str:
        return self._source.where(index)

    def will_need(self, indices: IndexArray) -> None:
        missing = np.ones(len(indices), np.bool_)
        with self._reading() as get:
            missing[:] = [get(index) is None for index in indices.tolist()]
        if missing.any():
            self._source.will_need(indices[missing])

    def identity(self) -> dict[str, str]:
        return self._source.identity()

    def fingerprint(self) -> str:
        return f"{self.kind}:{self._source.fingerprint()}"

    def close(self) -> None:
        try:
            if self._store is not None and self._store.process == os.getpid():
                self._store.flush()
        except (OSError, lmdb.Error) as error:
            self._stop_filling(error)
        finally:
            self._drop()
        self._source.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_store": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if another_host() is not None:  # each has a database of its own at this path
            prepare(self._path, self._digest, self._size_limit)

    @contextmanager
    def _reading(self) -> Iterator[Callable[[int], memoryview | bytes | None]]:
        """Give the block a function that finds the value of a sample; a database that fails ends the block."""
        transaction = None
        try:
            if self._store is not None and self._store.process != os.getpid():  # a fork may use no handle of LMDB
                self._drop()
            if self._store is None and self._usable:
                self._store = Store(self._folder, self._size_limit)
            transaction = None if self._store is None else self._store.begin()
        except (OSError, lmdb.Error) as error:
            self._give_up(error)
        if (store := self._store) is None or transaction is None:
            yield lambda _: None
            return
        try:
            with transaction:
                yield lambda index: store.get(index, transaction)
        except lmdb.Error as error:
            self._give_up(error)

    def _drop(self) -> None:
        if self._store is not None:
            self._store.release()
        self._store = None

    def _give_up(self, error: Exception) -> None:
        self._usable = False
        self._drop()
        reason = str(error) if self._folder.exists() else "another run has replaced it, or it was deleted"
        _log.warning("cache %s cannot be used any more (%s): this run goes on without", self._path, reason)
        if isinstance(
            error, lmdb.CorruptedError | lmdb.InvalidError | lmdb.PageNotFoundError
        ):  # the next run makes it anew
            remove(self._folder)

    def _count(self, hits: int = 0, misses: int = 0) -> None:
        before = self.cache_counts
        self.cache_counts = CacheCounts(before.hits + hits, before.misses + misses, len(self._damaged))

    def _keep(self, indices: IndexArray, rows: Mapping[str, Rows]) -> None:
        """Store what was just read; a cache that is full, or fails, costs speed and no sample."""
        # A sample is stored whole or not at all.
        if self._store is None or not self._fills or len(rows) < len(self.specs):
            return
        try:
            self._store.put(self._form.write(indices, rows))
        except (OSError, lmdb.Error) as error:
            self._stop_filling(error)

    def _stop_filling(self, error: Exception) -> None:
        self._fills = False
        full = f"size_limit of {self._size_limit} bytes is reached"
        _log.warning(
            "cache %s takes no more samples, it holds %d of %d: %s (its disk has %d MB free); the others are read from "
            "the source each time",
            *(self._path, self.cached_samples, len(self), full if isinstance(error, lmdb.MapFullError) else str(error)),
            shutil.disk_usage(self._path.parent).free // 10**6,
        )
