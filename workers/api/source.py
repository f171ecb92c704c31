"""The interface of a source of samples: a length, the specs of its arrays, and `read(indices, out)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from ..base import ParameterError, blake2b, text_digest
from .specs import AnyArray, ArraySpec, IndexArray, NamedRows, RaggedRows, allocate_rows

Tops = Sequence[str] | None
"""The names of the arrays to read from a source, in order; None for all, or for data and label."""


class Needed(NamedTuple):
    """The part and the size of a picture that a crop needs.

    `least`: the smallest (height, width) that a copy of the whole may have. `part`: top, left, height and width.
    """

    least: tuple[int, int]
    part: tuple[int, int, int, int]


Needs = Callable[[int, tuple[int, int]], Needed]
"""Takes a row and the (height, width) of its picture, or of a smaller copy, of which the part then is."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """The largest sample of a top that varies in size: sample `index` has `items` items, the median sample `median`."""

    index: int
    items: int
    median: float

    @classmethod
    def of(cls, sizes: IndexArray) -> Outlier:
        """Return that of samples of these sizes, at least one."""
        index = int(np.argmax(sizes))
        return cls(index, int(sizes[index]), float(np.median(sizes)))


class Boxes(NamedTuple):
    """A part of each of several samples: of the i-th one the box that begins at corners[i] and has `shape`.

    `corners`: shape (samples, axes of a sample).
    """

    corners: IndexArray
    shape: tuple[int, ...]

    def of(self, members: IndexArray | slice) -> Boxes:
        """Return the boxes of some of the samples."""
        return Boxes(self.corners[members], self.shape)


class CacheCounts(NamedTuple):
    """Counts of one process: samples found in the decoded cache, samples read from the source instead, and cached
    samples that were damaged and decoded again.
    """

    hits: int = 0
    misses: int = 0
    damaged: int = 0

    @classmethod
    def total(cls, counts: Iterable[CacheCounts]) -> CacheCounts:
        """Sum the counts of several processes."""
        return cls(*map(sum, zip(*counts, strict=True)))


class AnySource(ABC):
    """The base of all sources: of samples by index (Source), and of streams."""

    kind: str = "source"
    """The key under `source:` in the parameters that chooses this class."""

    modules: tuple[str, ...] = ()
    """Modules that reading needs. They are imported once, before the loaders are forked, which then share the pages."""

    descriptors: tuple[int, ...] = ()
    """File descriptors that reading needs; the loaders inherit them under the same numbers."""

    cache_counts: CacheCounts = CacheCounts()
    """The counts of this process."""

    rows_at_once: int = 1
    """The minimum number of samples in a task: so many `read` fetches concurrently, because it mostly waits."""

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, ArraySpec]:
        """The shape and type of each array of a sample, by name, in the order of the tops."""

    @property
    def known_samples(self) -> int:
        """The number of samples; 0 if it is known only when all have been read."""
        return 0

    @property
    def runs_user_code(self) -> bool:
        """True if a class of this source is not blobfeed's own: what it does in the trainer may take any time."""
        return not is_ours(self)

    @property
    def stores_rows(self) -> bool:
        """True if samples are stored, in memory or files, in the form of `read`'s rows, so that reading is copying."""
        return False

    @property
    def in_memory(self) -> bool:
        """True if all samples lie in memory and no code of a user's reads them."""
        return False

    @property
    def gathered(self) -> Collection[str]:
        """The names for which `read` also accepts ConvertedRows: their samples are stored as bytes in a mapped file."""
        return ()

    @property
    def cuts(self) -> Collection[str]:
        """The names of which `Source.read_parts` reads less than whole samples."""
        return ()

    @property
    def outliers(self) -> Mapping[str, Outlier]:
        """The largest sample of each top whose size was looked up; setup names it if it alone makes batches large."""
        return {}

    def corners(self, indices: IndexArray) -> Mapping[str, IndexArray]:
        """Return where these patches begin, by axis; raises ParameterError for samples that are no patches."""
        raise ParameterError(
            f"source {self.kind}: its samples are no patches, which have corners: 'patch' makes some of a stored source"
        )

    def without_close(self) -> list[AnySource]:
        """Return the sources in this one that keep what they open, since their class has no `close`."""
        return []

    def where(self, index: int) -> str:
        """Return the file and the entry in it that hold sample `index`, for error messages.

        A loader calls it for the first sample of each task and for long ones, for those from another thread, so it
        should read nothing.
        """
        return f"{type(self).__name__} sample {index}"

    def check_samples(self) -> None:  # noqa: B027 - most sources know nothing of samples that they have not read
        """Raises SourceError or SampleError for what is known to be wrong with single samples.

        Setup calls it, unless `on_error: replace` covers them, or a sampler may leave them out. Each of these samples
        is an error when it is read, in any case.
        """

    def close(self) -> None:  # noqa: B027 - a source without files has nothing to close
        """Release handles and maps; the next read opens them again."""


