"""HDF5: filters of plugins, and checksums."""

from __future__ import annotations

from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.hdf5 import examine
from blobfeed.sources.stored import LIBRARY_MODULE

from blobfeed import BatchReader, SourceError
from tests.sources.hdf5.layouts import SAMPLES
from tests.support.stored import (
    assert_delivers,
    opened,
    patterns,
    rows_of,
    some_array,
)


@pytest.mark.parametrize("plugin", ["Blosc", "LZ4", "Bitshuffle"])
def test_filters_of_hdf5plugin_are_undone_by_the_library(plugin: str, tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    arrays = {"data": some_array((SAMPLES, 3, 4, 5), "f4"), "label": np.arange(SAMPLES)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=arrays["data"], chunks=(8, 3, 4, 5), **getattr(hdf5plugin, plugin)())
        file["label"] = arrays["label"]
    source = opened("hdf5", tmp_path, path="a.h5")
    assert source.modules == (LIBRARY_MODULE, "hdf5plugin")
    assert source.chunk_samples == 8
    assert_delivers(source, arrays, patterns(SAMPLES))


def test_zstd_is_undone_without_its_plugin_which_gives_whatever_lay_in_memory_for_a_damaged_chunk(
    tmp_path: Path,
) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    values = some_array((SAMPLES, 3, 4, 5), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {"chunks": (8, 3, 4, 5), "shuffle": True, **hdf5plugin.Zstd()}
        damaged = file.create_dataset("data", data=values, **options).id.get_chunk_info(1)
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    assert source.modules == ("numcodecs",)
    assert_delivers(source, {"data": values}, patterns(SAMPLES))
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(damaged.byte_offset + damaged.size // 2)
        stream.write(bytes(damaged.size // 2))
    source = opened("hdf5", tmp_path, ["data"], path="a.h5")
    with pytest.raises(SourceError, match=rf"a\.h5:data.* {damaged.byte_offset} "):
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
    assert source.modules == (LIBRARY_MODULE,)
    assert_delivers(source, arrays, patterns(SAMPLES))


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
