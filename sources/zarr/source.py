"""zarr: one array for each top, version 2 or 3, with or without shards, on disk or in object storage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...workers.api import Paths, Tops, check_options
from ...workers.base import SourceError
from ..files import digest, expand_paths, natural_key, objects_below, spread
from ..files.urls import folder_of, is_url, join_path
from ..stored import ChunkedOptions, ChunkObjects, StoredArray, dims_by_top, from_names, stored_table
from ..table import Store, Table
from .examine import examine_array

_WHAT = "source zarr"


class ZarrOptions(ChunkedOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of `source: {zarr: …}`, beside those of all stored arrays.

    path: a group that has an array for each top, several of them put end to end, or a glob; or an array by itself,
        which is the only top.
    """

    path: Paths


def open_zarr(options: Mapping[str, object], *, tops: Tops = None, base_dir: Path = Path()) -> Table:
    """The samples of zarr arrays. A chunk that is not there has the fill value, as zarr says.

    `options`: the fields of ZarrOptions. `tops`: names of arrays; None for "data" and "label".
    """
    checked = check_options(options, ZarrOptions, _WHAT)
    given = [checked.path] if isinstance(checked.path, str) else checked.path
    paths = [found for path in given for found in _expanded(path.rstrip("/"), base_dir)]
    wanted = tuple(tops or ("data", "label"))
    found = [_arrays(path, wanted) for path in paths]
    for path, arrays in zip(paths, found, strict=True):
        if arrays.keys() != found[0].keys():
            raise SourceError(
                f"{_WHAT}: {path} has {', '.join(arrays)} and {paths[0]} has {', '.join(found[0])}: what is put "
                "end to end needs the same tops; name only groups, or only arrays"
            )
    for top, names in dims_by_top(checked.dims, tuple(found[0]), _WHAT).items():
        for arrays in found:
            arrangement = from_names(names, len(arrays[top].shape), str(arrays[top]))
            arrays[top] = replace(arrays[top], arrangement=arrangement)
    columns = {top: [arrays[top] for arrays in found] for top in found[0]}
    watched = [array for parts in columns.values() for array in parts]  # and what is found beside them

    def find(name: str) -> list[StoredArray]:
        beside = [_beside(path, name) for path in paths]
        watched.extend(beside)
        return beside

    return stored_table("zarr", columns, checked, find, others=[_Chunks(watched)])


class _Chunks(Store[str]):
    """The folders of chunks. They may be changed while they are read: only the metadata are watched, and shards."""

    def __init__(self, arrays: Sequence[StoredArray]) -> None:
        self._arrays = arrays

    def content(self, *, every: bool) -> dict[str, str]:
        """Covers the size and the time of each chunk and shard; without `every` at most 1000 of each local array."""
        if every:
            folders = [array.layout.folder for array in self._arrays if isinstance(array.layout, ChunkObjects)]
            return {"chunks": digest([list(objects_below(folder, _WHAT)) for folder in folders])}
        looks = []
        for path in (path for array in self._arrays for path in _some_chunks(array)):
            with suppress(FileNotFoundError):  # a chunk of fill values
                looks.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
        return {"chunks": digest(looks)}


def _expanded(path: str, base_dir: Path) -> list[str]:
    """The groups or arrays that `path` means, as `expand_paths`."""
    if not (is_url(path) and "*" in path):
        return [found.rstrip("/") for found in expand_paths(path, base_dir, _WHAT)]
    # A store lists objects, and a group is none: it is what has an object zarr.json, .zgroup or .zarray.
    found = expand_paths(join_path(path, "[z.]*"), base_dir, _WHAT)
    return sorted({folder_of(document) for document in found}, key=natural_key)


def _some_chunks(array: StoredArray) -> Iterator[Path]:
    layout = array.layout
    if not isinstance(layout, ChunkObjects) or is_url(layout.folder):
        return
    per_object = layout.shard or (1,) * len(layout.chunk)
    extents = zip(array.shape, layout.chunk, per_object, strict=True)
    grid = [-(-extent // (chunk * count)) for extent, chunk, count in extents]
    for number in spread(math.prod(grid)):
        yield Path(layout.folder, layout.key([int(at) for at in np.unravel_index(number, grid)]))


def _beside(path: str, name: str) -> StoredArray:
    """Return an array that is no top."""
    if (array := examine_array(join_path(path, name), name)) is None:
        raise SourceError(
            f"{_WHAT}: there is no array {join_path(path, name)}, which 'patch.where' or 'window.boundaries' names: it "
            "stands beside the tops in the group that 'path' is"
        )
    return array


def _arrays(path: str, tops: Sequence[str]) -> dict[str, StoredArray]:
    whole = examine_array(path, tops[0])
    arrays = {tops[0]: whole} if whole else {top: examine_array(join_path(path, top), top) for top in tops}
    for top, array in arrays.items():
        if array is None:
            place = join_path(path, top)
            raise SourceError(
                f"{_WHAT}: there is no array {place} (no zarr.json and no .zarray); check 'path' and 'tops'"
            )
    return {top: array for top, array in arrays.items() if array is not None}
