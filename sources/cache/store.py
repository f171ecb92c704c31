"""The database of the decoded cache: LMDB, opened by every process for itself and never across a fork.

    cache: {path: decoded.cache}    decoded.cache/blobfeed-<content>/data.mdb, lock.mdb

The folder's name tells the content, so no process opens one of other content by mistake. To replace a database is to
remove its folder: a process that has it open keeps both files.

LMDB makes a transaction whole or not at all, whichever process dies, and has one writer at a time. A process must not
wait for another writer: one that a debugger or a scheduler has stopped would hold up the loaders of all runs. So a lock
that can be tried comes before LMDB's, and samples stay pending, where this process finds them, until it is free. They
do so for a while after each commit, too, since a commit waits for the disk: not more than a tenth of the time.

`metasync=False` leaves one wait for the disk in a commit. A power failure may then cost the last commit; without any
wait it would cost the database. Transactions that read are short, because what is freed meanwhile cannot be used again;
those of processes that died are removed whenever a process opens the database.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import lmdb

from ...workers.base import ParameterError, SourceError
from ..files.environments import data_file, open_environment, required_bytes

_PREFIX = "blobfeed-"
_READERS = 1024
"""The number of transactions that may read at the same time; by itself LMDB allows 126."""

_COMMIT_BYTES = 16 << 20
_MOST_PENDING_BYTES = 64 << 20
_SHARE_OF_TIME = 0.1
_LAST_WAIT_S = 1.0
_PAUSE_S = 0.01

_log = logging.getLogger("blobfeed")


def prepare(path: Path, content: str, size_limit: int) -> Path:
    """Return the folder in `path` with a database for this content, whatever was there before.

    Raises ParameterError if `path` can be no cache, SourceError if there can be no database.
    """
    if not path.parent.is_dir():
        raise ParameterError(f"cache: the folder of path {path} does not exist: create it, or choose another path")
    if path.exists() and not path.is_dir():
        raise ParameterError(f"cache: path {path} is no folder, as a cache is: it is left alone, choose another path")
    folder = path / f"{_PREFIX}{content}"
    try:
        for other in path.glob(f"{_PREFIX}*"):
            if other != folder:
                _log.warning("cache %s is not of this source as it is now: it is made anew", path)
                remove(other)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            Store(folder, size_limit).release()
        except lmdb.Error as error:
            with TemporaryDirectory(dir=path, prefix=".") as fresh:  # or size_limit is to blame
                Store(Path(fresh), size_limit).release()
            _log.warning("cache %s is damaged (%s): it is made anew", path, error)
            remove(folder)
            folder.mkdir(exist_ok=True)
            Store(folder, size_limit).release()
    except (OSError, lmdb.Error) as error:
        raise SourceError(
            f"cache {path} cannot be made with size_limit {size_limit}: {error}; it needs a folder on a local disk, "
            "which it may write to, and as many addresses as size_limit has bytes"
        ) from error
    return folder


def remove(folder: Path) -> None:
    """Remove a database. It gets another name first, or a process might open one file of it and miss the other."""
    doomed = folder.with_name(f"{folder.name}.{os.getpid()}.old")
    with suppress(OSError):  # another process was faster
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


class Store:
    """The values in the database in `folder`, by the index of their samples. All methods raise OSError, lmdb.Error."""

    def __init__(self, folder: Path, size_limit: int) -> None:
        self._environment = open_environment(
            folder, map_size=size_limit, create=False, metasync=False, max_readers=_READERS
        )
        if data_file(folder).stat().st_size < required_bytes(self._environment):
            del self._environment  # or the error would keep it open
            raise lmdb.CorruptedError("it is cut short")
        self._environment.reader_check()
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._pending: dict[bytes, memoryview] = {}
        self._pending_bytes = 0
        self._commit_at = 0.0
        self.process = os.getpid()

    def __len__(self) -> int:
        entries: int = self._environment.stat()["entries"]
        return entries

    def begin(self) -> lmdb.Transaction:
        """Begin to read: a context manager, and no value may be used behind its end."""
        try:
            return self._environment.begin(buffers=True)
        except lmdb.MapResizedError:  # by a run with a larger limit
            self._environment.set_mapsize(0)
            return self._environment.begin(buffers=True)

    def get(self, index: int, transaction: lmdb.Transaction) -> memoryview | bytes | None:
        """Return the value of sample `index`; None without one."""
        key = _key(index)
        return self._pending.get(key) or transaction.get(key)

    def put(self, values: Iterable[tuple[int, memoryview]]) -> None:
        """Store the values of samples, at once or with those that come later."""
        for index, value in values:
            self._pending[_key(index)] = value
            self._pending_bytes += len(value)
        if self._pending_bytes >= _COMMIT_BYTES or time.monotonic() >= self._commit_at:
            self._commit()

    def _commit(self) -> None:
        begun = time.monotonic()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self._pending_bytes > _MOST_PENDING_BYTES:
                self._forget()
            return
        try:
            with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(self._pending.items())
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._forget()
        now = time.monotonic()
        self._commit_at = now + (now - begun) / _SHARE_OF_TIME

    def _forget(self) -> None:
        self._pending, self._pending_bytes = {}, 0

    def flush(self) -> None:
        """Commit what is pending, unless another process writes all the time."""
        deadline = time.monotonic() + _LAST_WAIT_S
        while self._pending and time.monotonic() < deadline:
            self._commit()
            time.sleep(_PAUSE_S if self._pending else 0)

    def release(self) -> None:
        """Let go of all handles; LMDB closes when the last user in this process has let go."""
        os.close(self._lock)
        del self._environment


def _key(index: int) -> bytes:
    """Return the key of sample `index`; LMDB sorts keys by their bytes."""
    return index.to_bytes(8, "big")
