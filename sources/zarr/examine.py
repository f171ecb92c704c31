"""The metadata of a zarr array, as the layout by which its chunks are read.

The documents are read here and understood by the zarr library: opening an array through it would start threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...workers.base import SourceError
from ..files import locate, stamp_of
from ..files.urls import is_url, join_path
from ..stored import CF_ATTRIBUTES, ChunkFilter, ChunkObjects, StoredArray

_WHAT = "source zarr"
_BYTES_CODECS = ("gzip", "zstd", "blosc")


def examine_array(folder: str, name: str) -> StoredArray | None:
    """The array in `folder`, None if there is none; raises SourceError for one that cannot be read."""
    for document, examine in (("zarr.json", _examine_v3), (".zarray", _examine_v2)):
        place = join_path(folder, document)
        if (text := _read(place)) is None:
            continue
        try:
            found = json.loads(text)
            if found.get("node_type") == "group":
                return None
            shape, dtype, layout = examine(folder, found)
            is_v2 = examine is _examine_v2
            told = json.loads(_read(join_path(folder, ".zattrs")) or "{}") if is_v2 else found.get("attributes")
            named = told or {}
            attributes = {name: np.ravel(named[name]).tolist() for name in CF_ATTRIBUTES if name in named}
            # Of version 2 xarray takes the value of chunks that were not written for that of what is missing.
            if is_v2 and "_ARRAY_DIMENSIONS" in named and found["fill_value"] is not None:
                attributes.setdefault("_FillValue", np.frombuffer(layout.fill, dtype).tolist())
            if any(size < 1 <= extent for extent, size in zip(shape, layout.shard or layout.chunk, strict=True)):
                raise ValueError(f"its chunks have shape {layout.chunk}")
            if max(shape, default=0) > np.iinfo(np.int64).max:
                raise ValueError(f"its shape is {shape}")
        except SourceError:
            raise
        except Exception as error:  # the zarr library has errors of many kinds
            raise SourceError(f"{_WHAT}: {place} cannot be understood: {error}") from error
        if not shape or dtype.kind not in "biufcSU":
            raise SourceError(f"{_WHAT}: {folder} has shape {shape} and type {dtype}: expected an array of numbers")
        dims = tuple((named.get("_ARRAY_DIMENSIONS") if is_v2 else found.get("dimension_names")) or ())
        dims = dims if all(dims) and len(set(dims)) == len(shape) else ()
        return StoredArray(stamp_of(place), name, shape, dtype, layout, attributes=attributes, dims=dims)
    return None


def _read(document: str) -> bytes | None:
    is_there = is_url(document) or Path(document).is_file()
    store, key = locate(document)
    text = store.get_whole(key) if is_there else None
    return None if text is None else bytes(text)


_Examined = tuple[tuple[int, ...], "np.dtype[np.generic]", ChunkObjects]


def _examine_v3(folder: str, document: dict[str, Any]) -> _Examined:
    from zarr.core.metadata import ArrayV3Metadata

    meta = ArrayV3Metadata.from_dict(document)
    outer: tuple[int, ...] = meta.chunk_grid.chunk_shape  # type: ignore[attr-defined]
    codecs = [codec.to_dict() for codec in meta.codecs]
    chunk, further = outer, dict[str, Any]()
    if codecs[0]["name"] == "sharding_indexed" and len(codecs) == 1:
        sharding: Any = codecs[0]["configuration"]
        chunk = tuple(sharding["chunk_shape"])
        index = [codec["name"] for codec in sharding["index_codecs"]]
        if index not in (["bytes"], ["bytes", "crc32c"]):
            raise SourceError(f"{_WHAT}: {folder}: the index of its shards is stored with {index}, which is not read")
        further = {
            "shard": tuple(extent // size for extent, size in zip(outer, chunk, strict=True)),
            "index_at_end": sharding["index_location"] == "end",
            "index_checked": len(index) == 2,
        }
        codecs = sharding["codecs"]
    order, filters, is_big = _undone(folder, codecs, len(chunk))
    dtype = np.dtype(meta.dtype.to_native_dtype()).newbyteorder(">" if is_big else "<")
    name = meta.chunk_key_encoding.encode_chunk_key((1, 1))
    lead, separator = name.partition("1")[0], name.rpartition("1")[0][-1]
    fill = np.asarray(meta.fill_value, dtype).tobytes()
    return meta.shape, dtype, ChunkObjects(folder, chunk, lead, separator, fill, filters, order, **further)


def _undone(
    folder: str, codecs: Sequence[Mapping[str, Any]], rank: int
) -> tuple[tuple[int, ...], tuple[ChunkFilter, ...], bool]:
    """The order of the axes, the filters, and whether elements are big-endian."""
    order, filters, is_big = tuple(range(rank)), [], False
    for codec in codecs:
        name, options = codec["name"], codec.get("configuration") or {}
        if name == "transpose":
            order = tuple(order[axis] for axis in options["order"])
        elif name == "bytes":
            is_big = options.get("endian") == "big"
        elif name == "crc32c":
            filters.append(ChunkFilter("crc32c"))
        elif name in _BYTES_CODECS or name.startswith("numcodecs."):
            known = {"id": name.removeprefix("numcodecs.")} | ({} if name in _BYTES_CODECS else options)
            filters.append(ChunkFilter("numcodecs", codec=json.dumps(known)))
        else:
            raise SourceError(
                f"{_WHAT}: {folder} is stored with the codec {name!r}, which is not read; there are transpose, bytes, "
                "gzip, zstd, blosc, crc32c, numcodecs.* and sharding_indexed as the only outer one"
            )
    return order, tuple(filters), is_big


def _examine_v2(folder: str, document: dict[str, Any]) -> _Examined:
    from zarr.core.metadata import ArrayV2Metadata

    meta = ArrayV2Metadata.from_dict({"attributes": {}, **document})
    dtype = np.dtype(meta.dtype.to_native_dtype())
    axes = tuple(range(len(meta.shape)))
    applied = [*(document.get("filters") or ()), *([document["compressor"]] if document.get("compressor") else ())]
    filters = tuple(ChunkFilter("numcodecs", codec=json.dumps(codec)) for codec in applied)
    fill = np.zeros((), dtype) if meta.fill_value is None else np.asarray(meta.fill_value, dtype)
    separator = document.get("dimension_separator", ".")
    order = axes if meta.order == "C" else axes[::-1]
    return meta.shape, dtype, ChunkObjects(folder, meta.chunks, "", separator, fill.tobytes(), filters, order)
