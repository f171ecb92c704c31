"""One open HDF5 file in a loader: the readers of its arrays, and what may go wrong while they read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ..errors import SourceError
from ..specs import IndexArray, NamedRows, RaggedRows, Rows
from .hdf5_dims import Arrangement
from .hdf5_layout import Part
from .hdf5_options import HDF5Options


class Reader(Protocol):
    """Reads samples of one data set."""

    def read(self, indices: IndexArray, positions: IndexArray, rows: Rows) -> None:
        """Put sample indices[i] into rows[positions[i]]; the sample's axes are in their stored order."""


class OpenPart:
    """Reads samples of one file; raises SourceError that names file and data set."""

    def __init__(self, part: Part, arrangements: Mapping[str, Arrangement], options: HDF5Options) -> None:
        from .hdf5_library import open_file, open_rows

        _require_unchanged(part)
        self._part = part
        self._arrangements = arrangements
        self._file = open_file(part.path, options.locking, options.chunk_cache_bytes)
        self._readers: dict[str, Reader] = {
            top: open_rows(self._file, array, arrangements[top].sample_axis) for top, array in part.arrays.items()
        }

    def read(self, indices: IndexArray, positions: IndexArray, out: NamedRows) -> None:
        """Put the file's sample indices[i] into row positions[i] of `out`."""
        for top, reader in self._readers.items():
            rows = out[top]
            if not isinstance(rows, RaggedRows):
                rows = self._arrangements[top].as_stored(rows)
            try:
                reader.read(indices, positions, rows)
            except (OSError, RuntimeError, ValueError) as error:
                raise SourceError(f"{self._part.arrays[top]}: reading samples failed: {error}") from error

    def close(self) -> None:
        self._file.close()


def _require_unchanged(part: Part) -> None:
    try:
        now = Path(part.path).stat()
    except OSError as error:
        raise SourceError(f"{part.path}: it was there when training started, and now: {error.strerror}") from error
    if (now.st_size, now.st_mtime_ns) != (part.size, part.mtime_ns):
        raise SourceError(f"{part.path}: it was changed since training started ({part.size} → {now.st_size} bytes)")
