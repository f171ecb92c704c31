"""Undoing, outside the HDF5 library, the filters that most compressed files use: gzip, byte shuffle, Fletcher's sum.

The HDF5 library decodes with zlib under its global lock. Chunks of photographs, 8×3×224×224 bytes, on one core: zlib
170 MB/s, isal 340, zlib-ng 345, libdeflate 460, hence the last. What the filters do to a chunk is in the HDF5 file
format specification, and in the library's H5Zdeflate.c, H5Zshuffle.c and H5Zfletcher32.c; the tests compare all of it
with what the library itself reads.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..files.file import Bytes
from .layout import ChunkFilter

try:
    import deflate
except ImportError:  # an extra
    deflate = None  # type: ignore[assignment]

_SUM_BYTES = 4
_TABLE_COLUMNS = 1024


class ChunkError(ValueError):
    """A chunk's bytes are not what its filters must have left."""


def decode_chunk(stored: bytes | Bytes, filters: Sequence[ChunkFilter], skipped: int, size: int) -> Bytes:
    """The `size` bytes that a chunk held before `filters` were applied, in their order, to give `stored`.

    Bit i of `skipped` is set if filters[i] was left out. Raises ChunkError if the bytes are damaged.
    """
    data: Bytes = np.frombuffer(stored, np.uint8)
    for number in reversed(range(len(filters))):
        if not skipped >> number & 1:
            data = _undo(data, filters[number], size)
    if data.size != size:
        raise ChunkError(f"the chunk decodes to {data.size} bytes instead of {size}")
    return data


def _undo(data: Bytes, applied: ChunkFilter, size: int) -> Bytes:
    if applied.kind == "shuffle":
        return unshuffle(data, applied.element_bytes)
    if applied.kind == "fletcher32":
        return _without_sum(data)
    if applied.kind == "crc32c":
        return without_crc32c(data)
    if applied.kind == "numcodecs":
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
    try:
        decoded = _codec(configuration).decode(np.ascontiguousarray(data))
    except Exception as error:  # each codec has errors of its own
        raise ChunkError(f"the chunk cannot be decoded by {configuration}: {error}") from error
    return np.frombuffer(np.ascontiguousarray(decoded).data.cast("B"), np.uint8)


def _inflate(data: Bytes, most: int) -> bytes | bytearray:
    """What was compressed into `data`: `most` bytes or fewer if the chunk is as it should be."""
    if deflate is not None:
        # It does not say what is wrong, or whether the result is only larger than `most`; zlib does.
        with suppress(deflate.DeflateError):
            return deflate.zlib_decompress(data.data, most)
    try:
        return zlib.decompress(data.data, bufsize=most)
    except zlib.error as error:
        raise ChunkError(f"the chunk's gzip stream is damaged: {error}") from error


def unshuffle(data: Bytes, element_bytes: int) -> Bytes:
    """Elements from the shuffle's order: all their first bytes, all their second bytes, …

    Bytes that make no whole element stay at the end.
    """
    elements = data.size // element_bytes
    whole = elements * element_bytes
    if element_bytes == 1 or elements <= 1:
        return data
    result = np.empty_like(data)
    # One plane after the other: as one assignment of the transpose it takes two to six times as long.
    planes, target = data[:whole].reshape(element_bytes, elements), result[:whole].reshape(elements, element_bytes)
    for byte in range(element_bytes):
        target[:, byte] = planes[byte]
    result[whole:] = data[whole:]
    return result


def _without_sum(data: Bytes) -> Bytes:
    payload, stored = data[:-_SUM_BYTES], int.from_bytes(data[-_SUM_BYTES:].tobytes(), "little")
    found = fletcher32(payload)
    # The library also takes the sum with the bytes of each half swapped: old versions wrote it so on some machines.
    swapped = (found & 0x00FF00FF) << 8 | (found & 0xFF00FF00) >> 8
    if stored not in (found, swapped):
        raise ChunkError(f"the chunk's checksum is {stored:#010x} and its bytes give {found:#010x}: they are damaged")
    return payload


def fletcher32(data: Bytes) -> int:
    """Fletcher's checksum over big-endian 16-bit words; an odd number of bytes is filled up with a zero byte.

    The first sum is that of the words, the second adds up the first one after each word, so that a word counts as often
    as words follow it, itself included. In a table of words that number is a row's share plus a column's share: sums
    of rows and columns are enough, and take a fifth of the time that weighting each word does.
    """
    words = (np.append(data, np.uint8(0)) if data.size % 2 else data).view("<u2").byteswap()
    padding = -len(words) % _TABLE_COLUMNS
    table = (np.append(words, np.zeros(padding, words.dtype)) if padding else words).reshape(-1, _TABLE_COLUMNS)
    # 1,024 words of 16 bits fit the 32 bits of a row's sum; a column may be longer.
    rows, columns = table.sum(axis=1, dtype=np.uint32), table.sum(axis=0, dtype=np.uint64)
    behind_row = np.arange(len(rows) - 1, -1, -1, dtype=np.uint64) * np.uint64(_TABLE_COLUMNS)
    behind_column = np.arange(_TABLE_COLUMNS, 0, -1, dtype=np.uint64)
    first = int(rows.sum())
    second = int((rows * behind_row).sum()) + int((columns * behind_column).sum()) - padding * first
    return _folded(second) << 16 | _folded(first)


def _folded(total: int) -> int:
    """`total` modulo 65535 as repeated folding of its halves gives it: 65535 and not 0 for a multiple of it."""
    return (total - 1) % 0xFFFF + 1 if total else 0
