"""Attributes by the conventions of netCDF (CF): applied if decode_cf says so, and named if nothing does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr

from blobfeed import SourceError
from tests.support.stored import in_loader, opened, rows_of

NAN = float("nan")
BYTE = np.array([-1, 0, 3], np.int8)

MEANT: dict[str, tuple[Any, dict[str, Any], list[float], str]] = {
    "scaled": (np.array([2, 4], "i2"), {"scale_factor": 0.5, "add_offset": [10.0]}, [11, 12], "float32"),
    "filled, several missing": (
        [1, -9, -8, 7],
        {"_FillValue": -9, "missing_value": [-8, 7]},
        [1, NAN, NAN, NAN],
        "float64",
    ),
    "floats": (np.array([1, 1e20], "f4"), {"missing_value": 1e20, "_FillValue": NAN}, [1, NAN], "float32"),
    "a range of packed numbers": (
        np.array([1, 2, 3, 4], ">i2"),
        {"scale_factor": 2.0, "valid_range": [2, 3]},
        [NAN, 4, 6, NAN],
        "float32",
    ),
    "a range of values": (
        np.array([1, 2, 3, 4], "i2"),
        {"scale_factor": 2.0, "valid_min": 3.0, "valid_max": 7.0},
        [NAN, 4, 6, NAN],
        "float32",
    ),
    "unsigned": (BYTE, {"_Unsigned": "true", "_FillValue": -1, "valid_max": 2}, [NAN, 0, NAN], "float32"),
    "a fill value beyond the type": (np.array([1], "u1"), {"_FillValue": -9999.0}, [1], "float32"),
    "nothing": (np.array([1, 2], "i8"), {"units": "days", "scale_factor": 1.0}, [1, 2], "int64"),
}


def write(form: str, path: Path, values: Any, attributes: dict[str, Any], chunks: Any = None) -> None:
    values = np.asarray(values)
    if form == "hdf5":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values, chunks=chunks).attrs.update(attributes)
        return
    group = zarr.open_group(path, mode="w", zarr_format=2 if form == "zarr 2" else 3)
    array = group.create_array("x", shape=values.shape, dtype=values.dtype, chunks=chunks or values.shape)
    array[...] = values
    array.attrs.update({name: np.asarray(value).tolist() for name, value in attributes.items()})


@pytest.mark.parametrize("form", ["hdf5", "zarr 2", "zarr 3"])
@pytest.mark.parametrize("name", MEANT)
def test_attributes_are_applied_if_decode_cf_says_so_and_named_if_nothing_does(
    name: str, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values, attributes, expected, dtype = MEANT[name]
    write(form, tmp_path / "a", values, attributes)
    source = in_loader(opened(form[:4], tmp_path, ["x"], path="a", decode_cf=True))
    rows = rows_of(source, range(len(expected)))["x"]
    np.testing.assert_array_equal(rows, np.array(expected, dtype))
    assert rows.dtype == dtype
    for decode_cf in (False, None):
        assert not caplog.records
        rows = rows_of(opened(form[:4], tmp_path, ["x"], path="a", decode_cf=decode_cf), range(len(expected)))["x"]
        np.testing.assert_array_equal(rows, values)
    said = [record.getMessage() for record in caplog.records]
    assert not said if name == "nothing" else ("x (" in said[0] and all(word in said[0] for word in attributes))


def test_each_file_has_its_own_scale_and_windows_and_orders_of_axes_stay(tmp_path: Path) -> None:
    stored = np.arange(48, dtype=np.int16).reshape(2, 4, 3, 2)
    for part, scale in enumerate((0.5, 0.25)):
        write("hdf5", tmp_path / f"{part}.nc", stored[part], {"scale_factor": scale}, chunks=(2, 3, 1))
    given: dict[str, Any] = {"path": "*.nc", "dims": ["n", "w", "h"], "window": {"length": 2}, "decode_cf": True}
    rows = rows_of(in_loader(opened("hdf5", tmp_path, ["x"], **given)), [5, 0])["x"]
    values = stored.transpose(0, 1, 3, 2) * np.array([0.5, 0.25]).reshape(2, 1, 1, 1)
    np.testing.assert_array_equal(rows, np.stack([values[1, 2:4], values[0, :2]]).astype(np.float32))


def test_a_fill_value_of_xarrays_is_known_in_both_versions_of_zarr(tmp_path: Path) -> None:
    fill = {"_FillValue": "AAAAAAAA8D8="}  # the bytes of 1.0
    write("zarr 3", tmp_path / "a", np.array([1.0, 2.0]), fill)
    group = zarr.open_group(tmp_path / "b", mode="w", zarr_format=2)
    array = group.create_array("x", shape=(2,), dtype="f8", chunks=(2,), fill_value=1.0)
    array[1] = 2.0
    array.attrs["_ARRAY_DIMENSIONS"] = ["time"]
    for path in "ab":
        source = opened("zarr", tmp_path, ["x"], path=path, decode_cf=True)
        np.testing.assert_array_equal(rows_of(source, [0, 1])["x"], [NAN, 2])


def test_an_attribute_that_is_no_number_is_refused_only_if_it_is_to_be_applied(tmp_path: Path) -> None:
    write("hdf5", tmp_path / "a.h5", [1, 2], {"scale_factor": "logarithmic"})
    with pytest.raises(SourceError, match=r"scale_factor.*logarithmic"):
        opened("hdf5", tmp_path, ["x"], path="a.h5", decode_cf=True)
    assert rows_of(opened("hdf5", tmp_path, ["x"], path="a.h5"), [1])["x"].tolist() == [2]
