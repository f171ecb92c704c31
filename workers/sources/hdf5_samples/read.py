"""Reading samples that are HDF5 data sets of their own, by an index of where each lies."""

from __future__ import annotations

import numpy as np

from ...base.errors import BlobfeedError, SourceError
from ...base.specs import AnyArray, IndexArray, NamedRows, RaggedRows
from ..stored.columns import Access, OpenFile, OpenFiles
from ..stored.runs import stretches
from .index import IndexedData, SamplesIndex


class SampleFiles:
    """The files of `index`, as many of them open as `access` allows."""

    def __init__(self, index: SamplesIndex, access: Access) -> None:
        self._index = index
        self._files = OpenFiles(access)

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        """Put sample indices[i] into row i of each top; raises SourceError that names file and data set."""
        for top, values in self._index.labels.items():
            rows = out[top]
            assert not isinstance(rows, RaggedRows)
            values.take(indices, axis=0, out=rows, mode="clip")
        for stamp, positions in self._index.by_file(indices):
            for top, data in self._index.data.items():
                self._read_data(self._files.get(stamp), data, indices[positions], positions, out[top])

    def _read_data(
        self, file: OpenFile, data: IndexedData, indices: IndexArray, positions: IndexArray, rows: AnyArray | RaggedRows
    ) -> None:
        offsets = data.offsets[indices]
        direct = offsets >= 0
        if not direct.all():
            self._read_by_library(file, data, indices[~direct], positions[~direct], rows)
            indices, offsets, positions = indices[direct], offsets[direct], positions[direct]
        if isinstance(rows, RaggedRows):
            _read_ragged(file, data, indices, offsets, positions, rows)
        elif len(offsets):
            file.raw.gather_at(offsets, positions, rows.reshape(len(rows), -1).view(np.uint8))
            if not data.dtype.isnative:
                for start, stop in stretches(positions, positions, 1):
                    rows[positions[start] : positions[start] + stop - start].byteswap(inplace=True)

    def _read_by_library(
        self, file: OpenFile, data: IndexedData, indices: IndexArray, positions: IndexArray, rows: AnyArray | RaggedRows
    ) -> None:
        for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
            name = self._index.names[index]
            try:
                sample = file.library.value(f"{name}/{data.path}" if data.path else name)
                if isinstance(rows, RaggedRows):
                    rows.put(position, sample)
                else:
                    rows[position] = sample
            except BlobfeedError:
                raise
            except (OSError, RuntimeError, ValueError) as error:
                raise SourceError(f"{self._index.where(index)}: reading the sample failed: {error}") from error

    def will_need(self, indices: IndexArray) -> None:
        """Start reading these samples."""
        for stamp, positions in self._index.by_file(indices):
            for data in self._index.data.values():
                samples = indices[positions]
                direct = samples[data.offsets[samples] >= 0]
                if len(direct):
                    self._files.get(stamp).raw.will_need(data.offsets[direct], data.sizes(direct))

    def close(self) -> None:
        """Close all files."""
        self._files.close()


def _read_ragged(
    file: OpenFile, data: IndexedData, indices: IndexArray, offsets: IndexArray, positions: IndexArray, rows: RaggedRows
) -> None:
    assert data.shapes is not None
    shapes = data.shapes[indices].tolist()
    for offset, position, shape in zip(offsets.tolist(), positions.tolist(), shapes, strict=True):
        sample = rows.reserve(position, shape)
        if sample.size:
            file.raw.copy_into(offset, sample.reshape(-1).view(np.uint8).data)
        if not data.dtype.isnative:
            sample.byteswap(inplace=True)
