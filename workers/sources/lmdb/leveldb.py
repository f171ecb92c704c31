"""LevelDB databases of Datum records, in which older versions of Caffe kept their data.

LevelDB lets one process alone open a database, and writes to it even to read. So each process opens a folder of its
own, with links to the tables, which never change, and copies of the few small files that do. The folders lie in one of
the trainer's, which goes with the source; what a killed trainer leaves, the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import plyvel  # type: ignore[import-untyped]

from ...base.errors import ParameterError, SourceError
from ...base.source import Tops
from ..files.paths import PackedNames
from .source import LmdbSource

_PREFIX = "blobfeed-leveldb-"
_TABLES = (".ldb", ".sst")
_LOCK = "in use"
"""In a trainer's folder. The trainer keeps it locked as long as it lives: its id says nothing in another container."""


@dataclass(frozen=True, slots=True)
class LevelDbStamp:
    """Tells whether the database at `path` is still the one whose keys were listed: names, sizes and times."""

    path: str
    files: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, path: str) -> LevelDbStamp:
        found = [(each.name, each.stat()) for each in sorted(Path(path).iterdir()) if _belongs(each)]
        return cls(path, tuple((name, status.st_size, status.st_mtime_ns) for name, status in found))


class LevelDb:
    """The database at `path`, open for reading by key, through a folder in `room`."""

    def __init__(self, path: str, room: str) -> None:
        self._folder = tempfile.mkdtemp(dir=room)
        files = [each for each in Path(path).iterdir() if _belongs(each)]
        # LevelDB makes tables of what is in its logs when it opens, with numbers above theirs. A table of such a number
        # that a writer left unfinished would be written through a link, so it is copied.
        newest_log = max((_number(each) for each in files if each.suffix == ".log"), default=0)
        for each in files:
            if each.suffix in _TABLES and _number(each) < newest_log:
                (Path(self._folder) / each.name).symlink_to(each.resolve())
            else:
                shutil.copy(each, self._folder)
        try:
            self._opened = plyvel.DB(self._folder, create_if_missing=False)
        except plyvel.Error as error:
            shutil.rmtree(self._folder)
            raise SourceError(f"source leveldb: {path!r} cannot be opened: {error}") from error

    def keys(self) -> PackedNames:
        with self._opened.iterator(include_value=False) as iterator:
            return PackedNames.of(iterator)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._opened.get(key)
        return value

    def close(self) -> None:
        self._opened.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class LevelDbSource(LmdbSource):
    """What LmdbSource gives, from a LevelDB. Listing its keys reads all of it."""

    kind: ClassVar[str] = "leveldb"

    def __init__(self, options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> None:
        self._make_room()
        super().__init__(options, tops=tops, base_dir=base_dir)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() == self._owner:  # a copy in the trainer may outlive what it was made from
            self._make_room()

    def _make_room(self) -> None:
        """A folder for views. Loaders may use it until this object goes; a forked process has no part in it."""
        _remove_left_rooms()
        self._owner = os.getpid()
        self._room, lock = _locked_room(self._owner)
        weakref.finalize(self, _remove_room, self._room, lock, self._owner)

    def _list_keys(self, path: str) -> tuple[LevelDbStamp, PackedNames]:
        if not (Path(path) / "CURRENT").is_file():
            there = "a folder with CURRENT"
            if (Path(path) / "data.mdb").exists():
                there = "the folder holds an LMDB: source: {lmdb: …}, or backend: LMDB, reads it"
            raise ParameterError(f"source leveldb: there is no database {path!r} ({there}); check path")
        stamp, database = LevelDbStamp.of(path), LevelDb(path, self._room)
        try:
            return stamp, database.keys()
        finally:
            database.close()

    @cached_property
    def _database(self) -> LevelDb:
        if LevelDbStamp.of(self._path) != self._stamp:
            raise SourceError(
                f"source leveldb: {self._path!r} has changed since its keys were listed; leave a database alone while "
                "it is read, and start again"
            )
        return LevelDb(self._path, self._room)


def _number(file: Path) -> int:
    return int(file.stem) if file.stem.isdigit() else 0


def _belongs(file: Path) -> bool:
    """Whether it is a part of the database, and not a lock or a log in words."""
    return file.suffix in (*_TABLES, ".log") or file.name.startswith(("CURRENT", "MANIFEST-"))


def _locked_room(owner: int) -> tuple[str, int]:
    """A new folder, and the descriptor of its lock."""
    while True:
        room = tempfile.mkdtemp(prefix=f"{_PREFIX}{owner}-")
        with suppress(FileNotFoundError):  # another trainer took it for one that was left, before it was locked
            lock = _opened_lock(Path(room))
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (Path(room) / _LOCK).exists():
                return room, lock
            os.close(lock)


def _opened_lock(room: Path) -> int:
    return os.open(room / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _remove_room(room: str, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(room, ignore_errors=True)
        os.close(lock)


def _remove_left_rooms() -> None:
    """Remove the folders of our own trainers that are no more."""
    for room in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(FileNotFoundError, BlockingIOError):  # another rank removes them too; its trainer lives
            status = room.lstat()
            if status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode):
                with os.fdopen(_opened_lock(room)) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(room, ignore_errors=True)
