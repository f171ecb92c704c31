"""Undoing, outside the HDF5 library, the filters of most compressed files: gzip by libdeflate, others by numcodecs.

The HDF5 library decodes with zlib under its global lock. Chunks of photographs, 8×3×224×224 bytes, on one core: zlib
170 MB/s, isal 340, zlib-ng 345, libdeflate 460, hence the last. The tests compare all with what the library reads.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...workers.api import AnyArray
from ..files import Bytes
from .layout import Chunked, ChunkFilter, ChunkObjects

try:
    import deflate
except ImportError:  # an extra
    deflate = None  # type: ignore[assignment]

_SUM_BYTES = 4


class ChunkError(ValueError):
    """A chunk's bytes are not what its filters must have left."""


def chunk_values(
    stored: Bytes | memoryview | None, layout: Chunked | ChunkObjects, dtype: np.dtype[np.generic], skipped: int = 0
) -> AnyArray:
    """The elements of a chunk of which `stored` is kept, shape `layout.chunk`; None: it was never written.

    `skipped`: see `decode_chunk`. Raises ChunkError if the bytes are damaged.
    """
    chunk, order = layout.chunk, layout.order
    if stored is None:
        return np.broadcast_to(np.frombuffer(layout.fill, dtype).reshape(()), chunk)
    data = decode_chunk(stored, layout.filters, skipped, math.prod(chunk) * dtype.itemsize)
    return data.view(dtype).reshape([chunk[axis] for axis in order]).transpose([*map(order.index, range(len(order)))])


def decode_chunk(stored: bytes | memoryview | Bytes, filters: Sequence[ChunkFilter], skipped: int, size: int) -> Bytes:
    """Undo `filters`, which were applied in their order to the `size` bytes of a chunk and gave `stored`.

    Bit i of `skipped` is set if filters[i] was not applied. Raises ChunkError if the bytes are damaged.
    """
    data: Bytes = np.frombuffer(stored, np.uint8)
    for number in reversed(range(len(filters))):
        if not skipped >> number & 1:
            data = _undo(data, filters[number], size)
    if data.size != size:
        raise ChunkError(f"the chunk decodes to {data.size} bytes instead of {size}")
    return data


def _undo(data: Bytes, applied: ChunkFilter, size: int) -> Bytes:
    if applied.kind == "crc32c":
        return without_crc32c(data)
    if applied.kind == "numcodecs":
        if deflate is not None and _codec(applied.codec).codec_id == "gzip":
            # numcodecs has Python's gzip for it, which takes three times as long. A stream of several members is left.
            with suppress(deflate.DeflateError):
                whole = deflate.gzip_decompress(data.data, size + _SUM_BYTES)
                if len(whole) in (size, size + _SUM_BYTES):
                    return np.frombuffer(whole, np.uint8)
        return _decoded_by(applied.codec, data)
    # A checksum may have been compressed along with the values.
    return np.frombuffer(_inflate(data, size + _SUM_BYTES), np.uint8)


def without_crc32c(data: Bytes) -> Bytes:
    """`data` without the checksum at its end; raises ChunkError if that is another."""
    import google_crc32c  # zarr brings it

    payload, stored = data[:-_SUM_BYTES], int.from_bytes(data[-_SUM_BYTES:].tobytes(), "little")
    found: int = google_crc32c.value(payload.tobytes())
    if found != stored:
        raise ChunkError(f"the checksum is {stored:#010x} and the bytes give {found:#010x}: they are damaged")
    return payload


@functools.cache
def _codec(configuration: str) -> Any:
    import numcodecs  # type: ignore[import-untyped]

    return numcodecs.get_codec(json.loads(configuration))


def _decoded_by(configuration: str, data: Bytes) -> Bytes:
    codec = _codec(configuration)
    try:
        if codec.codec_id == "shuffle" and (rest := data.size % codec.elementsize):
            # HDF5 leaves the bytes that make no whole element at the end; numcodecs refuses them.
            return np.append(_decoded_by(configuration, data[:-rest]), data[-rest:])
        decoded = codec.decode(np.ascontiguousarray(data))
    except Exception as error:  # each codec has errors of its own
        said = str(error).partition("\n")[0].rstrip(".")
        raise ChunkError(f"the chunk cannot be decoded by {configuration}: {said}") from error
    # Of bytes NumPy would make a copy.
    return np.frombuffer(
        decoded if isinstance(decoded, bytes) else np.ascontiguousarray(decoded).data.cast("B"), np.uint8
    )


def _inflate(data: Bytes, most: int) -> bytes | bytearray:
    """Decompress `data`: `most` bytes or fewer if the chunk is as it should be."""
    if deflate is not None:
        # It does not say what is wrong, or whether the result is only larger than `most`; zlib does.
        with suppress(deflate.DeflateError):
            return deflate.zlib_decompress(data.data, most)
    try:
        return zlib.decompress(data.data, bufsize=most)
    except zlib.error as error:
        raise ChunkError(f"the chunk's gzip stream is damaged: {error}") from error
