"""A database of samples as the processes of several runs use it: what fails, or is full, costs speed and no sample."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from ...workers.api import CacheCounts
from ...workers.base import another_host
from .store import Store, prepare, remove

_log = logging.getLogger("blobfeed")


class Database:
    """The values of samples, by index, in the folder `path`; of `samples` samples at most, and of one `content`.

    `size_limit`: its largest size in bytes. Values that go beyond it, or beyond the disk, are not kept; the log says so
    once. Another content replaces the database; processes that use it keep it. Raises ParameterError and SourceError,
    see `prepare`.
    """

    def __init__(self, path: Path, size_limit: int, content: str, samples: int) -> None:
        self._path = path.absolute()
        self._size_limit, self._content, self._samples = size_limit, content, samples
        self._store: Store | None = None
        self._usable = True
        self._fills = True
        self._damaged: set[int] = set()
        self.counts = CacheCounts()
        self._folder = prepare(self._path, content, size_limit)

    def __len__(self) -> int:
        """Return the number of samples in the database, without those that are pending in a process."""
        with self.reading():
            if self._store is not None:
                return len(self._store)
        return 0

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], memoryview | bytes | None]]:
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

    def count(self, hits: int = 0, misses: int = 0) -> None:
        """Count samples that were there, and others."""
        before = self.counts
        self.counts = CacheCounts(before.hits + hits, before.misses + misses, len(self._damaged))

    def note_damaged(self, index: int, where: str) -> None:
        """Count a sample whose checksum is wrong; the log names the first one."""
        if not self._damaged:
            _log.warning(
                "cache %s: sample %d (%s) is damaged: its checksum is wrong; it is made anew from its source, and so "
                "are others; statistics().damaged_in_cache counts them, and if they are many, look at the disk",
                *(self._path, index, where),
            )
        self._damaged.add(index)

    def keep(self, values: Iterable[tuple[int, memoryview]]) -> None:
        """Store the values of samples, each whole or not at all."""
        if self._store is None or not self._fills:
            return
        try:
            self._store.put(values)
        except (OSError, lmdb.Error) as error:
            self._stop_filling(error)

    def close(self) -> None:
        try:
            if self._store is not None and self._store.process == os.getpid():
                self._store.flush()
        except (OSError, lmdb.Error) as error:
            self._stop_filling(error)
        finally:
            self._drop()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_store": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if another_host() is not None:  # each has a database of its own at this path
            prepare(self._path, self._content, self._size_limit)

    def _stop_filling(self, error: Exception) -> None:
        self._fills = False
        full = f"size_limit of {self._size_limit} bytes is reached"
        _log.warning(
            "cache %s takes no more samples, it holds %d of %d: %s (its disk has %d MB free); the others are read from "
            "the source each time",
            *(self._path, len(self), self._samples, full if isinstance(error, lmdb.MapFullError) else str(error)),
            shutil.disk_usage(self._path.parent).free // 10**6,
        )
