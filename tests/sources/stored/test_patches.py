"""Patches are slices of the arrays as NumPy gives them, each once, whatever the file and the chunks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr
from blobfeed.workers.api import AnyArray

from blobfeed import Source, SourceError
from tests.support.object_servers import range_server
from tests.support.stored import in_loader, opened, rows_of, some_array

NAMES = ("time", "level", "y", "x")
EXTENTS = (11, 3, 20, 17)


def write(
    kind: str, folder: Path, arrays: Mapping[str, tuple[AnyArray, Sequence[str]]], files: int = 1
) -> dict[str, Any]:
    """The arrays with the names of their axes as files of this kind, cut along time; returns the source's options."""
    if kind == "npy":
        for top, (values, _) in arrays.items():
            np.save(folder / f"{top}.npy", values)
        return {top: str(folder / f"{top}.npy") for top in arrays}
    steps = -(-EXTENTS[0] // files)
    for number in range(files):
        part = slice(number * steps, (number + 1) * steps)
        path = folder / f"{number}.{kind[:4]}"
        if kind == "hdf5":
            with h5py.File(path, "w") as file:
                for top, (values, names) in arrays.items():
                    data = file.create_dataset(
                        top, data=values[part] if "time" in names else values, chunks=True, compression="gzip"
                    )
                    for axis, name in enumerate(names):
                        if name not in file:
                            file.create_dataset(name, data=np.arange(values.shape[axis])).make_scale()
                        data.dims[axis].attach_scale(file[name])
        else:
            group = zarr.create_group(path, zarr_format=3 if kind == "zarr" else 2)
            for top, (values, names) in arrays.items():
                given = values[part] if "time" in names else values
                how: dict[str, Any] = (
                    {"dimension_names": names} if kind == "zarr" else {"attributes": {"_ARRAY_DIMENSIONS": names}}
                )
                chunks = tuple(
                    min(size, extent) for size, extent in zip((2, 2, 8, 8)[-given.ndim :], given.shape, strict=True)
                )
                group.create_array(top, shape=given.shape, dtype=given.dtype, chunks=chunks, **how)[...] = given
    return {"path": str(folder / f"*.{kind[:4]}") if files > 1 else str(folder / f"0.{kind[:4]}")}


FIELD, LABEL, MASK = some_array(EXTENTS, "f4"), some_array(EXTENTS, "f4", 1), some_array(EXTENTS[2:], "u1", 2) > 150
ARRAYS = {"field": (FIELD, NAMES), "label": (LABEL[:, 0], ("time", "y", "x")), "mask": (MASK, ("y", "x"))}


def everything(source: Source) -> dict[str, Any]:
    with closing(in_loader(source)) as arrived:
        arrived.will_need(np.arange(len(source)))
        return rows_of(arrived, range(len(source)))


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("kind", ["hdf5", "zarr", "zarr 2"])
def test_patches_are_slices_by_the_names_of_axes(kind: str, files: int, tmp_path: Path) -> None:
    options = write(kind, tmp_path, ARRAYS, files)
    patch = {
        "size": {"time": 2, "y": 8, "x": 6},
        "stride": {"time": 1, "x": 5},
        "shift": {"time": 2},
        "select": {"level": [2, 0]},
    }
    source = opened(kind[:4], tmp_path, ["field", "label", "mask"], **options, patch=patch)
    rows, corners = everything(source), source.corners(np.arange(len(source)))
    steps = [range(6), range(6, 11)] if files == 2 else [range(11)]
    starts = [at for part in steps for at in part if at + 4 <= part.stop]
    expected = sorted(itertools.product(starts, range(0, 13, 8), range(0, 12, 5)))
    assert sorted(zip(*(each.tolist() for each in corners.values()), strict=True)) == expected
    assert [*corners] == ["time", "y", "x"]
    assert {top: spec.shape for top, spec in source.specs.items()} == {
        "field": (2, 2, 8, 6),
        "label": (2, 8, 6),
        "mask": (8, 6),
    }
    for row, (t, y, x) in enumerate(zip(*corners.values(), strict=True)):
        np.testing.assert_array_equal(rows["field"][row], FIELD[t : t + 2, [2, 0], y : y + 8, x : x + 6])
        np.testing.assert_array_equal(rows["label"][row], LABEL[t + 2 : t + 4, 0, y : y + 8, x : x + 6])
        np.testing.assert_array_equal(rows["mask"][row], MASK[y : y + 8, x : x + 6])
    assert source.where(0).endswith("[time 0:2, y 0:8, x 0:6]")
    source.close()


@pytest.mark.parametrize("kind", ["hdf5", "npy"])
def test_patches_of_objects_are_fetched_together(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path, {"field": ARRAYS["field"]})
    name = "0.hdf5" if kind == "hdf5" else "field.npy"
    with range_server() as server:
        server.objects[name] = (tmp_path / name).read_bytes()
        options = {"path" if kind == "hdf5" else "field": server.url(name)}
        source = opened(kind, tmp_path, ["field"], **options, patch={"size": {0: 4, 2: 8, 3: 8}})
        corners = source.corners(np.arange(8))
        with closing(in_loader(source)) as arrived:
            server.requests.clear()
            rows = rows_of(arrived, range(8))["field"]
            assert len(server.requests) <= 4
    for row, (t, y, x) in zip(rows, zip(*corners.values(), strict=True), strict=True):
        np.testing.assert_array_equal(row, FIELD[t : t + 4, :, y : y + 8, x : x + 8])


def test_axes_by_number_and_one_step_of_the_first(tmp_path: Path) -> None:
    options = write("npy", tmp_path, {"data": (np.asarray(FIELD, order="F"), NAMES)})
    source = opened("npy", tmp_path, ["data"], **options, patch={"size": {2: 7, "3": 17}, "select": {1: 1}})
    rows, corners = everything(source)["data"], source.corners(np.arange(len(source)))
    assert rows.shape == (22, 7, 17)
    for row, (t, y, x) in zip(rows, zip(*corners.values(), strict=True), strict=True):
        np.testing.assert_array_equal(row, FIELD[t, 1, y : y + 7, x : x + 17])


def test_patches_are_padded_at_the_borders(tmp_path: Path) -> None:
    options = write("hdf5", tmp_path, ARRAYS)
    patch = {"size": {"time": 4, "y": 9, "x": 9}, "border": "pad", "fill": -1, "shift": {"label": {"time": 3}}}
    source = opened("hdf5", tmp_path, ["field", "label"], **options, patch=patch)
    rows, corners = everything(source), source.corners(np.arange(len(source)))
    assert len(source) == 3 * 3 * 2
    padded = {
        top: np.pad(values, [(0, 9)] * values.ndim, constant_values=-1)
        for top, values in (("field", FIELD), ("label", LABEL[:, 0]))
    }
    for row, (t, y, x) in enumerate(zip(*corners.values(), strict=True)):
        expected = padded["field"][t : t + 4, :3, y : y + 9, x : x + 9]
        np.testing.assert_array_equal(rows["field"][row], expected)
        np.testing.assert_array_equal(rows["label"][row], padded["label"][t + 3 : t + 7, y : y + 9, x : x + 9])


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "npy"])
def test_patches_that_hold_too_little_are_left_out_by_an_index_that_is_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = write(kind, tmp_path, ARRAYS)
    axes: dict[str | int, int] = {"time": 5, "y": 4, "x": 4} if kind != "npy" else {0: 5, 1: 4, 2: 4}
    patch = {"size": axes, "where": {"variable": "label", "at_least": 0.996}}
    shares = [
        (LABEL[t : t + 5, 0, y : y + 4, x : x + 4] != 0).mean() >= 0.996
        for t, y, x in itertools.product(range(0, 7, 5), range(0, 17, 4), range(0, 14, 4))
    ]
    tops = ["label"]
    for _ in range(2):
        source = opened(kind, tmp_path, tops, **options, patch=patch)
        assert 0 < len(source) == sum(shares) < len(shares)
        assert all((rows != 0).mean() >= 0.996 for rows in everything(source)["label"])
    assert len(list((tmp_path / "cache/blobfeed").iterdir())) == 1
    with pytest.raises(SourceError):
        opened(kind, tmp_path, tops, **options, patch={**patch, "where": {"variable": "mask", "at_least": 1.0}})


