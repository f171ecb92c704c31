"""HDF5: any stored order of dimensions is delivered as N×C×H×W."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.stored import assert_delivers, opened, patterns, some_array
from tests.workers.sources.hdf5.layouts import write

CANONICAL = "ncdhw"


@pytest.mark.parametrize("names", [*itertools.permutations("nchw"), ("n", "h", "w"), ("w", "n"), tuple("whdcn")])
@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"chunks": True, "compression": "gzip"}])
def test_any_stored_order_of_dimensions_is_delivered_as_nchw(
    names: tuple[str, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    extents = {"n": 9, "c": 3, "d": 2, "h": 4, "w": 5}
    order = [name for name in CANONICAL if name in names]
    delivered = some_array([extents[name] for name in order], "f4")
    stored = delivered.transpose([order.index(name) for name in names])
    write(tmp_path / "a.h5", {"data": stored}, **options)
    source = opened("hdf5", tmp_path, ["data"], path="a.h5", dims=list(names))
    assert source.specs["data"].shape == delivered.shape[1:]
    assert_delivers(source, {"data": delivered}, patterns(9))


def test_dims_of_a_single_top_can_be_named(tmp_path: Path) -> None:
    images, masks = some_array((9, 3, 4, 5), "f4"), some_array((9, 4, 5), "u1")
    write(tmp_path / "a.h5", {"data": images, "mask": masks.transpose(1, 2, 0)})
    source = opened("hdf5", tmp_path, ["data", "mask"], path="a.h5", dims={"mask": ["h", "w", "n"]})
    assert_delivers(source, {"data": images, "mask": masks}, patterns(9))
