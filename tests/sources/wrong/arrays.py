"""Arrays that are wrong: in memory, as .npy and .npz files, in zarr, in MNIST's format; and several sources as one."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from blobfeed.readers.opening import open_pipeline
from blobfeed.sources import open_source
from blobfeed.sources.arrays import open_arrays
from blobfeed.sources.cache import CachedSource
from blobfeed.sources.table import Memory
from blobfeed.workers.api import AnyArray, check_parameters
from zarr.codecs import Crc32cCodec, ZstdCodec

from tests.support.catalogue import Scenario, scenario
from tests.support.stored import opened, some_array

DATA = np.arange(120, dtype=np.float32).reshape(20, 3, 2)
LABEL = np.arange(20)

ARRAYS = {"data": DATA, "label": LABEL}


def _too_large(_folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blobfeed.sources.arrays.available_memory", lambda: 400)
        open_arrays({"data": DATA})


def _gone(_folder: Path) -> Any:
    sent = pickle.dumps(Memory("test", {"data": DATA}))
    pickle.loads(sent)


def of(spec: Any, tops: Any = None) -> Scenario:
    return lambda folder: open_source(spec, tops=tops, base_dir=folder)


# ---- windows


def windows(tops: Any = None, ends: Any = (7, 20), **options: Any) -> Scenario:
    return of({"arrays": {**ARRAYS, "ends": np.array(ends), "window": {"boundaries": "ends", **options}}}, tops)


def windows_of_files(folder: Path) -> Any:
    for name, steps in {"data_0": 5, "data_1": 4}.items():
        np.save(folder / f"{name}.npy", np.full(steps, 9))
    np.save(folder / "ends.npy", np.array([9]))
    return opened("npy", folder, data="data_*.npy", ends="ends.npy", window={"length": 2, "boundaries": "ends"})


WINDOWS = {
    "window, no length": windows(stride=2),
    "window, no steps": windows(length=0),
    "window, longer than all sequences": windows(length=14),
    "window, an unknown option": windows(length=2, strid=3),
    "window, an unknown step": windows(length=2, labels="lst"),
    "window, unknown boundaries": windows(length=2, boundaries="end"),
    "window, boundaries that descend": windows(ends=[9, 7, 20], length=2),
    "window, boundaries that end before the steps": windows(ends=[9, 19], length=2),
    "window, boundaries with fractions": windows(ends=[9.0, 20.0], length=2),
    "window, boundaries in another number of files": windows_of_files,
}

# ---- .npy and .npz files, MNIST's format


def saved(array: AnyArray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


@scenario
def file(folder: Path, /, content: bytes, kind: str = "npy", **options: Any) -> Any:
    """A file of this content, bad."""
    (folder / "bad").write_bytes(content)
    return opened(kind, folder, **(options or {"data": "bad"}))


@scenario
def npy(folder: Path, /, tops: Any = None, **options: Any) -> Any:
    arrays: dict[str, AnyArray] = {"data": np.zeros((5, 2)), "label": np.arange(4), "wide": np.zeros((5, 3))}
    for name, array in {**arrays, "integers": np.zeros((5, 2), "i4")}.items():
        np.save(folder / f"{name}.npy", array)
    return opened("npy", folder, tops, **options)


@scenario
def npz(folder: Path, /, damage: Callable[[bytearray, int], None], **arrays: Any) -> Any:
    """`damage` gets the file's content, and where its directory begins."""
    np.savez(folder / "bad.npz", **(arrays or ARRAYS))
    content = bytearray((folder / "bad.npz").read_bytes())
    damage(content, content.index(b"PK\1\2"))
    (folder / "bad.npz").write_bytes(content)
    return opened("npz", folder, path="bad.npz")


def flag(content: bytearray, directory: int) -> None:
    content[directory + 8] |= 1 << 5  # for which zipfile raises NotImplementedError


def hide(content: bytearray, directory: int) -> None:
    content[directory + 33] ^= 1  # its comment is said to have 256 bytes, which are the second entry's


def magic(content: bytearray, directory: int) -> None:
    content[directory + 1] ^= 1


def nothing(content: bytearray, directory: int) -> None:
    pass


