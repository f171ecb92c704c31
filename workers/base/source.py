"""What every source of samples is: a length, the specs of its arrays, and `read(indices, out)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import ClassVar, NamedTuple

import numpy as np

from .keys import blake2b
from .specs import AnyArray, ArraySpec, IndexArray, NamedRows

Tops = Sequence[str] | None
"""Which of a source's arrays are wanted, in that order; None for all, or for data and label."""


class CacheCounts(NamedTuple):
    """Samples of the decoded cache that this process found there, that it had to read from the source, and that it
    found damaged and made anew."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0

    @classmethod
    def total(cls, counts: Iterable[CacheCounts]) -> CacheCounts:
        """The sum over processes."""
        return cls(*map(sum, zip(*counts, strict=True)))


class Source(ABC):
    """Samples by index.

    The life of a source: it is made in the trainer, where its constructor opens the files, checks everything that can
    be checked before training (ParameterError for a bad option, SourceError for what the files hold), and builds what
    index it needs; it is pickled to the loaders; there it opens its files again at the first read (never across a
    fork). So `__getstate__` must leave handles and maps behind, and keep the index. A source must not import torch.
    """

    kind: ClassVar[str] = "source"
    """The key under `source:` in the parameters that chooses this class."""

    modules: tuple[str, ...] = ()
    """Modules that `read` needs: imported once, before the loaders are forked, so that they share the pages."""

    descriptors: tuple[int, ...] = ()
    """Open files that `read` needs under the same numbers in the loaders, which inherit them."""

    rows_at_once: int = 1
    """Samples that `read` fetches at the same time, because it waits for them and does not compute: the least in a
    task."""

    cache_counts: CacheCounts = CacheCounts()
    """Of this process."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, ArraySpec]:
        """What each sample has, by name, in the order of the tops."""

    @abstractmethod
    def read(self, indices: IndexArray, out: NamedRows) -> None:
        """Put sample indices[i] into row i of every name of `out`, for all i.

        `indices`: shape (rows,) int64, in any order, repeats allowed. `out`: for each name of `specs` an array of
        shape (rows, *spec.shape), C-contiguous, or RaggedRows if the spec varies. It is memory of the batch slot
        itself: write into it, do not replace it. If a sample is bad, `read` raises; the loader then asks for the same
        rows one by one to find out which one it was.
        """

    def lend(self, indices: IndexArray) -> Iterable[Mapping[str, AnyArray]] | None:
        """These samples, by name, in memory of the source's own; None if it has nothing to lend.

        Arrays not to be written to, in the shape and with the values that `read` would give them, with any strides. If
        only a part of each sample is wanted, as with a crop, this saves copying the whole first. A sequence, valid
        until the next call, if all of them lie in memory; an iterator if each is made when it is asked for, and valid
        until the next one is.
        """
        return None

    @property
    def stores_rows(self) -> bool:
        """Whether samples lie in memory or in files as `read` gives them, so that reading is copying."""
        return False

    @property
    def gathered(self) -> Collection[str]:
        """The names for which `read` also takes ConvertedRows: bytes that lie in a file's map, sample by sample."""
        return ()

    def where(self, index: int) -> str:
        """The file and the entry in it that hold sample `index`, for error messages."""
        return f"{type(self).__name__} sample {index}"

    @property
    def chunk_samples(self) -> int | None:
        """Samples in one storage chunk if reading one of them costs as much as reading all; else None."""
        return None

    def will_need(self, indices: IndexArray) -> None:  # noqa: B027 - a source without files has nothing to announce
        """Told ahead that these samples will be read soon: start the disk, do not wait for it."""

    def fingerprint(self) -> str:
        """Names the source's content for caches and resuming: kind, paths, sizes, modification times, options.

        It changes whenever what `read` gives may have changed. This one knows the class, the specs, and what plain
        attributes say: numbers, texts, paths, and lists and dicts of them. None says nothing: it stands where a file is
        once it is open.
        """
        given = sorted((name, value) for name, value in vars(self).items() if value is not None)
        plain = [(name, written) for name, value in given if (written := _written(value)) is not None]
        digest = blake2b(repr(plain).encode(), digest_size=16).hexdigest()
        specs = sorted((name, str(spec)) for name, spec in self.specs.items())
        return f"{type(self).__qualname__}:{len(self)}:{specs}:{digest}"

    def close(self) -> None:  # noqa: B027 - a source without files has nothing to close
        """Give back handles and maps; the next read opens them again."""


def _written(value: object) -> str | None:
    """What is the same in another run; None for an object that may be written otherwise there."""
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
