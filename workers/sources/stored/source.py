"""What sources of stored arrays have in common: all but finding and checking the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.errors import BlobfeedError, SourceError
from ...base.keys import text_digest
from ...base.source import Source
from ...base.specs import ArraySpec, IndexArray, NamedRows, RaggedRows, Rows
from ..files.remote import CONNECTIONS, RemoteStamp
from ..files.runs import require_in_range, split_by_part
from .layout import Chunked, ChunkObjects, Column, StoredArray, ThroughLibrary
from .open_files import LIBRARY_MODULE, OpenFiles, Reading
from .rows import ChunkedRows


class StoredSource(Source):
    """Samples of stored arrays, one column of them for each top; all columns have the same length.

    `limit`: only the first so many samples.
    """

    def __init__(self, columns: Mapping[str, Column], files: OpenFiles, *, limit: int | None) -> None:
        lengths = {top: len(column) for top, column in columns.items()}
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{top} has {length}" for top, length in lengths.items())
            raise SourceError(f"source {self.kind}: the tops differ in length: {said}; each needs one entry per sample")
        self._columns = columns
        self._first = next(iter(columns.values()))
        self._largest = max(columns.values(), key=lambda column: column.arrays[0].sample_bytes)
        # Columns that are cut at the same samples, as those of the same HDF5 files are: what is wanted is cut up once.
        cuts = {column.starts.tobytes(): column.starts for column in columns.values()}
        self._together = [
            (starts, [named for named in columns.items() if named[1].starts.tobytes() == cut])
            for cut, starts in cuts.items()
        ]
        self._files = files
        self._samples = min(limit or len(self._first), len(self._first))
        self._specs = {top: column.spec for top, column in columns.items()}
        if not self._samples:
            raise SourceError(f"source {self.kind}: no samples: {self._first.arrays[0]} is empty")
        for top, spec in self._specs.items():
            if not spec.varies and not spec.nbytes:
                raise SourceError(f"source {self.kind}: samples of {top!r} are empty: their shape is {spec.shape}")
        layouts = [array.layout for column in columns.values() for array in column.arrays]
        self._is_remote = False
        for array in (array for column in columns.values() for array in column.arrays):
            if isinstance(array.file, RemoteStamp):
                self._is_remote = True
                _require_ranges(array)
        if self._is_remote:
            self.rows_at_once = CONNECTIONS
        in_objects = [layout for layout in layouts if isinstance(layout, ChunkObjects)]
        by_library = [layout for layout in layouts if isinstance(layout, ThroughLibrary)]
        self.modules = (LIBRARY_MODULE,) if by_library else ()
        if any(layout.plugin for layout in by_library):
            self.modules += ("hdf5plugin",)
        if any(applied.kind == "numcodecs" for layout in in_objects for applied in layout.filters):
            self.modules += ("numcodecs",)

    def __len__(self) -> int:
        return self._samples

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._specs

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        require_in_range(indices, self._samples)
        reading = Reading(self._files)
        if self._is_remote:
            self._fetch(indices, reading)
        else:
            self._announce(indices)
        for starts, columns in self._together:
            if len(indices) and (joined := self._files.joined(starts, columns)):
                reading.read_joined(joined, indices, out)
                continue
            for number, local, positions in split_by_part(starts, indices):
                for top, column in columns:
                    array = column.arrays[number]
                    try:
                        reader = reading.get(array.file, array.others).reader(array)
                        reader.read(local, positions, _as_stored(out[top], array.arrangement.order))
                    except BlobfeedError:
                        raise
                    except Exception as error:
                        raise SourceError(f"{array}: reading samples failed: {error}") from error
        self._files.announcements.note_read(len(indices))
        reading.require_unchanged()

    def will_need(self, indices: IndexArray) -> None:
        require_in_range(indices, self._samples)
        self._announce(indices)

    def _fetch(self, indices: IndexArray, reading: Reading) -> None:
        """These samples are read next: all tops and all files are to be fetched at the same time."""
        self._files.begin()
        for starts, columns in self._together:
            for number, local, _ in split_by_part(starts, indices):
                for array in (column.arrays[number] for _, column in columns):
                    reader = reading.get(array.file).reader(array)
                    if isinstance(reader, ChunkedRows):
                        reader.fetch(local)

    def _announce(self, indices: IndexArray) -> None:
        """Also called by `read`: the first task of a loader was not announced before."""
        self._files.begin()
        announcements = self._files.announcements
        if not self._is_remote and not announcements.are_due(indices):
            return
        in_memory = True
        for starts, columns in self._together:
            if joined := self._files.joined(starts, columns):
                in_memory &= joined.will_need(indices)
                continue
            for number, local, _ in split_by_part(starts, indices):
                for _, column in columns:
                    array = column.arrays[number]
                    in_memory &= self._files.get(array.file).will_need(array, local)
        announcements.note_announced(len(indices), in_memory=in_memory)

    @property
    def stores_rows(self) -> bool:
        arrays = [array for column in self._columns.values() for array in column.arrays]
        return not self._is_remote and all(
            isinstance(array.layout, Chunked) and not array.layout.filters for array in arrays
        )

    def where(self, index: int) -> str:
        return self._first.where(index)

    @property
    def chunk_samples(self) -> int | None:
        """Samples in a chunk of the largest top, if a chunk is decoded as a whole."""
        return self._largest.arrays[0].chunk_samples

    def fingerprint(self) -> str:
        arrays = [array for column in self._columns.values() for array in column.arrays]
        stored = [(array.file, array.others, array.name, array.arrangement) for array in arrays]
        specs = [(name, str(spec)) for name, spec in self._specs.items()]
        text = repr((stored, specs, self._samples))
        return f"{self.kind}:{text_digest(text)}"

    def close(self) -> None:
        self._files.close()


def _as_stored(rows: Rows, order: tuple[int, ...] | None) -> Any:
    """A view of delivered rows, shape (rows, *delivered), with the sample's axes in their stored order."""
    if order is None or isinstance(rows, RaggedRows):
        return rows
    back = sorted(range(len(order)), key=order.__getitem__)
    return rows.transpose(0, *(axis + 1 for axis in back))


def _require_ranges(array: StoredArray) -> None:
    """Raises SourceError if a sample of `array` is spread over all of its bytes."""
    axis, layout = array.arrangement.sample_axis, array.layout
    if axis and isinstance(layout, Chunked) and layout.chunk == array.shape and not layout.filters:
        raise SourceError(
            f"{array}: its samples are counted by axis {axis} of an array in one piece, so each of them is spread over "
            "the whole object; store it with the samples first, or in chunks"
        )
