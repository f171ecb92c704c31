"""The other files that a data set leads to: by external links, external storage, or as a virtual data set.

A file that somebody else wrote could name any file of the machine in this way, and its bytes would be delivered as
samples. So others are read only if they lie below the folder of the file that was asked for, unless that is allowed.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...base.errors import SourceError
from .file import FileStamp
from .hdf5_library import h5py
from .library_rows import find_dataset, open_file


class ExternalFiles:
    """Judges what is found in the file at `path`; `allowed`: others may lie anywhere."""

    def __init__(self, path: str, *, allowed: bool) -> None:
        # The library takes names from the folder in which a file is after symbolic links are followed, or before.
        self._folders = {os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.realpath(path))}  # noqa: PTH100, PTH120
        self._allowed = allowed

    def stamps(self, dataset: h5py.Dataset, where: str) -> tuple[FileStamp, ...]:
        """The files beside its own one that hold parts of `dataset`; raises SourceError begun by `where`.

        That is: if one is missing, is too short or may not be read. The library itself would read zeros from what is
        too short, and put the fill value wherever a part of a virtual data set is missing.
        """
        self.require_own(dataset, where)
        found = dict.fromkeys(self._storage(dataset, where))
        if dataset.is_virtual:
            found |= dict.fromkeys(self._virtual(dataset, where, {(dataset.file.filename, dataset.name)}))
        return tuple(FileStamp.of(path) for path in found)

    def require_own(self, entry: h5py.HLObject, where: str) -> None:
        """Raises SourceError if an external link led to `entry` from a file that must not lead there."""
        self._require_allowed(entry.file.filename, where)

    def _require_allowed(self, path: str, where: str) -> None:
        normal = os.path.abspath(path)  # noqa: PTH100 - symbolic links are whoever made them's own affair
        if not self._allowed and not any(normal.startswith(os.path.join(folder, "")) for folder in self._folders):  # noqa: PTH118
            raise SourceError(
                f"{where} leads to {normal!r}, which is not below the folder of the HDF5 file itself; if you trust the "
                "file, set allow_external: true"
            )

    def _storage(self, dataset: h5py.Dataset, where: str) -> Iterator[str]:
        missing = math.prod(dataset.shape or ()) * dataset.dtype.itemsize
        for name, offset, size in dataset.external or ():
            path = self._located(dataset, name, where)
            part = min(size, missing)
            if os.path.getsize(path) < offset + part:  # noqa: PTH202
                raise SourceError(
                    f"{where} has bytes {offset} to {offset + part} of {path!r}, which is cut short: it has "
                    f"{os.path.getsize(path)}; copy it again"  # noqa: PTH202
                )
            missing -= part
            yield path

    def _virtual(self, dataset: h5py.Dataset, where: str, seen: set[tuple[str, str]]) -> Iterator[str]:
        for source in dataset.virtual_sources():
            if source.file_name == ".":
                paths = [dataset.file.filename]
            elif "%" in source.file_name:  # a pattern that the library fills with numbers
                pattern = re.sub(r"%\d*b", "*", source.file_name)
                found = sorted(glob.glob(self._joined(dataset, pattern, where)))
                paths = [self._located(dataset, path, where) for path in found]
            else:
                paths = [self._located(dataset, source.file_name, where)]
            for path in paths:
                if source.file_name != ".":
                    yield path
                if "%" not in source.dset_name and (path, source.dset_name) not in seen:
                    seen.add((path, source.dset_name))
                    with open_file(path, None) as file:
                        part = find_dataset(file, source.dset_name)
                        self.require_own(part, where)
                        yield from self._storage(part, where)
                        yield from self._virtual(part, where, seen) if part.is_virtual else ()

    def _located(self, dataset: h5py.Dataset, name: str, where: str) -> str:
        path = self._joined(dataset, name, where)
        if not Path(path).is_file():
            there = "is no regular file" if Path(path).exists() else "is not there"
            raise SourceError(f"{where} is partly stored in {path!r}, which {there}")
        return path

    def _joined(self, dataset: h5py.Dataset, name: str, where: str) -> str:
        path = os.path.join(os.path.dirname(dataset.file.filename), name)  # noqa: PTH118, PTH120
        self._require_allowed(path, where)
        return path
