"""Arrays in memory as a source: copied once into a memory file, which every loader maps and none has a copy of."""

from __future__ import annotations

import gzip
import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from ..workers.api import AnyArray, Tops, check_options, chosen, plain_array
from ..workers.base import ParameterError, SourceError, in_folder, read_whole
from ..workers.transport import available_memory
from .files.roles import in_order
from .table import Memory, Resident, Table, WindowOptions


def open_arrays(options: Mapping[str, Any], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """`{arrays: {data: x, label: y}}`: sample i has row i of each array, or of whatever NumPy makes an array of.

    A mapping `window` beside them makes windows of them, as WindowOptions says.
    The arrays may be changed or dropped afterwards. Raises ParameterError for what is no array of numbers or strings,
    SourceError if there is no memory for a copy.
    """
    given = dict(options)
    if not isinstance(given.get("window"), Mapping):
        return _in_memory("arrays", "arrays", chosen(given, tops, "source arrays"))
    window = check_options(given.pop("window"), WindowOptions, "source arrays: parameter 'window'")
    bounds = None
    if (name := window.boundaries) is not None:
        chosen(given, [name], "source arrays: parameter 'window.boundaries'")
        bounds = _in_memory("arrays", "arrays", {name: given.pop(name)})
    return _in_memory("arrays", "arrays", chosen(given, tops, "source arrays")).windows(window, bounds)


def _in_memory(kind: str, held_in: str, wanted: Mapping[str, Any]) -> Table:
    """The table of a copy of these arrays, by top; `held_in` names them in messages."""
    arrays = {top: _checked(kind, top, value) for top, value in wanted.items()}
    if not arrays:
        raise ParameterError(f"source {kind}: no arrays: give one by each top's name, such as data and label")
    size = sum(array.nbytes for array in arrays.values())
    if size > (available := available_memory()):
        raise SourceError(
            f"source {kind}: a copy of the arrays for the loaders takes {size:,} bytes, and {available:,} are "
            "available: save them with np.save and read them as {npy: {data: data.npy, …}}, which needs no memory"
        )
    memory = Memory(kind, arrays)
    return Table(kind, [Resident(top, memory) for top in arrays], held_in=held_in)


def _checked(kind: str, name: str, value: object) -> AnyArray:
    try:
        array = plain_array(value, name, f"source {kind}: got")
    except ValueError as error:
        raise ParameterError(str(error)) from error
    if array.dtype == object and all(isinstance(item, str) for item in array.flat):
        array = np.array(array.tolist())  # as pandas has words: NumPy alone would also write a missing one as "nan"
    if array.dtype.kind not in "biufcSU" or not array.ndim or not len(array):
        raise ParameterError(
            f"source {kind}: {name!r} is a {type(value).__name__} of type {array.dtype} and shape "
            f"{array.shape}: expected an array of numbers or strings whose first axis counts the samples, at "
            "least one; to leave it out, name the others in 'tops'"
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class NpzOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `source: {npz: …}`.

    path: the file that np.savez or np.savez_compressed wrote.
    """

    path: str


def open_npz(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """`{npz: {path: train.npz}}`: the arrays of an .npz file, read into memory once."""
    path = in_folder(base_dir, check_options(options, NpzOptions, "source npz").path)
    what = f"source npz: {str(path)!r}"
    if path.exists() and not (path.is_file() and zipfile.is_zipfile(path)):
        raise SourceError(f"{what} is no .npz file, as np.savez writes them; read a .npy file as {{npy: …}}")
    try:
        # np.load leaves a file open that it opened itself and cannot read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            require_arrays(stream, len(file.files))
            wanted = {name: file[name] for name in chosen(dict.fromkeys(in_order(file.files)), tops, "source npz")}
    except ParameterError:
        raise
    except OSError as error:
        raise SourceError(f"{what} cannot be opened: {error.strerror}") from error
    except Exception as error:  # a damaged one makes zipfile raise NotImplementedError, RuntimeError and more
        raise SourceError(
            f"{what} does not hold arrays of numbers that can be read: {error}; if it holds others too, name those "
            "in 'tops'"
        ) from error
    return _in_memory("npz", str(path), wanted)


_LARGEST_ZIP_END = 22 + 65_535
"""Bytes of the record at a zip file's end, with the longest comment."""
_ZIP_COUNT = 10
"""The place of the number of entries in that record; two bytes."""
_ZIP64_COUNT = 0xFFFF
"""The number that stands there for more."""


def require_arrays(stream: io.RawIOBase | BinaryIO, found: int) -> None:
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


def open_idx(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """`{idx: {data: train-images-idx3-ubyte.gz, label: …}}`: the files of MNIST and its like, read into memory once.

    They may be compressed by gzip. Images, shape (height, width), become (1, height, width), as nets take them.
    """
    if wrong := [top for top, path in options.items() if not isinstance(path, str | os.PathLike)]:
        raise ParameterError(f"source idx: parameter {wrong[0]!r} is {options[wrong[0]]!r}: expected a path")
    wanted = chosen(options, tops, "source idx")
    return _in_memory("idx", "idx", {top: _read_idx(in_folder(base_dir, str(path))) for top, path in wanted.items()})


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
    if len(content) != start + math.prod(shape) * dtype.itemsize or not math.prod(shape) or not shape:
        raise SourceError(
            f"source idx: {str(path)!r} has {len(content):,} bytes, and its header says {shape} of {dtype.name}: it is "
            "damaged; fetch it again"
        )
    array = np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    return array[:, np.newaxis] if len(shape) == 3 else array
