"""Arrays in .npy and .npz files, a file a sample: the values are read right into the rows of a batch."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from copy import copy
from functools import lru_cache
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np

from ...workers.api import AnyArray, ArraySpec, IndexArray, RaggedRows, holds
from ...workers.base import SampleTooLargeError
from ..files import OpenFile, WholeFiles
from ..stored import read_header
from ..table import Column, OutRows, RecordError, Store

try:
    import deflate
except ImportError:  # an extra
    deflate = None  # type: ignore[assignment]

_crc32: Callable[..., int] = (deflate or zlib).crc32
"""The checksum of zip files: of 2 MB libdeflate makes it in 0.04 ms, zlib in 0.48."""

_HEADER_BYTES = 128
"""Of the header that np.save writes; a longer one is read once more."""

_LOCAL_HEADER_BYTES = 30
_MOST_DEFLATED = 1032
"""No stream of deflate gives more bytes than so many for each of its own."""


class Header(NamedTuple):
    """The header of a .npy file. `bytes`: of the header itself, behind which the values lie."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[np.generic]
    bytes: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class StoredValues:
    """One array of an open file: its header, and its values.

    `member`: of an .npz file, the name of the array; "" for a .npy file. Raises ValueError, EOFError, OSError.
    """

    def __init__(self, file: OpenFile, archive: zipfile.ZipFile | None, member: str) -> None:
        self._file, self._at = file, 0
        self._crc: int | None = None
        self._inflated: bytes | bytearray | None = None
        size = file.size
        if archive is not None:
            size = self._enter(_entry(archive, member))
        head = self._bytes(0, min(_HEADER_BYTES, size))
        self.header = header = _header(head)
        if header.bytes > len(head):
            self.header = header = _header(self._bytes(0, min(header.bytes, size)))
        if header.bytes + header.nbytes > size or (archive is not None and header.bytes + header.nbytes < size):
            raise ValueError(
                f"it is damaged or cut short: {header.shape} {header.dtype} takes {header.bytes + header.nbytes:,} "
                f"bytes, and there are {size:,}; write or copy it again"
            )

    def _enter(self, entry: zipfile.ZipInfo) -> int:
        """Find the bytes of a member of an archive; return how many there are when they are decompressed."""
        name_bytes = entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437")
        local = self._file_bytes(entry.header_offset, _LOCAL_HEADER_BYTES + len(name_bytes))
        if not local.startswith(b"PK\3\4") or local[_LOCAL_HEADER_BYTES:] != name_bytes or entry.flag_bits & 1:
            raise ValueError(f"{entry.filename!r} is damaged or encrypted; save it again")
        name, extra = int.from_bytes(local[26:28], "little"), int.from_bytes(local[28:30], "little")
        self._at, self._crc = entry.header_offset + _LOCAL_HEADER_BYTES + name + extra, entry.CRC
        if entry.compress_type == zipfile.ZIP_DEFLATED and entry.file_size <= _MOST_DEFLATED * entry.compress_size:
            self._inflated = _inflate(self._file_bytes(self._at, entry.compress_size), entry.file_size)
        elif entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(
                f"{entry.filename!r} is damaged or compressed by something else than deflate; save it again by "
                "np.savez or np.savez_compressed"
            )
        return entry.file_size

    def _file_bytes(self, offset: int, size: int) -> bytearray:
        if offset + size > self._file.size:
            raise EOFError(f"it has {self._file.size:,} bytes, and {offset + size:,} are needed: it is cut short")
        content = bytearray(size)
        self._file.read_into(offset, memoryview(content))
        return content

    def _bytes(self, offset: int, size: int) -> bytes:
        if self._inflated is not None:
            return bytes(self._inflated[offset : offset + size])
        return bytes(self._file_bytes(self._at + offset, size))

    def read_into(self, row: AnyArray) -> None:
        """Put the values into `row`, of their shape; raises ValueError if they are not what was written."""
        header = self.header
        is_direct = header.dtype == row.dtype and not (header.is_fortran and len(header.shape) > 1)
        values = row if is_direct else np.empty(header.shape[::-1] if header.is_fortran else header.shape, header.dtype)
        memory = values.reshape(-1).view(np.uint8)
        if self._inflated is not None:
            memory[:] = np.frombuffer(self._inflated, np.uint8, offset=header.bytes)
        else:
            self._file.read_into(self._at + header.bytes, memory.data)
        if self._crc is not None:
            found = _crc32(memory.data, _crc32(self._bytes(0, header.bytes)))
            if found != self._crc:
                raise ValueError(f"its checksum is {self._crc:#010x}, and its bytes give {found:#010x}: it is damaged")
        if not is_direct:
            row[...] = values.T if header.is_fortran else values


