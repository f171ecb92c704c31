"""Indices of files that take time to make: kept for the next run in the cache folder, ~/.cache/blobfeed.

A file holds a line `blobfeed NAME index VERSION KEY`, a checksum, and the index as msgpack. The folder belongs to
blobfeed: damage there is a warning, and the files used longest ago are removed.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

from ...workers.base import blake2b, in_folder, read_whole, text_digest, write_whole
from .remote import Stamp

_VERSION = 9
_CHECKSUM_BYTES = 16
_FOLDER_BYTES = 1 << 30
_OURS = re.compile(r"[0-9a-f]{64}\.index|\.[0-9a-f]{64}\.index\.[0-9a-f]{16}")
"""Names in the folder: indices, and the temporary files of `write_whole`, which a writer that is killed leaves."""

_Index = TypeVar("_Index")
_Made = TypeVar("_Made")
_log = logging.getLogger("blobfeed")


def kept(
    name: str,
    files: Sequence[Stamp],
    options: object,
    kind: type[_Index],
    make: Callable[[], _Made],
    still: Callable[[_Index], _Index | None] = lambda index: index,
) -> _Index | _Made:
    """Return the index that an earlier process kept of the same `files` and `options`, else that of `make`.

    `options`: all that counts beside the files, by its `repr`. `still`: returns the kept index brought up to date, or
    None if it no longer holds. A None that `make` returns is not kept.
    """
    key = text_digest(repr(([stamp.exact for stamp in files], options)))
    header = f"blobfeed {name} index {_VERSION} {key}\n".encode()
    file = _in_cache_folder(header)
    if file is None:
        return make()
    found: _Index | None = None
    try:
        found = _read(file, header, kind)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, TypeError, msgspec.MsgspecError) as error:
        _log.warning("the index %s cannot be read and is made again: %s", file, error)
    if found is not None and (found := still(found)) is not None:
        with suppress(OSError):  # a folder that is not ours to write to: its indices serve, and nothing is removed
            os.utime(file)
        return found
    index = make()
    if index is not None:
        _keep(file, header + _packed(index))
    return index


def _keep(file: Path, content: bytes) -> None:
    """Write `content` to `file` in the cache folder, and make room for it there; failures are a warning."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
        _remove_oldest(file.parent)
    except OSError as error:
        _log.warning("the index %s cannot be kept: %s", file, error.strerror)


def _in_cache_folder(header: bytes) -> Path | None:
    """The file for the index of this header, None if the user has no home."""
    folder = in_folder(Path(), os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if folder.parts[0] == "~":
        return None
    return folder / "blobfeed" / f"{text_digest(header.decode())}.index"


def _remove_oldest(folder: Path) -> None:
    """Remove the files used longest ago until the rest have at most `_FOLDER_BYTES`; the latest one stays in any case.

    Raises OSError.
    """
    found: list[tuple[int, int, Path]] = []
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another process removes it, or gives it its final name
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, status.st_size, path))
    found.sort()
    total = sum(size for _, size, _ in found)
    for _, size, path in found[:-1]:
        if total <= _FOLDER_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size


def _read(path: Path, header: bytes, kind: type[_Index]) -> _Index:
    """The index at `path`; raises OSError, ValueError, TypeError or MsgspecError."""
    content = memoryview(read_whole(path))
    if content[: len(header)] != header:
        raise ValueError("it does not name itself as one")
    content = content[len(header) :]
    if _checksum(content[_CHECKSUM_BYTES:]) != content[:_CHECKSUM_BYTES]:
        raise ValueError("it is damaged, its checksum is another")
    return msgspec.msgpack.decode(content[_CHECKSUM_BYTES:], type=kind, dec_hook=_as_was)


def _packed(index: object) -> bytes:
    """`index` behind its checksum: damage on the disk must not become other samples."""
    stored = msgspec.msgpack.encode(index, enc_hook=_plain)
    return _checksum(stored) + stored


def _checksum(stored: bytes | memoryview) -> bytes:
    return blake2b(stored, digest_size=_CHECKSUM_BYTES).digest()


def _plain(value: Any) -> Any:
    """Return what msgpack does not know, an array or a type, by what it does know."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return np.dtype(value).str


def _as_was(kind: type, stored: Any) -> Any:
    """The array or the type, whichever `kind` says, that `_plain` gave as `stored`."""
    if get_origin(kind) is np.dtype:
        return np.dtype(stored)
    dtype, shape, content = stored
    return np.frombuffer(content, dtype).reshape(shape)
