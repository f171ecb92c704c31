"""An LMDB database that is read and never written: opened once in a process, without its lock file."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import lmdb

from ...base.errors import ParameterError, SourceError
from ..files.file import FileStamp
from ..files.paths import PackedNames

_opened: weakref.WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = weakref.WeakValueDictionary()
"""By process and file, device and inode, for a file has many paths: LMDB must not be opened twice in one process, and
two sources may read the same database."""


def list_keys(path: str) -> tuple[FileStamp, PackedNames]:
    """All keys of the database at `path`, in its order; raises SourceError."""
    environment = _open(path)
    try:
        stamp = FileStamp.of(str(_data_file(path)))
        with environment.begin() as transaction, transaction.cursor() as cursor:
            return stamp, PackedNames.of(map(bytes, cursor.iternext(keys=True, values=False)))
    except lmdb.Error as error:
        raise SourceError(f"source lmdb: {path!r} cannot be read: {error}") from error


class Database:
    """The database in the file that `stamp` names, open for reading by key."""

    def __init__(self, stamp: FileStamp) -> None:
        environment = _open(stamp.path)
        stamp.require_unchanged()
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
            environment = lmdb.open(os.fsencode(file), subdir=False, readonly=True, lock=False, create=False)
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
        return f" (the folder holds a LevelDB; make an LMDB of it: blobfeed convert {path} {path}.lmdb)"
    return " (the folder has no data.mdb)"
