"""Opening tables of stored arrays: the options that hdf5, npy and zarr share, and what they have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ...workers.api import NotNegative, Positive
from ...workers.base import ParameterError, SourceError
from ..files import Locking, RemoteStamp
from ..table import Column, Store, Table, WindowOptions
from .grid import Grid, Parts
from .layout import Chunked, Dims, StoredArray
from .packing import packing_of
from .patches import Patches, Patching, PatchOptions
from .store import FileStore

_log = logging.getLogger("blobfeed")
_CACHE_BYTES, _MOST_CACHE_BYTES = 32 << 20, 256 << 20
_WINDOW = 16
"""The blocks of patches in a window of `shuffle: chunk` by default."""


class ArrayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of stored arrays, whatever their files are.

    limit: only the first so many samples.
    dims: the stored order of the first top's dimensions, such as [n, h, w, c], or a mapping from top to such a list;
        delivered as N×C×D×H×W.
    window: samples are windows of several rows; see `window` above.
    patch: samples are parts of arrays of many axes; see `patch` above.
    """

    limit: Positive | None = None
    dims: Dims = None
    window: WindowOptions | None = None
    patch: PatchOptions | None = None


class ChunkedOptions(ArrayOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of stored arrays that have chunks and attributes.

    decode_cf: true applies the attributes by which netCDF says what numbers mean (scale_factor, add_offset, _FillValue,
        missing_value, valid_range, _Unsigned), as float32 and NaN; false reads what is stored; without it, too, and the
        log names the tops that have such attributes.
    chunk_cache_bytes: decoded chunks that each loader keeps; at least one of each top (the log says so if that is
        more), or none if it is 0. By default 32 MB, and with `patch` what a window of 16 blocks of patches needs, up to
        256 MB.
    """

    decode_cf: bool | None = None
    chunk_cache_bytes: NotNegative | None = None


def stored_table(
    kind: str,
    tops: Mapping[str, Parts],
    options: ArrayOptions,
    find: Callable[[str], Parts],
    *,
    locking: Locking = None,
    open_files: int | None = None,
    others: Sequence[Store[Any]] = (),
    columns: Sequence[Column] = (),
    order: Sequence[str] = (),
) -> Table:
    """Return the table of these arrays, or of windows or patches of them, as `options` say.

    `find`: finds another array, for the boundaries of windows and for masks. `others`: further stores that hold values.
    `columns`: further tops; `order`: of all, that of `tops` if it is empty. The rest as for FileStore.
    Raises SourceError if the arrays of a top differ in the shape or type of their samples.
    """
    what = f"source {kind}"
    cache_bytes: int | None = 0
    if isinstance(options, ChunkedOptions):
        tops, cache_bytes = _by_conventions(tops, what, decode_cf=options.decode_cf), options.chunk_cache_bytes
    arrays = [array for parts in tops.values() for array in parts]
    stamps = [stamp for array in arrays for stamp in (array.file, *array.others)]
    window, patch, limit = options.window, options.patch, options.limit
    for parts in tops.values():
        _require_readable(parts, what)
    if patch is not None:
        if window is not None:
            raise ParameterError(
                f"{what}: 'window' and 'patch' are both given: a patch may have one axis, give it alone"
            )
        patching = Patching(patch, tops, what)
        window = patching.as_window
    if patch is not None and window is None:
        masks: Parts = find(patch.where.variable) if patch.where else ()
        if isinstance(options, ChunkedOptions):
            masks = _by_conventions({"mask": masks}, what, decode_cf=bool(options.decode_cf))["mask"]
        if cache_bytes is None:
            cache_bytes = min(max(_CACHE_BYTES, _WINDOW * patching.places.block_bytes), _MOST_CACHE_BYTES)
        files = FileStore([*stamps, *(mask.file for mask in masks)], locking, open_files, cache_bytes)
        if patch.where:
            patching.leave_out(masks, files, others)
        return Table(
            kind,
            [Patches(patching.cuts, patching.places, patching.steps, files, others)],
            held_in=str(arrays[0]),
            where=patching.places.where,
            limit=limit,
            options=[
                patch,
                len(patching.places),
                *((array.name, array.arrangement, array.packing) for array in arrays),
            ],
            corners=patching.places.by_axis,
        )
    cache_bytes = _cache_bytes(_CACHE_BYTES if cache_bytes is None else cache_bytes, tops, what)
    files = FileStore(stamps, locking, open_files, cache_bytes)
    # Tops that are cut at the same samples, as those of the same HDF5 files are: samples are located once for all.
    groups: dict[tuple[int, ...], dict[str, Parts]] = {}
    for top, parts in tops.items():
        groups.setdefault(tuple(array.samples for array in parts), {})[top] = parts
    grids = [Grid(group, files, others) for group in groups.values()]
    table = Table(
        kind,
        [*grids, *columns],
        tops=tuple(order or tops),
        held_in=str(arrays[0]),
        where=grids[0].where,
        limit=None if window else limit,
        options=[
            *((array.name, array.arrangement) for array in arrays),
            *(array.packing for array in arrays if array.packing),
            *(column.options for column in columns),
        ],
    )
    if window is None:
        return table
    name = window.boundaries
    bounds = stored_table(kind, {name: find(name)}, ArrayOptions(), find, locking=locking) if name else None
    return table.windows(window, bounds, limit, patching.names[0] if patch else "0")


def _by_conventions(tops: Mapping[str, Parts], what: str, *, decode_cf: bool | None) -> Mapping[str, Parts]:
    """Return the arrays as `decode_cf` says: with what their attributes say applied, or as they are stored.

    With None, a warning names the tops that have such attributes. Raises SourceError for attributes that are not as the
    conventions have them.
    """
    if decode_cf:
        return {top: [_with_packing(array, what) for array in parts] for top, parts in tops.items()}
    if decode_cf is None:
        named = {top: next(filter(None, map(_not_applied, parts)), "") for top, parts in tops.items()}
        if said := [f"{top} ({attributes})" for top, attributes in named.items() if attributes]:
            _log.warning(
                "%s: %s: the attributes of %s are not applied, and its numbers come as they are stored: decode_cf: "
                "true applies them, as xarray and netCDF4 do, and decode_cf: false silences this",
                *(what, next(iter(tops.values()))[0].file.path, ", ".join(said)),
            )
    return tops


def _with_packing(array: StoredArray, what: str) -> StoredArray:
    try:
        return replace(array, packing=packing_of(array.attributes, array.dtype))
    except ValueError as error:
        raise SourceError(f"{what}: {array}: {error}; decode_cf: false reads it as it is stored") from error


def _not_applied(array: StoredArray) -> str:
    """The attributes of an array that would change its values, "" if there are none."""
    try:
        if packing_of(array.attributes, array.dtype) is None:
            return ""
    except ValueError:  # they are named, too
        pass
    return ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in array.attributes.items())


def _require_readable(parts: Parts, what: str) -> None:
    first = parts[0]
    for array in parts:
        if array.form != first.form:
            raise SourceError(
                f"{what}: the samples differ between files: {first} has {first.sample_shape} {first.delivered_dtype}, "
                f"{array} has {array.sample_shape} {array.delivered_dtype}; all files need the same shape per sample "
                "and the same type"
            )
        axis, layout = array.arrangement.sample_axis, array.layout
        is_one_piece = isinstance(layout, Chunked) and layout.chunk == array.shape and not layout.filters
        if axis and is_one_piece and isinstance(array.file, RemoteStamp):
            raise SourceError(
                f"{array}: its samples are counted by axis {axis} of an array in one piece, so each of them is spread "
                "over the whole object; store it with the samples first, or in chunks"
            )


def _cache_bytes(wanted: int, tops: Mapping[str, Parts], what: str) -> int:
    """`wanted`, but enough for one chunk of each top: with less, each sample in turn would decode its whole chunk."""
    needed = {top: max(array.decoded_bytes for array in parts) for top, parts in tops.items()}
    total = sum(needed.values())
    if not 0 < wanted < total:
        return wanted
    _log.warning(
        "%s: a chunk of each top takes %d bytes (%s) and chunk_cache_bytes is %d: each loader keeps %d bytes of "
        "decoded chunks; smaller chunks take less memory, and less time to read in shuffled order",
        *(what, total, ", ".join(f"{top} {size}" for top, size in needed.items() if size), wanted, total),
    )
    return total
