"""LMDB environments, each opened once in a process: LMDB's locks belong to the process and the file."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import lmdb

_opened: weakref.WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = weakref.WeakValueDictionary()
"""By process and file, device and inode, for a file has many paths. LMDB closes an environment when the last of those
that share it lets go of it."""


def open_environment(path: Path, **options: Any) -> lmdb.Environment:
    """Open the environment in the file or folder at `path`, or share it with its other users in this process.

    Raises lmdb.Error and OSError. A fork has to open it anew, and nothing of what it inherited may be used there.
    """
    environment = _opened.get(_key(path)) if data_file(path).exists() else None
    if environment is None:
        environment = lmdb.open(os.fsencode(path), **options)
        _opened[_key(path)] = environment
    return environment


def data_file(path: Path) -> Path:
    """Return the file of the database at `path`, which is a folder, or that file alone."""
    return path / "data.mdb" if path.is_dir() else path


def required_bytes(environment: lmdb.Environment) -> int:
    """Return the size that the file must have: LMDB believes its pages, and one beyond the end ends the process."""
    pages: int = environment.info()["last_pgno"] + 1
    page_bytes: int = environment.stat()["psize"]
    return pages * page_bytes


def _key(path: Path) -> tuple[int, int, int]:
    status = data_file(path).stat()
    return os.getpid(), status.st_dev, status.st_ino