NPY = {
    "npy, empty file": file(b""),
    "npy, cut short by a byte": file(saved(np.zeros((9, 3)))[:-1]),
    "npy, cut short in its header": file(saved(np.zeros((9, 3)))[:100]),
    "npy, pickled objects": file(saved(np.array([{}, 1], object))),
    "npy, structured": file(saved(np.zeros(9, [("x", "f4")]))),
    "npy, opaque": file(saved(np.zeros(9, "V2"))),
    "npy, a single value": file(saved(np.array(3.0))),
    "npy, no samples": file(saved(np.zeros((0, 3)))),
    "npy, absent": npy(data="absent.npy"),
    "npy, absent, and the top is like an option": npy(dim="absent.npy"),
    "npy, a glob without a match": npy(data="absent*.npy"),
    "npy, unequal shapes": npy(data=["data.npy", "wide.npy"]),
    "npy, no options": npy(),
    "npy, a number for a path": npy(data=5),
    "npy, a misspelt option": npy(data="data.npy", limt=3),
    "npy, a misspelt option beside tops": npy(["data"], data="data.npy", dim=["n", "w"]),
    "npy, a negative limit": npy(data="data.npy", limit=-1),
    "npy, too many dims": npy(data="data.npy", dims=["h", "w", "n"]),
    "npy, an unknown top": npy(["data", "lable"], data="data.npy", label="data.npy"),
    "npz, absent": of({"npz": "none.npz"}),
    "npz, text": file(b"text", "npz", path="bad"),
    "npz, a word": npz(nothing, **ARRAYS, more=np.array("words")),
    "npz, objects beside arrays": npz(nothing, **ARRAYS, more=np.array([None, {}], dtype=object)),
    "npz, an unknown flag": npz(flag),
    "npz, an array is hidden": npz(hide),
    "npz, a damaged directory": npz(magic),
    **{f"{kind}, a path without a top": of({kind: "one.file"}) for kind in ("npy", "idx", "arrays")},
}


# ---- arrays in memory, and several sources

MEMORY = {
    "arrays, objects in a list": of({"arrays": {"data": [None]}}),
    "arrays, words with None": of({"arrays": {"data": np.array(["one", None], object)}}),
    "arrays, bytes that end with zero": of({"arrays": {"data": np.array([b"one", b"three\0"], object)}}),
    "arrays, a number": of({"arrays": {"data": 3}}),
    "arrays, no samples": of({"arrays": {"data": np.zeros((0, 2))}}),
    "arrays, masked": of({"arrays": {"data": np.ma.masked_array([1.0, 9e9], mask=[False, True])}}),
    "arrays, a ragged list": of({"arrays": {"data": [[1], [1, 2]]}}),
    "arrays, a tensor with a gradient": of({"arrays": {"data": torch.ones(2, requires_grad=True)}}),
    "arrays, bfloat16": of({"arrays": {"data": torch.ones(2, dtype=torch.bfloat16)}}),
    "arrays, unequal lengths": of({"arrays": {"data": DATA, "label": LABEL[1:]}}),
    "arrays, more than there is memory for": _too_large,
    "arrays, memory that is gone": _gone,
    "arrays, none": of({"arrays": {}}),
    "concat, unequal tops": of({"concat": [{"arrays": ARRAYS}, {"arrays": {"data": DATA}}]}),
    "concat, an unknown kind": of({"concat": [{"arrays": ARRAYS}, {"arays": {}}]}),
    "concat, a stream": of({"concat": [{"arrays": ARRAYS}, {"stream": {"make": "module:function"}}]}),
    "concat, nothing": of({"concat": []}),
    "concat, a path": of({"concat": "train.h5"}),
    "zip, tops the wrong way round": of({"zip": [{"arrays": ARRAYS, "tops": {"data": "picture"}}]}),
    "zip, other lengths": of({"zip": [{"arrays": {"data": [1, 2, 3]}}, {"arrays": {"label": [1, 2]}}]}),
    "zip, one name for two tops": of({"zip": [{"arrays": {"data": [1]}}, {"arrays": {"data": [2]}}]}),
    "zip, two names for one top": of({"zip": [{"arrays": {"data": [1]}, "tops": {"a": "data", "b": "data"}}]}),
    "an unknown kind": of({"streams": {}}),
    "arrays without their kind": of(ARRAYS),
    "an array as arrays": of({"arrays": DATA}),
    "a stream where samples need indices": of({"stream": {}}),
}


@scenario
def mix(folder: Path, /, **changed: Any) -> Any:
    """A mix whose second part is changed."""
    for name, rows in {"many": np.zeros((9, 1)), "few": np.zeros((4, 1)), "wide": np.zeros((4, 2))}.items():
        np.save(folder / f"{name}.npy", rows)
    parts = [{"npy": {"data": "many.npy"}, "weight": 0.7}, {"npy": {"data": "few.npy"}, "weight": 0.3, **changed}]
    return open_pipeline(check_parameters({"mix": parts, "batch_size": 2}), base_dir=folder)


MIX = {
    "mix, no weight": mix(weight=0),
    "mix, a misspelt weight": mix(weigth=2),
    "mix, a word for a weight": mix(weight="much"),
    "mix, a part's bad option": mix(npy={"data": "few.npy", "limit": 0}),
    "mix, two kinds in a part": mix(hdf5={"path": "few.h5"}),
    "mix, unequal shapes": mix(npy={"data": "wide.npy"}),
}


# ---- zarr


