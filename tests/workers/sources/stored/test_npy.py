"""npy files: any type and order, one file or several, read where they lie; what is wrong is said at the start."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.specs import AnyArray

from tests.support.stored import (
    MAP_BELOW_BYTES,
    assert_delivers,
    bytes_read,
    opened,
    patterns,
    some_array,
)

SAMPLES = 31


def save(folder: Path, **arrays: AnyArray) -> dict[str, str]:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: f"{name}.npy" for name in arrays}


@pytest.mark.parametrize("way", MAP_BELOW_BYTES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<f4", ">f4", ">i2", "?", "<c16", "S5", "U3"])
def test_every_type_and_order_is_delivered_as_numpy_loads_it(dtype: str, order: Any, way: str, tmp_path: Path) -> None:
    arrays = {
        f"top{rank}": np.asarray(some_array((SAMPLES, *shape), dtype, rank), order=order)
        for rank, shape in enumerate([(), (1,), (7,), (3, 4, 5)])
    }
    source = opened("npy", tmp_path, **save(tmp_path, **arrays))
    assert source.modules == ()
    with bytes_read(way):
        assert_delivers(source, arrays, patterns(SAMPLES))


def test_several_files_of_a_top_are_put_end_to_end_in_natural_order(tmp_path: Path) -> None:
    data, label = some_array((30, 3, 4), "f4"), np.arange(30)
    # Files of one top need not be those of another, nor be stored in the same order or byte order.
    np.save(tmp_path / "x_2.npy", data[:4])
    np.save(tmp_path / "x_10.npy", np.asfortranarray(data[4:5]))
    np.save(tmp_path / "x_11.npy", np.asfortranarray(data[5:].astype(">f4")))
    np.save(tmp_path / "first.npy", label[:17])
    np.save(tmp_path / "second.npy", label[17:])
    source = opened("npy", tmp_path, data="x_*.npy", label=["first.npy", tmp_path / "second.npy"])
    assert source.where(4) == f"{tmp_path}/x_10.npy[0]"
    assert_delivers(source, {"data": data, "label": label}, patterns(30))
    limited = opened("npy", tmp_path, data="x_*.npy", label=["first.npy", "second.npy"], limit=9)
    assert_delivers(limited, {"data": data[:9], "label": label[:9]}, patterns(9))


@pytest.mark.parametrize("order", ["C", "F"])
def test_dims_name_the_axes_as_numpy_shows_them(order: Any, tmp_path: Path) -> None:
    images, masks = some_array((9, 3, 4, 5), "f4"), some_array((9, 4, 5), "u1")
    stored = {"data": images.transpose(2, 3, 1, 0), "mask": masks.transpose(0, 2, 1)}
    paths = save(tmp_path, **{name: np.asarray(array, order=order) for name, array in stored.items()})
    dims = {"data": ["h", "w", "c", "n"], "mask": ["n", "w", "h"]}
    assert_delivers(opened("npy", tmp_path, **paths, dims=dims), {"data": images, "mask": masks}, patterns(9))
    first_only = opened("npy", tmp_path, **paths, dims=dims["data"])
    assert_delivers(first_only, {"data": images, "mask": stored["mask"]}, patterns(9))


# ------------------------------------------------------------------------------------------------------------- errors


def saved(array: AnyArray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(version: tuple[int, int], tmp_path: Path) -> None:
    array = some_array((SAMPLES, 3), "f4")
    (tmp_path / "a.npy").write_bytes(saved(array, version=version))
    assert_delivers(opened("npy", tmp_path, data="a.npy"), {"data": array}, patterns(SAMPLES))


@pytest.mark.parametrize("kind", ["S", "U"])
def test_strings_of_several_files_have_the_length_of_the_longest(kind: str, tmp_path: Path) -> None:
    names = ["cat", "elephant", "ox"]
    for number, name in enumerate(names):
        np.save(tmp_path / f"{number}.npy", np.array([name], f"{'<>'[number % 2]}{kind}"))
    assert_delivers(opened("npy", tmp_path, label="*.npy"), {"label": np.array(names, kind)}, [[0, 1, 2], [2, 0, 1, 0]])