def test_a_kept_index_is_not_that_of_other_tops_whose_chunks_number_the_patches_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mask = np.zeros((64, 64), np.uint8)
    mask[:16, 32:] = 1
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["mask"] = np.zeros((64, 64), np.float32), mask
        file.create_dataset("big", data=np.zeros((64, 64)), chunks=(32, 32), compression="gzip")
    patch = {"size": {0: 8, 1: 8}, "where": {"variable": "mask", "at_least": 1.0}}
    for tops in (["a"], ["a", "big"]):
        source = opened("hdf5", tmp_path, tops, path="a.h5", patch=patch)
        corners = source.corners(np.arange(len(source)))
        assert len(source) == 8
        assert max(corners["0"]) < 16
        assert min(corners["1"]) >= 32


def test_what_is_missing_by_its_attributes_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sst"] = np.pad(np.ones((8, 8), np.float32), (0, 8), constant_values=-9999)
        file["sst"].attrs["_FillValue"] = np.float32(-9999)
    patch = {"size": {0: 8, 1: 8}, "where": {"variable": "sst", "at_least": 0.5}}
    for decode_cf, samples in ((False, 4), (True, 1)):
        assert len(opened("hdf5", tmp_path, ["sst"], path="a.h5", patch=patch, decode_cf=decode_cf)) == samples