def _inflate(stored: bytearray, size: int) -> bytes | bytearray:
    if deflate is not None:
        # It does not say what is wrong; zlib does.
        with suppress(deflate.DeflateError):
            if len(made := deflate.deflate_decompress(stored, size)) == size:
                return made
    stream = zlib.decompressobj(-15)
    try:
        content = stream.decompress(stored, size + 1)
    except zlib.error as error:
        raise ValueError(f"its compressed bytes are damaged: {error}") from error
    if len(content) != size or not stream.eof:
        raise ValueError(f"it decompresses to {len(content):,} bytes, and its directory says {size:,}: it is damaged")
    return content


def _entry(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    entry = archive.NameToInfo.get(f"{member}.npy") or archive.NameToInfo.get(member)
    if entry is None:
        raise ValueError(f"there is no array {member!r}; there are {', '.join(members(archive)) or 'none'}")
    return entry


def members(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the arrays in an .npz file."""
    return [name.removesuffix(".npy") for name in archive.namelist()]


@lru_cache(1024)
def _header(head: bytes) -> Header:
    """Return what `head`, the first bytes of a .npy file, says; files of one shape have the same. Raises ValueError."""
    size = 2 if head[6:7] == b"\1" else 4
    whole = 8 + size + int.from_bytes(head[8 : 8 + size], "little")
    if head[:6] == b"\x93NUMPY" and len(head) == _HEADER_BYTES < whole:
        return Header((), False, np.dtype("u1"), whole)  # the caller reads so much
    try:
        shape, is_fortran, dtype = read_header(io.BytesIO(head))
    except (ValueError, TokenError) as error:
        raise ValueError(f"it is no .npy array that can be read: {error}") from error
    if dtype.hasobject or dtype.kind not in "biufcSU":
        raise ValueError(f"it holds {dtype}, which is no array of numbers or strings")
    if min(shape, default=0) < 0:
        raise ValueError(f"it is damaged: its header says shape {shape}")
    return Header(shape, is_fortran, dtype, whole)


class Opened:
    """The arrays of one open file, by name; "" is that of a .npy file. Raises ValueError, EOFError, OSError."""

    def __init__(self, file: OpenFile, *, is_npz: bool) -> None:
        self._file = file
        self.archive: zipfile.ZipFile | None = None
        if is_npz:
            try:
                self.archive = zipfile.ZipFile(file)
            except Exception as error:  # a damaged one makes zipfile raise NotImplementedError, OverflowError and more
                raise ValueError(f"it is no .npz file that can be read: {error}; save or copy it again") from error

    def __getitem__(self, member: str) -> StoredValues:
        return StoredValues(self._file, self.archive, member)


class FileArrays(Column):
    """Tops that are arrays in the files of samples. `arrays`: the name of each in its .npz file, or "" for .npy.

    `names`: the store that the files' names lie in.
    """

    def __init__(
        self,
        files: WholeFiles,
        samples: int,
        specs: Mapping[str, ArraySpec],
        arrays: Mapping[str, str],
        names: Store[str],
    ) -> None:
        self.stores = (files, names)
        self.samples, self.specs = samples, specs
        self._files, self._arrays, self._is_npz = files, arrays, any(arrays.values())

    def only(self, tops: Collection[str]) -> Column:
        column = copy(self)
        column.specs = {top: spec for top, spec in self.specs.items() if top in tops}
        return column

    def read(self, indices: IndexArray, positions: IndexArray, out: OutRows) -> None:
        wanted = [(top, self._arrays[top], spec, out[top]) for top, spec in self.specs.items() if top in out]
        index, array = -1, ""
        try:
            for index, row in zip(indices.tolist(), positions.tolist(), strict=True):
                array = ""
                with self._files.opened(index) as file:
                    opened = Opened(file, is_npz=self._is_npz)
                    for _, array, spec, rows in wanted:
                        values = opened[array]
                        values.read_into(_row(values.header, spec, rows, row))
        except Exception as error:
            path = self._files.path(index).decode(errors="surrogateescape")
            raise RecordError(index, f":{array}" if array else "", path) from error

    def will_need(self, indices: IndexArray, *, now: bool = False) -> bool:
        return self._files.will_need(indices.tolist(), now=now)


def _row(header: Header, spec: ArraySpec, rows: Any, row: int) -> AnyArray:
    """Return the memory for an array; raises ValueError, SampleTooLargeError if it is not of `spec`."""
    native = header.dtype.newbyteorder("=")
    if not holds(spec.dtype, native):
        raise ValueError(f"it holds {native}, and the first file {spec.dtype}: all need one type")
    if isinstance(rows, RaggedRows):
        try:
            return rows.reserve(row, header.shape)
        except SampleTooLargeError as error:
            raise SampleTooLargeError(f"{error} (max_shapes)") from None
    if header.shape != spec.shape:
        raise ValueError(
            f"it has the shape {header.shape}, and the first file {spec.shape}: all need one shape, unless max_shapes "
            "says the largest, such as {data: [512, 512, 128]}"
        )
    whole: AnyArray = rows[row, ...]
    return whole