@scenario
def zarr_of(
    folder: Path, /, change: Callable[[Path], object], path: Any = "a.zarr", tops: Any = ("data",), **options: Any
) -> Any:
    """A group with an array `data`, opened after `change` got the folder of that array."""
    group = zarr.open_group(folder / "a.zarr", mode="w")
    values = some_array((41, 6, 5), "f4")
    how: dict[str, Any] = {"shape": values.shape, "chunks": (4, 6, 5), "dtype": "f4"}
    group.create_array("data", **how, compressors=[ZstdCodec(), Crc32cCodec()])[...] = values
    group.create_array("scalar", shape=(), dtype="i8")
    change(folder / "a.zarr" / "data")
    given = [str(folder / each) for each in path] if isinstance(path, list) else path
    return opened("zarr", folder, tops, path=given, **options)


def document(**changed: Any) -> Callable[[Path], object]:
    def change(array: Path) -> None:
        whole = json.loads((array / "zarr.json").read_text())
        (array / "zarr.json").write_text(json.dumps(whole | changed))

    return change


def a_folder_as_document(array: Path) -> None:
    (array / "zarr.json").unlink()
    (array / "zarr.json").mkdir()


def another_checksum(array: Path) -> None:
    chunk = array / "c" / "1" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")


def a_file_as_folder(array: Path) -> None:
    (array / "c" / "1" / "0" / "0").unlink()
    (array / "c" / "1" / "0").rmdir()
    (array / "c" / "1" / "0").write_text("a file where chunks should be")


_NESTED = {"name": "sharding_indexed", "configuration": {"chunk_shape": [4, 6, 5], "codecs": [], "index_codecs": []}}
_GRID = {"name": "regular", "configuration": {"chunk_shape": [4, 0, 5]}}
ZARR = {
    "zarr, no array of a top": zarr_of(lambda _: None, tops=None),
    "zarr, dims of an unknown top": zarr_of(lambda _: None, "a.zarr/data", None, dims={"label": ["n"]}),
    "zarr, an unknown codec": zarr_of(document(codecs=[{"name": "unheard-of"}])),
    "zarr, a nested shard": zarr_of(document(codecs=[{"name": "bytes"}, _NESTED])),
    "zarr, chunks without an extent": zarr_of(document(chunk_grid=_GRID)),
    "zarr, half a document": zarr_of(lambda array: (array / "zarr.json").write_text("{")),
    "zarr, a folder as document": zarr_of(a_folder_as_document),
    "zarr, a group and an array": zarr_of(lambda _: None, ["a.zarr", "a.zarr/data"], None),
    "zarr, a scalar": zarr_of(lambda _: None, tops=["scalar"]),
    "zarr, a chunk with another checksum": zarr_of(another_checksum),
    "zarr, a file in place of chunks": zarr_of(a_file_as_folder),
}


# ---- what is no regular file


@scenario
def fifo(folder: Path, /, **given: Any) -> Any:
    """A run one of whose files, `a.fifo`, would keep waiting whoever opens it."""
    os.mkfifo(folder / "a.fifo")
    np.save(folder / "a.npy", np.zeros((4, 3)))
    (folder / "list.txt").write_text("a.fifo 0\n")
    parameters = {"source": {"npy": {"data": "a.npy"}}, "batch_size": 2, **given}
    return open_pipeline(check_parameters(parameters), base_dir=folder)


def became_a_fifo(folder: Path) -> Any:
    np.save(folder / "a.npy", np.zeros((4, 3)))
    source = opened("npy", folder, data="a.npy")
    (folder / "a.npy").unlink()
    os.mkfifo(folder / "a.npy")
    return source


_PICTURES = {"new_height": 4, "new_width": 4}
FIFOS = {
    "a FIFO as array": fifo(source={"npy": {"data": "a.fifo"}}),
    "a FIFO as npz": fifo(source={"npz": {"path": "a.fifo"}}),
    "a FIFO as idx": fifo(source={"idx": {"data": "a.fifo"}}),
    "a FIFO as cache": fifo(cache={"path": "a.fifo", "size_limit": 1 << 20}),
    "a FIFO as weights": fifo(sampler={"weights": "a.fifo"}),
    "a FIFO as image list": fifo(source={"image_list": {"path": "a.fifo", **_PICTURES}}),
    "a FIFO as picture": fifo(source={"image_list": {"path": "list.txt", **_PICTURES}}),
    "a FIFO as picture, not checked": fifo(
        source={"image_list": {"path": "list.txt", **_PICTURES, "check_files": False}}
    ),
    "a file that became a FIFO": became_a_fifo,
}


# ---- the cache of samples


@scenario
def cached(folder: Path, /, path: str, size_limit: int = 1 << 20) -> Any:
    (folder / "train.h5").write_bytes(b"precious")
    return CachedSource(open_arrays({"data": np.zeros(60)}), folder / path, size_limit)


CACHE = {
    "cache, too large a limit": cached("cache", 1 << 60),
    "cache, in no folder": cached("none/cache"),
}

SCENARIOS = WINDOWS | NPY | MEMORY | MIX | ZARR | FIFOS | CACHE
