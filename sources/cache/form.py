"""The form of a cached sample: a checksum, the shapes of the arrays that vary in size, and all arrays, end to end.

The checksum is XXH3 of all that follows it, seeded by the sample's index, so that no sample can stand for another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from xxhash import xxh3_64_intdigest

from ...workers.api import AnyArray, ArraySpec, IndexArray, RaggedRows, Rows

_SUM_BYTES = 8


def sealed(index: int, body: memoryview) -> memoryview:
    """Return the value of a sample that has no Form: its checksum and `body`."""
    value = bytearray(_SUM_BYTES + len(body))
    value[_SUM_BYTES:] = body
    value[:_SUM_BYTES] = xxh3_64_intdigest(body, index).to_bytes(_SUM_BYTES, sys.byteorder)
    return memoryview(value).toreadonly()


def checked(index: int, value: memoryview | bytes) -> memoryview | None:
    """Return what lies behind the checksum of sample `index`; None if it is damaged."""
    body = memoryview(value)[_SUM_BYTES:]
    return body if xxh3_64_intdigest(body, index) == int.from_bytes(value[:_SUM_BYTES], sys.byteorder) else None


class Form:
    """The form of samples of `specs`."""

    def __init__(self, specs: Mapping[str, ArraySpec]) -> None:
        self._specs = dict(specs)
        self._extents = sum(len(spec.shape) for spec in specs.values() if spec.varies)
        self._fixed = None if self._extents else self._type(())

    def write(self, indices: IndexArray, rows: Mapping[str, Rows]) -> Iterator[tuple[int, memoryview]]:
        """Yield the value of each sample, behind its index."""
        step = len(indices) if self._fixed else 1  # samples of one size are put together in one go
        for first in range(0, len(indices), step):
            here = slice(first, first + step)
            arrays = [_array(rows[name][here]) for name in self._specs]
            varying = [array for array, spec in zip(arrays, self._specs.values(), strict=True) if spec.varies]
            shapes = [extent for array in varying for extent in array.shape[1:]]
            records = np.empty(step, self._fixed or self._type(shapes))
            records["shapes"] = shapes
            for number, array in enumerate(arrays):
                records[str(number)] = array
            numbers, size, data = indices[here].tolist(), records.itemsize, records.view(np.uint8).data.toreadonly()
            values = [data[at : at + size] for at in range(0, len(data), size)]
            sums = [xxh3_64_intdigest(value[_SUM_BYTES:], index) for index, value in zip(numbers, values, strict=True)]
            records["checksum"] = sums
            yield from zip(numbers, values, strict=True)

    def read(self, index: int, value: memoryview | bytes) -> dict[str, AnyArray] | None:
        """Return views on the arrays of sample `index`; None if it is damaged."""
        if checked(index, value) is None:
            return None
        form = self._fixed or self._type(np.frombuffer(value, np.int32, self._extents, _SUM_BYTES).tolist())
        record = np.frombuffer(value, form)[0]
        return {name: record[str(number)] for number, name in enumerate(self._specs)}

    def _type(self, shapes: Sequence[int]) -> np.dtype[np.void]:
        """Return the type of a value in which the arrays that vary in size have these `shapes`, end to end."""
        rest = iter(shapes)
        arrays = [
            (str(number), spec.dtype, tuple(next(rest) for _ in spec.shape) if spec.varies else spec.shape)
            for number, spec in enumerate(self._specs.values())
        ]
        return np.dtype([("checksum", np.uint64), ("shapes", np.int32, (self._extents,)), *arrays])


def _array(rows: Rows) -> AnyArray:
    """Return the rows as one array; of rows that vary in size there is but one."""
    return rows.get(0)[np.newaxis] if isinstance(rows, RaggedRows) else rows