def test_a_mask_beside_an_array_that_is_the_path_itself_is_an_error(tmp_path: Path) -> None:
    options = write("zarr", tmp_path, ARRAYS)
    patch = {"size": {"y": 4}, "where": {"variable": "label", "at_least": 0.5}}
    with pytest.raises(SourceError, match="label"):
        opened("zarr", tmp_path, ["data"], path=f"{options['path']}/field", patch=patch)


def test_a_patch_along_the_first_axis_is_a_window(tmp_path: Path) -> None:
    options = write("hdf5", tmp_path, ARRAYS, files=2)
    tops = ["field", "label"]
    patches = opened("hdf5", tmp_path, tops, **options, patch={"size": {"time": 3}, "stride": {"time": 2}})
    windows = opened("hdf5", tmp_path, tops, **options, window={"length": 3, "stride": 2})
    ours, theirs = everything(patches), everything(windows)
    assert all(np.array_equal(ours[top], theirs[top]) for top in tops)
    assert patches.corners(np.arange(2))["time"].tolist() == windows.corners(np.arange(2))["0"].tolist() == [0, 2]


@pytest.mark.parametrize(("stride", "together"), [(4, 16), (5, 9)])
def test_patches_of_the_same_chunks_follow_each_other(stride: int, together: int, tmp_path: Path) -> None:
    """Read in order with a cache of four chunks, each chunk is decoded once, though patches overlap."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = some_array((64, 64), "f4")
        file.create_dataset("data", data=values, chunks=(16, 16), compression="gzip")
    patch = {"size": {0: 8, 1: 8}, "stride": {0: stride, 1: stride}}
    source = opened("hdf5", tmp_path, ["data"], path="a.h5", patch=patch)
    assert source.chunk_samples == together
    corners = np.stack([*source.corners(np.arange(len(source))).values()], 1)
    assert len(source) == len(np.unique(corners, axis=0)) == len(range(0, 57, stride)) ** 2
    chunks = [chunk for chunk, _ in itertools.groupby((corners // 16).tolist())]
    assert len(chunks) == len({*map(tuple, chunks)}) == 16
