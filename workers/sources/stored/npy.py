"""NumPy files: one .npy per top, or several put end to end, read at their place in the file and never as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

import msgspec
import numpy as np

from ...base.checks import check_options, nearest
from ...base.errors import ParameterError, SourceError
from .axes import FIRST_AXIS, fortran
from .columns import Access, Column
from .dims import from_names, named_dims
from .file import FileStamp
from .layout import Contiguous, StoredArray
from .paths import as_strings, expand_paths
from .source import StoredSource

Positive = Annotated[int, msgspec.Meta(ge=1)]


class NpyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stands under `source: {npy: …}` beside the tops, which have a path, a glob or a list of them each.

    limit: only the first so many samples.
    dims: the stored order of the first top's dimensions, such as [n, h, w, c], or a mapping from top to such a list;
        delivered as N×C×H×W.
    open_files: files that each loader keeps open at a time; without it what a quarter of its descriptors allows.
    memory_map: true or false to read always or never from a memory map; by the size of a sample where it is left out.
    """

    limit: Positive | None = None
    dims: tuple[str, ...] | dict[str, tuple[str, ...]] | None = None
    open_files: Positive | None = None
    memory_map: bool | None = None


class NpySource(StoredSource):
    """The samples of .npy files: each top its own file, or several files put end to end.

    Raises ParameterError for a bad option, SourceError where a file is missing, damaged, holds Python objects, or does
    not fit the others.
    """

    kind = "npy"

    def __init__(self, *, tops: Sequence[str] | None = None, base_dir: Path = Path(), **options: object) -> None:
        """`options`: for each top its path, glob or list of them, and the fields of NpyOptions.

        `tops`: which of them are wanted, in which order; None: all, as they are named.
        """
        fields = NpyOptions.__struct_fields__
        checked = check_options({name: options[name] for name in fields if name in options}, NpyOptions, "source npy")
        paths = {name: value for name, value in options.items() if name not in fields}
        wanted = _wanted(paths, tops)
        dims = named_dims(checked.dims, wanted, "source npy")
        columns = {}
        for top in wanted:
            arrays = [examine_npy(path, dims.get(top)) for path in _list_files(top, paths[top], base_dir)]
            for array in arrays:
                array.require_like(arrays[0], "source npy")
            columns[top] = Column(arrays)
        super().__init__(columns, Access(checked.memory_map, open_files=checked.open_files), limit=checked.limit)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, tops: Sequence[str] | None, base_dir: Path) -> Self:
        return cls(tops=tops, base_dir=base_dir, **options)


def _wanted(paths: Mapping[str, object], tops: Sequence[str] | None) -> tuple[str, ...]:
    if not paths:
        raise ParameterError("source npy: no files: give each top's path, such as {data: data.npy, label: label.npy}")
    for top in tops or ():
        if top not in paths:
            raise ParameterError(
                f"source npy: no path for the top {top!r}{nearest(top, paths)}; it has {', '.join(paths)}"
            )
    return tuple(tops or paths)


def _list_files(top: str, value: object, base_dir: Path) -> list[str]:
    paths = as_strings(value)
    entries = [paths] if isinstance(paths, str) else paths
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, str) for entry in entries):
        raise ParameterError(
            f"source npy: parameter {top!r} is {value!r}: expected a path, a glob or a list of them for a top of that "
            f"name; the other parameters are {', '.join(NpyOptions.__struct_fields__)}"
        )
    return [str(path) for path in expand_paths(entries, base_dir, "source npy")]


def examine_npy(path: str, dims: Sequence[str] | None = None) -> StoredArray:
    """The array in the .npy file at `path`, its dimensions in the order `dims` where that is given.

    Raises SourceError where it cannot be read at its place in the file.
    """
    try:
        stamp = FileStamp.of(path)
        with Path(path).open("rb") as stream:
            shape, in_fortran_order, dtype = _read_header(stream)
            offset = stream.tell()
    except OSError as error:
        raise SourceError(f"source npy: {path!r} cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise SourceError(f"source npy: {path!r} is not a .npy file that can be read: {error}") from error
    _require_plain(path, dtype)
    _require_whole(stamp, offset, shape, dtype)
    # What Fortran's order is for one shape, is C's for the shape turned round.
    turned = in_fortran_order and len(shape) > 1
    arrangement = fortran(len(shape)) if turned else FIRST_AXIS
    if dims:
        arrangement = from_names(dims[::-1] if turned else dims, len(shape), f"source npy: {path}")
    return StoredArray(stamp, "", shape[::-1] if turned else shape, dtype, Contiguous(offset), None, arrangement)


def _read_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"its format is version {version[0]}.{version[1]}, which only structured arrays need")


def _require_plain(path: str, dtype: np.dtype[np.generic]) -> None:
    if dtype.hasobject:
        raise SourceError(
            f"source npy: {path!r} holds pickled Python objects ({dtype}), which cannot be read in place and are not "
            "safe to load; save an array of numbers, such as np.save(path, np.stack(arrays))"
        )
    if dtype.kind not in "biufcSU":
        raise SourceError(
            f"source npy: {path!r} holds {dtype}, which is no array of numbers or strings; save each field by itself"
        )


def _require_whole(stamp: FileStamp, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    if not shape:
        raise SourceError(f"source npy: {stamp.path!r} holds a single value: it has no axis that counts samples")
    end = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if end > stamp.size:
        raise SourceError(
            f"source npy: {stamp.path!r} is cut short: shape {shape} of {dtype} ends at byte {end}, the file has "
            f"{stamp.size}; write or copy it again"
        )