def is_ours(thing: object) -> bool:
    """Return true if the class of `thing`, or the function that it is, is blobfeed's own."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "blobfeed"


class Source(AnySource):
    """Samples by index.

    The life of a source: the trainer constructs it. The constructor opens the files, checks everything that can be
    checked before training (ParameterError for a bad option, SourceError for bad file contents), and builds its index.
    Then the source is pickled to the loaders. There it opens its files again at the first read, never across a fork. So
    `__getstate__` must drop handles and maps, and keep the index. A source must not import torch.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def read(self, indices: IndexArray, out: NamedRows) -> None:
        """Write sample indices[i] into row i of every array of `out`, for all i.

        `indices`: shape (rows,) int64, in any order, repeats allowed. `out`: for each name of `specs` an array of
        shape (rows, *spec.shape), C-contiguous, or RaggedRows if the spec varies. It is memory of the batch slot
        itself: write into it, do not replace it. Raises any exception for a bad sample; the loader then reads the
        same rows one by one to find that sample.
        """

    def read_at(self, indices: IndexArray, positions: IndexArray, out: NamedRows) -> None:
        """Write sample indices[i] into row positions[i] of every array of `out`; the positions ascend.

        As here, it costs a second copy: a source that can write to any row has a `read_at` of its own.
        """
        read = allocate_rows(self.specs, len(positions))
        self.read(indices, read)
        for name, target in out.items():
            rows = read[name]
            if isinstance(rows, RaggedRows) and isinstance(target, RaggedRows):
                target.memory[positions], target.shapes[positions] = rows.memory, rows.shapes
            elif isinstance(rows, np.ndarray) and isinstance(target, np.ndarray):
                target[positions] = rows

    def lend(self, indices: IndexArray) -> Iterable[Mapping[str, AnyArray]] | None:
        """Return views of these samples, by name, in the source's own memory; None if the source has no such memory.

        The arrays are read-only and have the shapes and values of `read`, with any strides. A crop that needs a part of
        each sample thereby saves a copy of the whole. A sequence is valid until the next call: all samples are in
        memory. An iterator decodes each sample on demand, and each is valid until the next one.
        """
        return None

    def lend_needed(self, indices: IndexArray, needs: Needs) -> Iterable[Mapping[str, AnyArray]] | None:
        """Return views as `lend`, of pictures of which a crop needs a part: to decode no more takes less time.

        A view has the shape of the whole picture, or of a smaller copy, and any values beside the part. That is for
        the first top; all others are whole.
        """
        return self.lend(indices)

    def read_parts(self, indices: IndexArray, parts: Mapping[str, Boxes], out: NamedRows) -> None:
        """Write as `read`; of a name in `parts`, which are among `cuts`, only that box of each sample."""
        raise NotImplementedError

    @property
    def known_samples(self) -> int:
        return len(self)

    @property
    def chunk_samples(self) -> int | None:
        """The samples in one storage chunk if reading one of them costs as much as reading all; else None."""
        return None

    @property
    def chunks_are_cheap(self) -> bool:
        """True if a chunk is read in a small part of the time that its samples take, as pictures in Parquet are.

        Then any loader may make any of its samples; otherwise one loader makes all samples of the same chunks.
        """
        return False

    def without_close(self) -> list[AnySource]:
        return [self] if type(self).close is Source.close else []

    def will_need(self, indices: IndexArray) -> None:
        """Start reading ahead: these samples will be read soon. Must not wait for the disk."""

    def will_need_parts(self, indices: IndexArray, parts: Mapping[str, Boxes]) -> None:
        """Start reading ahead what `read_parts` will read."""

    def fingerprint(self) -> str:
        """Return a name of the source's content for caches and resuming: kind, paths, sizes, times, options.

        It must change whenever the result of `read` may have changed. This default covers the class, the specs, and
        plain attributes: numbers, texts, paths, and lists and dicts of them. It ignores attributes that are None,
        since a file handle is None until the file is open.
        """
        given = sorted((name, value) for name, value in vars(self).items() if value is not None)
        plain = [(name, written) for name, value in given if (written := _written(value)) is not None]
        digest = blake2b(repr(plain).encode(), digest_size=16).hexdigest()
        specs = sorted((name, str(spec)) for name, spec in self.specs.items())
        return f"{type(self).__qualname__}:{len(self)}:{specs}:{digest}"

    def identity(self) -> dict[str, str]:
        """Return short texts by name, which states hold and compare: kind, arrays, and how the content is known.

        Paths do not count: a data set may be moved. It is quick, and so less strict than `fingerprint` where there are
        many files.
        """
        arrays = ", ".join(f"{name} {spec}" for name, spec in self.specs.items())
        return {"source": self.kind, "arrays": arrays, **self._content()}

    def _content(self) -> dict[str, str]:
        """Return the digest of a user's class's own `fingerprint`, by name; {} if the class has none."""
        if type(self).fingerprint is Source.fingerprint:
            return {}
        return {"fingerprint": text_digest(self.fingerprint())}


def _written(value: object) -> str | None:
    """Return a text of `value` that is equal in every run; None for an object that has no such text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, list | tuple):
        items = [_written(each) for each in value]
        return None if None in items else repr(items)
    for kind in (str, bytes, int, float):
        if isinstance(value, kind):
            return kind.__repr__(value)
    return repr(str(value)) if isinstance(value, PurePath) else "None" if value is None else None
