"""Arrays in memory as a source: copied once into a memory file, which every loader maps and none has a copy of."""

from __future__ import annotations

import gzip
import math
import mmap
import os
import weakref
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from ..base.checks import check_options, chosen
from ..base.errors import ParameterError, SourceError
from ..base.files import in_folder, read_whole
from ..base.hooks import plain_array
from ..base.keys import blake2b
from ..base.source import Tops
from ..base.specs import AnyArray, IndexArray
from ..transport.linux import memfd_create
from ..transport.memory import available_memory
from ..transport.shared_arrays import write_arrays
from .files.file import FileStamp
from .stored.layout import Chunked, Column, StoredArray
from .stored.source import OpenFiles, StoredSource

_SUMMED_BYTES = 1 << 28
_BLOCK_BYTES = 1 << 16


class ArraysSource(StoredSource):
    """`{arrays: {data: x, label: y}}`: sample i has row i of each array, or of whatever NumPy makes an array of.

    The arrays may be changed or dropped afterwards. Raises ParameterError for what is no array of numbers or strings,
    SourceError if there is no memory for a copy.
    """

    kind = "arrays"

    def __init__(self, options: Mapping[str, Any], *, tops: Tops = None, base_dir: Path = Path()) -> None:
        wanted = chosen(options, tops, f"source {self.kind}")
        arrays = {name: self._checked(name, value) for name, value in wanted.items()}
        if not arrays:
            raise ParameterError(f"source {self.kind}: no arrays: give one by each top's name, such as data and label")
        size = sum(array.nbytes for array in arrays.values())
        if size > (available := available_memory()):
            raise SourceError(
                f"source {self.kind}: a copy of the arrays for the loaders takes {size:,} bytes, and {available:,} are "
                "available: save them with np.save and read them as {npy: {data: data.npy, …}}, which needs no memory"
            )
        self._memory = memfd_create(f"blobfeed-{self.kind}")
        weakref.finalize(self, os.close, self._memory)
        self.descriptors = (self._memory,)
        offsets = write_arrays(self._memory, arrays)
        stamp = FileStamp.of(f"/proc/self/fd/{self._memory}")
        columns = {}
        for name, array in arrays.items():
            layout = Chunked(array.shape, np.array([offsets[name]]))
            columns[name] = Column([StoredArray(stamp, name, array.shape, array.dtype, layout)], f"source {self.kind}")
        super().__init__(columns, OpenFiles(), limit=None)

    def where(self, index: int) -> str:
        return f"{self.kind}[{index}]"

    def _announce(self, indices: IndexArray) -> None:
        """It is in memory."""

    def _content(self) -> dict[str, str]:
        """Covers all values up to 256 MiB, of more as many, spread over them."""
        size = os.fstat(self._memory).st_size
        summed = blake2b(str(size).encode())
        with mmap.mmap(self._memory, size, prot=mmap.PROT_READ) as memory:
            step = _BLOCK_BYTES * max(1, -(-size // _SUMMED_BYTES))
            for start in range(0, size, step):
                summed.update(memory[start : start + _BLOCK_BYTES])
        return {"values": summed.hexdigest()}

    def fingerprint(self) -> str:
        size = os.fstat(self._memory).st_size
        with mmap.mmap(self._memory, size, prot=mmap.PROT_READ) as memory:
            content = blake2b(memory).hexdigest()
        return f"arrays:{[(name, str(spec)) for name, spec in self.specs.items()]}:{content}"

    def _checked(self, name: str, value: object) -> AnyArray:
        try:
            array = plain_array(value, name, f"source {self.kind}: got")
        except ValueError as error:
            raise ParameterError(str(error)) from error
        if array.dtype == object and all(isinstance(item, str) for item in array.flat):
            array = np.array(array.tolist())  # as pandas has words: NumPy alone would also write a missing one as "nan"
        if array.dtype.kind not in "biufcSU" or not array.ndim or not len(array):
            raise ParameterError(
                f"source {self.kind}: {name!r} is a {type(value).__name__} of type {array.dtype} and shape "
                f"{array.shape}: expected an array of numbers or strings whose first axis counts the samples, at "
                "least one; to leave it out, name the others in 'tops'"
            )
        return array


class NpzOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `source: {npz: …}`.

    path: the file that np.savez or np.savez_compressed wrote.
    """

    path: str


class NpzSource(ArraysSource):
    """`{npz: {path: train.npz}}`: the arrays of an .npz file, read into memory once."""

    kind = "npz"

    def __init__(self, options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> None:
        self._path = in_folder(base_dir, check_options(options, NpzOptions, "source npz").path)
        what = f"source npz: {str(self._path)!r}"
        if self._path.exists() and not (self._path.is_file() and zipfile.is_zipfile(self._path)):
            raise SourceError(f"{what} is no .npz file, as np.savez writes them; read a .npy file as {{npy: …}}")
        try:
            # np.load leaves a file open that it opened itself and cannot read.
            with self._path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                _require_arrays(stream, len(file.files))
                wanted = {name: file[name] for name in chosen(dict.fromkeys(file.files), tops, "source npz")}
        except ParameterError:
            raise
        except OSError as error:
            raise SourceError(f"{what} cannot be opened: {error.strerror}") from error
        except Exception as error:  # a damaged one makes zipfile raise NotImplementedError, RuntimeError and more
            raise SourceError(
                f"{what} does not hold arrays of numbers that can be read: {error}; if it holds others too, name those "
                "in 'tops'"
            ) from error
        super().__init__(wanted)

    def where(self, index: int) -> str:
        return f"{self._path}[{index}]"


_LARGEST_ZIP_END = 22 + 65_535
"""Bytes of the record at a zip file's end, with the longest comment."""
_ZIP_COUNT = 10
"""The place of the number of entries in that record; two bytes."""
_ZIP64_COUNT = 0xFFFF
"""The number that stands there for more."""


def _require_arrays(stream: BinaryIO, found: int) -> None:
    """Raise ValueError if the archive counts more or fewer entries than the `found` ones.

    Its directory has no checksum: a changed length in there can hide the entries behind it, and zipfile says nothing.
    """
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LARGEST_ZIP_END))
    end = stream.read()
    at = end.rfind(b"PK\5\6") + _ZIP_COUNT
    counted = int.from_bytes(end[at : at + 2], "little")
    if counted not in (found, _ZIP64_COUNT):
        raise ValueError(f"its directory is damaged: it lists {found} arrays, and counts {counted}; save it again")


