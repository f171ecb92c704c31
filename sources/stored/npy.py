"""NumPy files: one .npy per top, or several put end to end, read by file offset and never as a whole."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

import numpy as np

from ...workers.api import Parameters, Positive, Tops, check_options, chosen, meant, paths_as_text, shown
from ...workers.base import ParameterError, SourceError
from ..files import RangeStream, RemoteStamp, Stamp, expand_paths, stamp_of
from ..files.urls import is_url
from ..table import Table
from .grid import Parts
from .layout import FIRST_AXIS, Arrangement, Chunked, StoredArray, dims_by_top, from_names
from .opening import ArrayOptions, stored_table


class NpyOptions(ArrayOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {npy: …}` beside the tops, which have a path, a glob or a list of them each.

    open_files: files that each loader keeps open at a time; without it a quarter of its descriptors, from 16 to 4,096.
    """

    open_files: Positive | None = None


def open_npy(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """The samples of .npy files: each top its own file, or several files put end to end.

    `options`: for each top its path, glob or list of them, and the fields of NpyOptions.
    """
    fields = NpyOptions.__struct_fields__
    checked = check_options({name: options[name] for name in fields if name in options}, NpyOptions, "source npy")
    named = {name: _paths(name, value) for name, value in options.items() if name not in fields}
    if not named:
        raise ParameterError("source npy: no files: give each top's path, such as {data: data.npy, label: label.npy}")
    bounds = checked.window.boundaries if checked.window else None
    mask = checked.patch.where.variable if checked.patch and checked.patch.where else None
    free = {name: paths for name, paths in named.items() if name != bounds and (name != mask or name in (tops or ()))}
    wanted = chosen(free, tops, "source npy")
    for name in named.keys() - wanted.keys():
        if not _are_there(named[name], base_dir):
            raise ParameterError(
                f"source npy: unknown parameter {name!r}{_meant(name)}: the tops are {', '.join(wanted)}, and "
                f"{shown(named[name])} is no file for another; the other parameters are {', '.join(fields)}"
            )
    dims = dims_by_top(checked.dims, tuple(wanted), "source npy")
    for asked, option in ((bounds, "window.boundaries"), (mask, "patch.where.variable")):
        chosen(named, [asked] if asked else (), f"source npy: parameter {option!r}")

    def parts(top: str) -> Parts:
        return [_examine(path, top, dims.get(top)) for path in expand_paths(named[top], base_dir, "source npy")]

    found = {top: parts(top) for top in wanted}
    return stored_table("npy", found, checked, parts, open_files=checked.open_files)


def _paths(top: str, value: object) -> list[str]:
    given = paths_as_text(value)
    paths = [given] if isinstance(given, str) else given
    if not isinstance(paths, list | tuple) or not paths or not all(isinstance(path, str) for path in paths):
        raise ParameterError(
            f"source npy: parameter {top!r} is {shown(value)}: expected a path, a glob or a list of them for a top of "
            f"that name; the other parameters are {', '.join(NpyOptions.__struct_fields__)}"
        )
    return list(paths)


def _meant(name: str) -> str:
    """Return a hint at the parameter that `name` may stand for: options of a layer stand beside those of the run."""
    return meant(name, (*NpyOptions.__struct_fields__, *Parameters.__struct_fields__))


def _are_there(paths: Sequence[str], base_dir: Path) -> bool:
    try:
        files = expand_paths([path for path in paths if not is_url(path)], base_dir, "source npy")
    except SourceError:
        return False
    return all(Path(file).exists() for file in files)


def _examine(path: str, top: str, dims: Sequence[str] | None) -> StoredArray:
    """The array in the .npy file at `path`, of `top`, its dimensions in the order `dims` if that is given."""
    if not is_url(path) and Path(path).exists() and not Path(path).is_file():
        raise SourceError(
            f"source npy: {path!r} is not a regular file; name a .npy file, or use a glob such as '*.npy'"
        )
    try:
        stamp = stamp_of(path)
        with (
            io.BufferedReader(RangeStream(stamp)) if isinstance(stamp, RemoteStamp) else Path(path).open("rb") as stream
        ):
            shape, in_fortran_order, dtype = read_header(stream)
            offset = stream.tell()
    except OSError as error:
        raise SourceError(
            f"source npy: {path!r} cannot be opened: {error.strerror}; parameter {top!r} names it{_meant(top)}"
        ) from error
    except (ValueError, TokenError) as error:  # the header is Python's syntax, which is tokenized
        raise SourceError(f"source npy: {path!r} is not a .npy file that can be read: {error}") from error
    _require_readable(stamp, offset, shape, dtype)
    if in_fortran_order and len(shape) > 1:
        # Fortran's order of one shape is C's order of the reversed shape.
        last = len(shape) - 1
        shape, dims, arrangement = shape[::-1], dims and dims[::-1], Arrangement(last, tuple(reversed(range(last))))
    else:
        arrangement = FIRST_AXIS
    if dims:
        arrangement = from_names(dims, len(shape), f"source npy: {path}")
    return StoredArray(stamp, "", shape, dtype, Chunked(shape, np.array([offset])), arrangement=arrangement)


def read_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether in Fortran's order, and type; raises ValueError or TokenError for what is no .npy file."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version in ((2, 0), (3, 0)):  # 3.0 has other letters in the names of fields
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"its format is version {version[0]}.{version[1]}: expected 1.0, 2.0 or 3.0")


def _require_readable(stamp: Stamp, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    what, end = f"source npy: {stamp.path!r}", offset + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise SourceError(
            f"{what} holds pickled Python objects ({dtype}), which cannot be read in place and are not safe to load; "
            "save an array of numbers, such as np.save(path, np.stack(arrays))"
        )
    if dtype.kind not in "biufcSU":
        raise SourceError(
            f"{what} holds {dtype}, which is no array of numbers or strings; save each field by itself, dates as whole "
            "numbers, and bfloat16, which np.save writes as |V2, as float32"
        )
    if not shape:
        raise SourceError(f"{what} holds a single value: it has no axis that counts samples")
    if min(shape) < 0:
        raise SourceError(f"{what} is damaged: its header says shape {shape}; write or copy it again")
    if end > stamp.size:
        raise SourceError(
            f"{what} is cut short: shape {shape} of {dtype} ends at byte {end}, the file has {stamp.size}; write or "
            "copy it again"
        )
