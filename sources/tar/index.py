"""The places of the members of tar files, grouped into samples as WebDataset groups them."""

from __future__ import annotations

import logging
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ...workers.base import SourceError
from ..files import PackedNames, RangeStream, RemoteStamp, Stamp

_READ_AHEAD_BYTES = 8 << 20

_log = logging.getLogger("blobfeed")


@dataclass(frozen=True, slots=True, eq=False)
class TarIndex:
    """The samples of one tar file in its order.

    `keys`: a member's path up to the first dot of its last part; neighbours of one key are a sample. `extensions`: the
    rest of the path without that dot. `offsets`, `sizes`: of each member's bytes, int64 of shape (samples, extensions);
    the offset is -1 if a sample has no such member.
    """

    keys: PackedNames
    extensions: tuple[str, ...]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def column(self, extension: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if extension not in self.extensions:
            return np.full(len(self.keys), -1, np.int64), np.zeros(len(self.keys), np.int64)
        number = self.extensions.index(extension)
        return self.offsets[:, number], self.sizes[:, number]


def make_index(stamp: Stamp) -> TarIndex:
    """Look through the tar file once; raises SourceError."""
    keys: list[bytes] = []
    samples: list[dict[str, tuple[int, int]]] = []
    symbolic: list[str] = []
    try:
        # Of an object all is looked through: so it is read in large pieces.
        stream = RangeStream(stamp, _READ_AHEAD_BYTES) if isinstance(stamp, RemoteStamp) else None
        with tarfile.open(stamp.path, "r:", stream) as tar:
            # tarfile keeps every member it has seen, 1 kB each.
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]
                if member.size < 0:  # the next member would lie before this one, and the search would never end
                    raise tarfile.ReadError(f"{member.name!r} has the size {member.size}")
                if member.issym():
                    symbolic.append(member.name)
                if not (member.isreg() or member.islnk()):
                    continue
                key, extension = _split(member.name)
                if not extension:  # README, or ._0.jpg, which macOS writes beside 0.jpg: WebDataset skips them, too
                    continue
                if not keys or keys[-1] != key:
                    keys.append(key)
                    samples.append({})
                if extension in samples[-1]:
                    raise SourceError(f"source tar: {stamp.path}: sample {key!r} has two members {extension!r}")
                if member.islnk():  # tar stores a file of several names once
                    raise SourceError(
                        f"source tar: {stamp.path}: {member.name!r} is a hard link to {member.linkname!r}: write it "
                        "again with tar --hard-dereference"
                    )
                if member.issparse() or member.offset_data + member.size > stamp.size:
                    raise SourceError(
                        f"source tar: {stamp.path}: {member.name!r} is sparse or cut short; write it again"
                    )
                samples[-1][extension] = member.offset_data, member.size
            _require_end(tar, stamp)
    except SourceError:
        raise
    except Exception as error:  # damaged headers make tarfile raise ValueError, OverflowError, MemoryError
        raise SourceError(
            f"source tar: {stamp.path!r} cannot be read as a tar file: {error}; write an empty, damaged or cut one "
            "again, and unpack a compressed one, since its members cannot be read one by one"
        ) from error
    if symbolic:
        _log.warning(
            "source tar: %s: %d symbolic links, such as %r, are skipped: write it with tar --dereference",
            stamp.path,
            len(symbolic),
            symbolic[0],
        )
    return _packed(keys, samples)


def _require_end(tar: tarfile.TarFile, stamp: Stamp) -> None:
    """Raises SourceError if the tar file goes on: tarfile takes a damaged header for its end."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if any(tar.fileobj.read(tarfile.BLOCKSIZE)):
        raise SourceError(f"source tar: {stamp.path}: it is damaged at byte {tar.offset}, where a member should begin")
    while rest := tar.fileobj.read(_READ_AHEAD_BYTES):
        if rest.strip(b"\0"):
            raise SourceError(
                f"source tar: {stamp.path}: it ends at byte {tar.offset}, and more follows: tar files that were put "
                "end to end by cat must be named one by one, or put together by tar --concatenate"
            )


def _split(name: str) -> tuple[bytes, str]:
    path = PurePosixPath(name)
    base, _, extension = path.name.partition(".")
    # Bytes that are no UTF-8 stand in the name as surrogates.
    key = str(path.parent / base).encode(errors="surrogateescape")
    text = extension.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return key, text.lower() if base else ""


def _packed(keys: Sequence[bytes], samples: Sequence[dict[str, tuple[int, int]]]) -> TarIndex:
    extensions = tuple(dict.fromkeys(extension for sample in samples for extension in sample))
    places = np.full((len(samples), len(extensions), 2), (-1, 0), np.int64)
    numbers = {extension: number for number, extension in enumerate(extensions)}
    for row, sample in enumerate(samples):
        for extension, place in sample.items():
            places[row, numbers[extension]] = place
    return TarIndex(PackedNames.of(keys), extensions, places[..., 0].copy(), places[..., 1].copy())