_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
"""By the third byte of the file; http://yann.lecun.com/exdb/mnist, "the IDX file format"."""


class IdxSource(ArraysSource):
    """`{idx: {data: train-images-idx3-ubyte.gz, label: …}}`: the files of MNIST and its like, read into memory once.

    They may be compressed by gzip. Images, shape (height, width), become (1, height, width), as nets take them.
    """

    kind = "idx"

    def __init__(self, options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> None:
        if wrong := [top for top, path in options.items() if not isinstance(path, str | os.PathLike)]:
            raise ParameterError(f"source idx: parameter {wrong[0]!r} is {options[wrong[0]]!r}: expected a path")
        wanted = chosen(options, tops, "source idx")
        super().__init__({top: _read_idx(in_folder(base_dir, str(path))) for top, path in wanted.items()})


def _read_idx(path: Path) -> AnyArray:
    try:
        content = read_whole(path)
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"source idx: {str(path)!r} cannot be read: {error}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES or len(content) < 4 + 4 * content[3]:
        raise SourceError(
            f"source idx: {str(path)!r} is no IDX file with a whole header: it has {len(content):,} bytes and begins "
            f"with {content[:4]!r}; fetch it again, or name another file"
        )
    dtype, start = np.dtype(_IDX_TYPES[content[2]]), 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    if len(content) != start + math.prod(shape) * dtype.itemsize:
        raise SourceError(
            f"source idx: {str(path)!r} has {len(content):,} bytes, and its header says {shape} of {dtype.name}: it is "
            "damaged; fetch it again"
        )
    array = np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    return array[:, np.newaxis] if len(shape) == 3 else array
