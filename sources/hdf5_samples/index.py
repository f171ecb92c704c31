"""The index of HDF5 files with one data set per sample: what is looked for, where each sample was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...workers.api import AnyArray, ArraySpec, IndexArray
from ..files import FileStamp, PackedNames, Stamp
from ..stored import Chunked, StoredArray, ThroughLibrary


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parts of a sample.

    data: for each top the path of its data set in the sample's group; a single empty path if each sample is a data set
    itself. labels: for each label top the name of its attribute. groups: those to look into, ("",) for the whole file.
    """

    data: Mapping[str, str]
    labels: Mapping[str, str]
    groups: tuple[str, ...]
    limit: int | None = None

    @property
    def in_groups(self) -> bool:
        """True if a sample is a group of data sets."""
        return all(self.data.values())


@dataclass(frozen=True, slots=True, eq=False)
class IndexedData:
    """The places of the samples of one top.

    `dtype`: as stored. `shape`: of each sample, or the largest extents of all if they vary; then `shapes`, int32 of
    shape (samples, axes), has them. `offsets`: int64 of shape (samples,), the byte of the file where a sample begins,
    or less than 0 if it is not in one piece and only the library can read it: -1 - k if parts of it lie in the files
    SamplesIndex.others[k]. `path`: of the data set in the sample's group, empty if the sample is the data set itself.
    """

    path: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offsets: NDArray[np.int64]
    shapes: NDArray[np.int32] | None

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.shape, self.dtype.newbyteorder("="), varies=self.shapes is not None)

    @property
    def needs_library(self) -> bool:
        """True if some sample is not in one piece."""
        return bool((self.offsets < 0).any())

    def from_byte(self, begins: IndexArray) -> IndexedData:
        """The same with offsets that count from the byte begins[i] of a range of all files."""
        return replace(self, offsets=np.where(self.offsets < 0, self.offsets, begins + self.offsets))

    def up_to(self, max_length: int | None) -> IndexedData:
        """The same with room for extents of at most `max_length` where they differ."""
        if max_length is None or self.shapes is None:
            return self
        same = (self.shapes == self.shape).all(axis=0).tolist()
        extents = zip(self.shape, same, strict=True)
        return replace(self, shape=tuple(extent if is_same else min(extent, max_length) for extent, is_same in extents))

    def require_as_scanned(self, index: int, sample: AnyArray) -> None:
        """Raises ValueError if sample `index`, as the library gives it, has another shape or type than it had."""
        shape = self.shape if self.shapes is None else tuple(self.shapes[index].tolist())
        if sample.shape != shape or sample.dtype.newbyteorder("=") != self.spec.dtype:
            raise ValueError(
                f"it has {sample.shape} {sample.dtype}, and had {shape} {self.dtype} when the files were scanned; "
                "start the training again, on files that no program writes to"
            )

    def sizes(self, indices: IndexArray) -> IndexArray | int:
        """Bytes of each of these samples, one number if all have the same."""
        if self.shapes is None:
            return self.spec.nbytes
        items: IndexArray = self.shapes[indices].prod(axis=1, dtype=np.int64)
        return items * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class SamplesIndex:
    """All samples of several files in their order: file f holds those from starts[f] up to starts[f + 1].

    Files that the limit leaves out come last, without a start. `labels`: for each label top the values of all samples,
    shape (samples, *shape of one). `others`: sets of files that links, external storage and virtual data sets lead to,
    the first one empty. `bad`: what is wrong with those samples that are not like the others.
    """

    starts: NDArray[np.int64]
    names: PackedNames
    data: Mapping[str, IndexedData]
    labels: Mapping[str, AnyArray]
    others: tuple[tuple[FileStamp, ...], ...] = ((),)
    bad: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index].decode(errors="surrogateescape")

    def array(self, data: IndexedData, index: int, file: Stamp) -> StoredArray:
        """Return where sample `index` of one top lies, as an array by itself."""
        offset, name = int(data.offsets[index]), self.name(index)
        shape = data.shape if data.shapes is None else tuple(data.shapes[index].tolist())
        name = f"{name}/{data.path}" if data.path else name
        if offset >= 0:
            return StoredArray(file, name, shape, data.dtype, Chunked(shape, np.array([offset])))
        return StoredArray(file, name, shape, data.dtype, ThroughLibrary(), others=self.others[-1 - offset])
