"""npy files: any type and order, one file or several, read where they lie; what is wrong is said at the start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blobfeed.workers.base.specs import AnyArray

from tests.support.stored import (
    assert_delivers,
    opened,
    patterns,
    some_array,
)

SAMPLES = 31


def save(folder: Path, **arrays: AnyArray) -> dict[str, str]:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: f"{name}.npy" for name in arrays}


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


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("kind", ["S", "U"])
def test_strings_of_several_files_have_the_length_of_the_longest(kind: str, tmp_path: Path) -> None:
    names = ["cat", "elephant", "ox"]
    for number, name in enumerate(names):
        np.save(tmp_path / f"{number}.npy", np.array([name], f"{'<>'[number % 2]}{kind}"))
    assert_delivers(opened("npy", tmp_path, label="*.npy"), {"label": np.array(names, kind)}, [[0, 1, 2], [2, 0, 1, 0]])
