"""The index of HDF5 archives with one data set per sample: what is looked for, and where each sample was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...base.specs import AnyArray, ArraySpec, IndexArray
from ..stored.file import FileStamp
from ..stored.runs import by_group


@dataclass(frozen=True, slots=True)
class Wanted:
    """What makes a sample.

    data: for each top the path of its data set in the sample's group; a single empty path where each sample is a data
    set itself. labels: for each label top the name of its attribute. groups: where to look, ("",) for everywhere.
    """

    data: Mapping[str, str]
    labels: Mapping[str, str]
    groups: tuple[str, ...]
    limit: int | None = None

    @property
    def in_groups(self) -> bool:
        """Whether a sample is a group of data sets."""
        return all(self.data.values())


@dataclass(frozen=True, slots=True, eq=False)
class IndexedData:
    """Where the samples of one top lie.

    `dtype`: as stored. `shape`: of each sample, or the largest extents of all where they vary; then `shapes`, int32 of
    shape (samples, axes), has them. `offsets`: int64 of shape (samples,), the byte in the file where a sample begins,
    or -1 where it is not in one piece and only the library can read it. `path`: of the data set in the sample's group,
    empty where the sample is the data set itself.
    """

    path: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offsets: NDArray[np.int64]
    shapes: NDArray[np.int32] | None

    @property
    def spec(self) -> ArraySpec:
        """What a sample is once it is delivered."""
        return ArraySpec(self.shape, self.dtype.newbyteorder("="), varies=self.shapes is not None)

    @property
    def needs_library(self) -> bool:
        """Whether some sample is not in one piece."""
        return bool((self.offsets < 0).any())

    def sizes(self, indices: IndexArray) -> IndexArray:
        """Bytes of these samples."""
        if self.shapes is None:
            return np.full(len(indices), self.spec.nbytes)
        items: IndexArray = self.shapes[indices].prod(axis=1, dtype=np.int64)
        return items * self.dtype.itemsize


class Names:
    """Many names in one piece of memory: a list of a million strings would take 80 MB in each loader."""

    def __init__(self, text: bytes, ends: NDArray[np.int64]) -> None:
        self.text = text
        self.ends = ends

    @classmethod
    def of(cls, names: Sequence[str]) -> Names:
        encoded = [name.encode() for name in names]
        return cls(b"".join(encoded), np.cumsum([len(name) for name in encoded], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> str:
        start = int(self.ends[number - 1]) if number else 0
        return self.text[start : int(self.ends[number])].decode()


@dataclass(frozen=True, slots=True, eq=False)
class SamplesIndex:
    """All samples of several files in their order: file f holds those from starts[f] up to starts[f + 1].

    `labels`: for each label top the values of all samples, shape (samples, *shape of one).
    """

    files: tuple[FileStamp, ...]
    starts: NDArray[np.int64]
    names: Names
    data: Mapping[str, IndexedData]
    labels: Mapping[str, AnyArray]

    def __len__(self) -> int:
        return len(self.names)

    def by_file(self, indices: IndexArray) -> Iterator[tuple[FileStamp, IndexArray]]:
        """The files that these samples lie in, each with the positions in `indices` of those it holds (ascending)."""
        if len(self.files) == 1:
            yield self.files[0], np.arange(len(indices))
            return
        for number, positions in by_group(np.searchsorted(self.starts, indices, side="right") - 1):
            yield self.files[number], positions

    def where(self, index: int) -> str:
        """The file of sample `index` and its name in there."""
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return f"{self.files[number].path}:{self.names[index]}"
