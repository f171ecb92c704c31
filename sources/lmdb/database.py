"""An LMDB database that is read and never written: opened once in a process, without its lock file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb

from ...workers.base import ParameterError, SourceError
from ..files import FileStamp, PackedNames, Store
from ..files.environments import data_file, open_environment, required_bytes


def list_keys(path: str) -> tuple[FileStamp, PackedNames]:
    """All keys of the database at `path`, in its order; raises SourceError."""
    environment = _open(path)
    try:
        stamp = FileStamp.of(str(data_file(Path(path))))
        with environment.begin() as transaction, transaction.cursor() as cursor:
            return stamp, PackedNames.of(map(bytes, cursor.iternext(keys=True, values=False)))
    except lmdb.Error as error:
        raise SourceError(f"source lmdb: {path!r} cannot be read: {error}") from error


class Database(Store[bytes]):
    """The database in the file that `stamp` names; a place is a key.

    `begin` raises SourceError if the file was changed before this process opened it; a later change is not noticed.
    """

    modules = (__name__,)

    def __init__(self, stamp: FileStamp) -> None:
        self._stamp, self.stamps = stamp, (stamp,)
        self._opened: tuple[lmdb.Environment, lmdb.Transaction] | None = None

    def begin(self) -> None:
        # A forked copy reads on: nothing is locked, and the map is the file's. To open it once more LMDB refuses.
        if self._opened is None:
            environment = _open(self._stamp.path)
            self._stamp.require_unchanged()
            # LMDB closes the environment when the last source lets go of it.
            self._opened = environment, environment.begin()

    def read(self, key: bytes) -> bytes:
        assert self._opened
        try:
            record: Any = self._opened[1].get(key)
        except lmdb.Error as error:
            raise ValueError(str(error)) from error
        if record is None:
            raise ValueError("the database has no such key")
        return bytes(record)

    def close(self) -> None:
        if self._opened:
            self._opened[1].abort()
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}


def _open(path: str) -> lmdb.Environment:
    file = data_file(Path(path))
    if not file.is_file():
        raise ParameterError(f"source lmdb: there is no database {path!r}{_what_is_there(Path(path))}; check path")
    try:
        environment = open_environment(file, subdir=False, readonly=True, lock=False, create=False)
    except lmdb.Error as error:
        hint = " Close it where your program opens it itself." if "already open" in str(error) else ""
        raise SourceError(f"source lmdb: {path!r} cannot be opened: {error}{hint}") from error
    if (size := file.stat().st_size) < (needed := required_bytes(environment)):
        raise SourceError(
            f"source lmdb: {str(file)!r} is cut short: it needs {needed} bytes and has {size}; copy it again"
        )
    return environment


def _what_is_there(path: Path) -> str:
    if not path.is_dir():
        return ""
    if (path / "CURRENT").exists():
        return " (the folder holds a LevelDB: make an LMDB of it, as docs/caffe.md says)"
    return " (the folder has no data.mdb)"
