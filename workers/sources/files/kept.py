"""Indices of files that cost some time to make: kept below the user's cache folder for the next run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

from ...base.files import in_folder, read_whole, write_whole
from ...base.keys import blake2b, text_digest

_VERSION = 3
_CHECKSUM_BYTES = 16

_Index = TypeVar("_Index")
_Made = TypeVar("_Made")
_log = logging.getLogger("blobfeed")


def kept(made_from: object, kind: type[_Index], make: Callable[[], _Made]) -> _Index | _Made:
    """What `make` gives, or what an earlier process kept under the same `made_from`, by its `repr`.

    A None is not kept. `made_from` should name files, their sizes and versions, and all options that count. Nothing
    depends on the folder: if it cannot be written or what lies there is damaged, `make` is asked.
    """
    name = text_digest(repr((_VERSION, kind.__qualname__, made_from)))
    path = in_folder(Path(), os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "blobfeed" / f"{name}.index"
    if path.parts[0] == "~":  # the user has no home
        return make()
    try:
        return unpacked(memoryview(read_whole(path)), kind)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        _log.warning("the index %s cannot be read and is made again: %s", path, error)
    index = make()
    if index is None:
        return index
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, packed(index))
    except OSError as error:
        _log.warning("the index %s cannot be kept: %s", path, error.strerror)
    return index


def packed(index: object) -> bytes:
    """`index` behind its checksum: damage on the disk must not become other samples."""
    stored = msgspec.msgpack.encode(index, enc_hook=_plain)
    return _checksum(stored) + stored


def unpacked(content: memoryview, kind: type[_Index]) -> _Index:
    """The index that was `packed`; raises ValueError or MsgspecError."""
    if _checksum(content[_CHECKSUM_BYTES:]) != content[:_CHECKSUM_BYTES]:
        raise ValueError("it is damaged, its checksum is another")
    return msgspec.msgpack.decode(content[_CHECKSUM_BYTES:], type=kind, dec_hook=_as_was)


def _checksum(stored: bytes | memoryview) -> bytes:
    return blake2b(stored, digest_size=_CHECKSUM_BYTES).digest()


def _plain(value: Any) -> Any:
    """What msgpack does not know, an array or a type, by what it does know."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return np.dtype(value).str


def _as_was(kind: type, stored: Any) -> Any:
    """The array or the type, whichever `kind` says, that `_plain` gave as `stored`."""
    if get_origin(kind) is np.dtype:
        return np.dtype(stored)
    dtype, shape, content = stored
    return np.frombuffer(content, dtype).reshape(shape)
