"""The other files that a data set leads to: by external links, external storage, or as a virtual data set.

A file from another author could name any file of the machine in this way, and its bytes would be delivered as
samples. So others are read only if they lie below the folder of the file that was asked for, unless that is allowed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...workers.base import SourceError
from ..files import FileStamp, Locking, RemoteStamp, Stamp
from .hdf5_library import find_dataset, h5py, open_file, require_filters


class ExternalFiles:
    """Judges what is found in the file `stamp`; `allowed`: others may lie anywhere. An object leads to no others."""

    def __init__(self, stamp: Stamp, locking: Locking, *, allowed: bool) -> None:
        self._locking = locking
        path = stamp.path
        self._is_remote = isinstance(stamp, RemoteStamp)
        # The library takes names from the folder in which a file is after symbolic links are followed, or before.
        self._folders = {os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.realpath(path))}  # noqa: PTH100, PTH120
        self._allowed = allowed

    def stamps(self, dataset: h5py.Dataset, where: str) -> tuple[FileStamp, ...]:
        """The files beside its own one that hold parts of `dataset`; raises SourceError begun by `where`.

        That is: if one is missing, is too short or may not be read. The library itself would read zeros from what is
        too short, and put the fill value wherever a part of a virtual data set is missing.
        """
        if self._is_remote and (dataset.external or dataset.is_virtual):
            raise SourceError(
                f"{where} lies partly in other files, which is not read from object storage; copy it into one file, "
                "such as by h5repack"
            )
        self.require_own(dataset, where)
        found = dict.fromkeys(self._storage(dataset, where))
        if dataset.is_virtual:
            found |= dict.fromkeys(self._virtual(dataset, where, {(dataset.file.filename, dataset.name)}))
        return tuple(FileStamp.of(path) for path in found)

    def require_own(self, entry: h5py.HLObject, where: str) -> None:
        """Raises SourceError if an external link led to `entry` from a file that must not lead there."""
        if not self._is_remote:  # a file that is open as a stream cannot lead to others
            self._require_allowed(entry.file.filename, where)

    def _require_allowed(self, path: str, where: str) -> None:
        normal = os.path.abspath(path)  # noqa: PTH100 - symbolic links are not followed
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
        for file_name, name in _parts(dataset):
            path = dataset.file.filename if file_name == "." else self._located(dataset, file_name, where, virtual=True)
            if file_name != ".":
                yield path
            if (path, name) not in seen:
                seen.add((path, name))
                with open_file(FileStamp.of(path), self._locking) as file:
                    part = find_dataset(file, name)
                    self.require_own(part, where)
                    require_filters(part, f"{where}: its part {path}:{name}")
                    if part.file.filename != path:
                        yield part.file.filename
                    yield from self._storage(part, where)
                    yield from self._virtual(part, where, seen) if part.is_virtual else ()

    def _located(self, dataset: h5py.Dataset, name: str, where: str, *, virtual: bool = False) -> str:
        path = os.path.join(os.path.dirname(dataset.file.filename), name)  # noqa: PTH118, PTH120
        if virtual and not Path(path).exists() and not Path(name).exists():  # the library looks at both before
            path = os.path.join(os.path.dirname(os.path.realpath(dataset.file.filename)), name)  # noqa: PTH118, PTH120
        self._require_allowed(path, where)
        if not Path(path).is_file():
            there = "is no regular file" if Path(path).exists() else "is not there"
            raise SourceError(f"{where} is partly stored in {path!r}, which {there}")
        return path


def _parts(dataset: h5py.Dataset) -> Iterator[tuple[str, str]]:
    """(file, data set) of each part of a virtual data set.

    One entry may stand for any number of parts: "%b" in a name is then the number of the block along the axis without
    end. All are listed: to look only at files that fit the pattern would miss a link behind the name of a data set.
    """
    for source in dataset.virtual_sources():
        for block in range(_blocks(source, dataset.shape)):
            yield _numbered(source.file_name, block), _numbered(source.dset_name, block)


def _numbered(name: str, block: int) -> str:
    return re.sub("%[b%]", lambda found: str(block) if found[0] == "%b" else "%", name)


def _blocks(source: h5py.VDSmap, shape: tuple[int, ...]) -> int:
    if "%b" not in (source.file_name + "\0" + source.dset_name).replace("%%", ""):
        return 1
    start, stride, count, _ = source.vspace.get_regular_hyperslab()
    axis = count.index(h5py.h5s.UNLIMITED)
    return int(-(-(shape[axis] - start[axis]) // stride[axis]))
