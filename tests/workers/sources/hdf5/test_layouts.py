"""HDF5, one data set per top: whatever the layout, type and shape, the samples are those that h5py reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.errors import SourceError
from blobfeed.workers.base.specs import AnyArray
from blobfeed.workers.sources import Source
from blobfeed.workers.sources.hdf5 import examine
from blobfeed.workers.sources.stored.layout import Chunked, ThroughLibrary
from blobfeed.workers.sources.stored.source import LIBRARY_MODULE
from hypothesis import given, settings
from hypothesis import strategies as st

from blobfeed import BatchReader
from tests.support.stored import (
    BY_MAP,
    BY_PREADV,
    assert_delivers,
    assert_rows,
    bytes_read,
    in_loader,
    opened,
    patterns,
    rows_of,
    some_array,
)
from tests.workers.sources.hdf5.layouts import (
    DTYPES,
    RING,
    SAMPLES,
    SHAPES,
    STORED,
    Contiguous,
    layouts,
    through_the_library,
)


@pytest.mark.parametrize("layout", STORED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_short_way_gives_the_same_bytes_as_the_library(
    layout: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, expected_layout = STORED[layout]
    arrays = {f"group/{n}": some_array((SAMPLES, *shape), dtype, n) for n, shape in enumerate(SHAPES)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for (name, array), shape in zip(arrays.items(), SHAPES, strict=True):
            file.create_dataset(name, data=array, **options(shape))
    source = opened("hdf5", tmp_path, tuple(arrays), path="a.h5")
    assert set(layouts(source).values()) == {expected_layout}
    assert_delivers(source, arrays, patterns(SAMPLES))
    with through_the_library(monkeypatch):
        slow = opened("hdf5", tmp_path, tuple(arrays), path="a.h5")
    assert set(layouts(slow).values()) == {ThroughLibrary}
    assert_delivers(slow, arrays, patterns(SAMPLES))


@pytest.mark.parametrize("way", [BY_MAP, BY_PREADV])
@pytest.mark.parametrize("layout", ["contiguous", "whole_chunks", "tiles", "gzip"])
def test_map_and_preadv_give_the_same_bytes(layout: str, way: str, tmp_path: Path) -> None:
    arrays = {name: some_array(shape, ">i4" if name == "label" else "f4") for name, shape in RING.items()}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **STORED[layout][0](array.shape[1:]))
    source = opened("hdf5", tmp_path, path="a.h5")
    with bytes_read(way):
        assert_delivers(source, arrays, patterns(SAMPLES))


@pytest.mark.parametrize("plugin", ["Blosc", "LZ4", "Bitshuffle"])
def test_filters_of_hdf5plugin_are_undone_by_the_library(plugin: str, tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    arrays = {"data": some_array(RING["data"], "f4"), "label": np.arange(SAMPLES)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=arrays["data"], chunks=(8, 3, 4, 5), **getattr(hdf5plugin, plugin)())
        file["label"] = arrays["label"]
    source = opened("hdf5", tmp_path, path="a.h5")
    assert layouts(source) == {"data": ThroughLibrary, "label": Contiguous}
    assert source.modules == (LIBRARY_MODULE, "hdf5plugin")
    assert source.chunk_samples == 8
    assert_delivers(source, arrays, patterns(SAMPLES))


def test_zstd_is_undone_without_its_plugin_which_gives_whatever_lay_in_memory_for_a_damaged_chunk(
    tmp_path: Path,
) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    values = some_array(RING["data"], "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {"chunks": (8, 3, 4, 5), "shuffle": True, **hdf5plugin.Zstd()}
        damaged = file.create_dataset("data", data=values, **options).id.get_chunk_info(1)
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    assert (layouts(source), source.modules) == ({"data": Chunked}, ("numcodecs",))
    assert_delivers(source, {"data": values}, patterns(SAMPLES))
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(damaged.byte_offset + damaged.size // 2)
        stream.write(bytes(damaged.size // 2))
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    with pytest.raises(SourceError, match=rf"a\.h5:data: the chunk at byte {damaged.byte_offset} .*zstd"):
        rows_of(source, [8])


def test_without_numcodecs_the_library_undoes_what_is_more_than_gzip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {name: some_array((SAMPLES, 6), "i4") for name in ("plain", "shuffled", "checked")}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in arrays.items():
            options = {"shuffle": name == "shuffled", "fletcher32": name == "checked"}
            file.create_dataset(name, data=values, chunks=(8, 6), compression="gzip", **options)
    monkeypatch.setattr(examine, "is_installed", lambda library: library != "numcodecs")
    source = opened("hdf5", tmp_path, tuple(arrays), path="a.h5")
    assert layouts(source) == {"plain": Chunked, "shuffled": ThroughLibrary, "checked": ThroughLibrary}
    assert source.modules == (LIBRARY_MODULE,)
    assert_delivers(source, arrays, patterns(SAMPLES))


def test_a_sum_with_swapped_bytes_is_judged_by_the_library(tmp_path: Path) -> None:
    values = some_array((20, 3), "i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("data", data=values, chunks=(8, 3), fletcher32=True)
        chunks = [dataset.id.get_chunk_info(number) for number in range(3)]
    with (tmp_path / "a.h5").open("r+b") as stream:
        for chunk in chunks[1:]:
            stream.seek(chunk.byte_offset + chunk.size - 4)
            swapped = np.frombuffer(stream.read(4), ">u2").astype("<u2").tobytes()
            stream.seek(-4, 1)
            stream.write(swapped)
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    assert layouts(source) == {"data": Chunked}
    assert_delivers(source, {"data": values}, patterns(20))
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(chunks[1].byte_offset)
        stream.write(b"\xa5")
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    with pytest.raises(SourceError, match=rf"a\.h5:data: the chunk at byte {chunks[1].byte_offset} .* did not match"):
        rows_of(source, [8])


@pytest.mark.parametrize("kind", ["hdf5", "hdf5_samples"])
def test_a_loader_undoes_the_filters_of_a_virtual_data_sets_parts(kind: str, tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    values = some_array((SAMPLES, 4), "f4")
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 4), **hdf5plugin.Bitshuffle())
    layout = h5py.VirtualLayout((SAMPLES, 4), "f4")
    layout[:] = h5py.VirtualSource("part.h5", "x", (SAMPLES, 4))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("data", layout)
    source = {kind: {"path": str(tmp_path / "a.h5")}}
    with BatchReader(source, tops=["data"], batch_size=1, num_loaders=1) as reader:
        assert (next(iter(reader))["data"][0] == (values[0] if kind == "hdf5" else values)).all()


@pytest.fixture(scope="module")
def several_layouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Source, dict[str, AnyArray]]]:
    folder = tmp_path_factory.mktemp("several")
    whole = {
        "plain": some_array((60, 3, 2), "u2"),
        "swapped": some_array((60, 5), ">f8"),
        "chunks": some_array((60, 6), "f4"),
        "gzip": some_array((60, 2, 7), "i4"),
        "lzf": some_array((60,), "i8"),
    }
    ways = {
        "plain": "contiguous",
        "swapped": "contiguous",
        "chunks": "whole_chunks",
        "gzip": "gzip_tiles",
        "lzf": "lzf",
    }
    for number, (start, stop) in enumerate([(0, 25), (25, 26), (26, 60)]):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            for name, array in whole.items():
                options = STORED[ways[name]][0](array.shape[1:])
                # Only what can grow may have chunks larger than itself.
                maxshape = (None, *array.shape[1:]) if "chunks" in options else None
                file.create_dataset(name, data=array[start:stop], maxshape=maxshape, **options)
    source = in_loader(opened("hdf5", folder, tuple(whole), path="part*.h5", chunk_cache_bytes=200))
    yield source, whole
    source.close()


@given(indices=st.lists(st.integers(0, 59), max_size=30))
@settings(max_examples=60)
def test_any_indices_give_their_samples_over_files_and_layouts(
    indices: list[int], several_layouts: tuple[Source, dict[str, AnyArray]]
) -> None:
    source, whole = several_layouts
    source.will_need(np.array(indices, np.int64))
    assert_rows(source, indices, whole)
