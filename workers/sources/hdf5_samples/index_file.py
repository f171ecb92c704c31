"""The index of a large archive in a file of its own: made once, as long as the archive stays as it is."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from ...base.errors import SourceError
from ..stored.file import FileStamp
from .index import IndexedData, Names, SamplesIndex

_FORMAT = "blobfeed hdf5_samples index 1"


class _About(msgspec.Struct, frozen=True):
    """What the file says of itself; `key` is what the index was made from, `data` has top, path, type and shape."""

    format: str
    key: str
    files: list[tuple[str, int, int]]
    data: list[tuple[str, str, str, tuple[int, ...]]]
    labels: list[str]


def save_index(index: SamplesIndex, path: Path, key: str) -> None:
    """Write `index` to `path`, under a `key` that says what it was made from: all at once or not at all."""
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, allow_pickle=False, **_as_arrays(index, key))
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise SourceError(f"source hdf5_samples: index_cache {str(path)!r} cannot be written: {error}") from error


def load_index(path: Path, key: str) -> SamplesIndex | None:
    """The index in the file at `path`, or None where there is none or it was made under another `key`.

    Raises SourceError where the file is no index at all: it is not ours to write over.
    """
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = msgspec.json.decode(arrays["about"].tobytes(), type=_About)
            return _from_arrays(arrays, about) if (about.format, about.key) == (_FORMAT, key) else None
    except (OSError, ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
        raise SourceError(
            f"source hdf5_samples: index_cache {str(path)!r} exists and is no index written by this source ({error}); "
            "remove it or name another path"
        ) from error


def _as_arrays(index: SamplesIndex, key: str) -> dict[str, NDArray[Any]]:
    about = _About(
        _FORMAT,
        key,
        [(stamp.path, stamp.size, stamp.mtime_ns) for stamp in index.files],
        [(top, data.path, data.dtype.str, data.shape) for top, data in index.data.items()],
        list(index.labels),
    )
    arrays: dict[str, NDArray[Any]] = {
        "about": np.frombuffer(msgspec.json.encode(about), np.uint8),
        "starts": index.starts,
        "names": np.frombuffer(index.names.text, np.uint8),
        "name_ends": index.names.ends,
    }
    for number, data in enumerate(index.data.values()):
        arrays[f"offsets_{number}"] = data.offsets
        if data.shapes is not None:
            arrays[f"shapes_{number}"] = data.shapes
    return arrays | {f"label_{number}": values for number, values in enumerate(index.labels.values())}


def _from_arrays(arrays: NpzFile, about: _About) -> SamplesIndex:
    data = {
        top: IndexedData(path, np.dtype(dtype), shape, arrays[f"offsets_{number}"], arrays.get(f"shapes_{number}"))
        for number, (top, path, dtype, shape) in enumerate(about.data)
    }
    return SamplesIndex(
        files=tuple(FileStamp(*stamp) for stamp in about.files),
        starts=arrays["starts"],
        names=Names(arrays["names"].tobytes(), arrays["name_ends"]),
        data=data,
        labels={top: arrays[f"label_{number}"] for number, top in enumerate(about.labels)},
    )
