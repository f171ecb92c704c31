"""The common part of sources of files, which announce samples before they read them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from ...base.source import Source
from ...base.specs import ArraySpec, IndexArray, NamedRows
from ..files.file import require_in_range
from ..files.remote import CONNECTIONS
from .store import FileStore


class FilesSource(Source):
    """Samples in files. A subclass counts the samples, and knows their specs."""

    _samples: int
    _specs: Mapping[str, ArraySpec]

    def __init__(self, files: FileStore) -> None:
        self._files = files
        if files.is_remote:
            self.rows_at_once = CONNECTIONS

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        require_in_range(indices, self._samples)
        self._files.begin()
        if self._files.is_remote:  # all tops and all files are to be fetched at the same time
            self._fetch(indices)
        else:  # the first task of a loader was not announced before
            self._announce(indices)
        self._read(indices, out)
        self._files.announcements.note_read(len(indices))
        self._files.finish()

    @abstractmethod
    def _read(self, indices: IndexArray, out: NamedRows) -> None: ...

    def _fetch(self, indices: IndexArray) -> None:
        """Start fetching these samples, which are read next."""
        for addresses, sizes in self._places(indices):
            self._files.fetch_at(addresses, sizes)

    def will_need(self, indices: IndexArray) -> None:
        require_in_range(indices, self._samples)
        self._files.begin()
        self._announce(indices)

    def _announce(self, indices: IndexArray) -> None:
        announcements = self._files.announcements
        if self._files.is_remote or announcements.are_due(indices):
            announcements.note_announced(len(indices), in_memory=self._start_reading(indices))

    def _start_reading(self, indices: IndexArray) -> bool:
        """Have these samples read ahead; whether all of them were in memory already."""
        found = [self._files.will_need_at(addresses, sizes) for addresses, sizes in self._places(indices)]
        return all(found)

    def _places(self, indices: IndexArray) -> Iterator[tuple[IndexArray, IndexArray | int]]:
        """The addresses and sizes of these samples, for each top, for the two above."""
        raise NotImplementedError

    def close(self) -> None:
        self._files.close()
