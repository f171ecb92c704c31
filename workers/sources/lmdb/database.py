"""An LMDB database that is read and never written: opened once in a process, without its lock file."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import lmdb

from ...base.errors import ParameterError, SourceError
from ..files.paths import PackedNames

_opened: weakref.WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = weakref.WeakValueDictionary()
"""By process and file, device and inode, for a file has many paths: LMDB must not be opened twice in one process, and
two sources may read the same database."""


@dataclass(frozen=True, slots=True)
class DatabaseStamp:
    """Tells whether the database at `path` is still the one whose keys were listed."""

    path: str
    last_transaction: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: str, environment: lmdb.Environment) -> DatabaseStamp:
        status = _data_file(path).stat()
        return cls(path, environment.info()["last_txnid"], status.st_size, status.st_mtime_ns)


def list_keys(path: str) -> tuple[DatabaseStamp, PackedNames]:
    """All keys of the database at `path`, in its order; raises SourceError."""
    environment = _open(path)
    try:
        stamp = DatabaseStamp.of(path, environment)
        with environment.begin() as transaction, transaction.cursor() as cursor:
            return stamp, PackedNames.of(map(bytes, cursor.iternext(keys=True, values=False)))
    except lmdb.Error as error:
        raise SourceError(f"source lmdb: {path!r} cannot be read: {error}") from error


class Database:
    """The database that `stamp` names, open for reading by key."""

    def __init__(self, stamp: DatabaseStamp) -> None:
        environment = _open(stamp.path)
        if DatabaseStamp.of(stamp.path, environment) != stamp:
            raise SourceError(
                f"source lmdb: {stamp.path!r} has changed since its keys were listed; leave a database alone while it "
                "is read, and start again"
            )
        self._transaction = environment.begin()
        self._environment = environment  # closed by LMDB when the last source lets go of it

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._transaction.get(key)
        return value

    def close(self) -> None:
        self._transaction.abort()


def _open(path: str) -> lmdb.Environment:
    file = _data_file(path)
    if not file.is_file():
        raise ParameterError(f"source lmdb: there is no database {path!r}{_what_is_there(Path(path))}; check path")
    status = file.stat()
    environment = _opened.get(key := (os.getpid(), status.st_dev, status.st_ino))
    if environment is None:
        try:
            environment = lmdb.open(
                os.fsencode(path), subdir=file != Path(path), readonly=True, lock=False, create=False
            )
        except lmdb.Error as error:
            hint = " Close it where your program opens it itself." if "already open" in str(error) else ""
            raise SourceError(f"source lmdb: {path!r} cannot be opened: {error}{hint}") from error
        _check_length(environment, file)
        _opened[key] = environment
    return environment


def _check_length(environment: lmdb.Environment, file: Path) -> None:
    """LMDB reads what its pages say, and a page beyond the end of the file ends the process (SIGBUS)."""
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if (size := file.stat().st_size) < needed:
        raise SourceError(
            f"source lmdb: {str(file)!r} is cut short: it needs {needed} bytes and has {size}; copy it again"
        )


def _data_file(path: str) -> Path:
    """LMDB keeps a database in a folder, or in a file alone."""
    return Path(path) / "data.mdb" if Path(path).is_dir() else Path(path)


def _what_is_there(path: Path) -> str:
    if not path.is_dir():
        return ""
    if (path / "CURRENT").exists():
        return " (the folder holds a LevelDB: source: {leveldb: …}, or backend: LEVELDB, reads it)"
    return " (the folder has no data.mdb)"
