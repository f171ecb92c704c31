"""HDF5: files as they are named, and which of their arrays are read."""

from __future__ import annotations

from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from tests.sources.hdf5.layouts import three_files, write
from tests.support.stored import (
    assert_delivers,
    assert_needs_no_h5py,
    assert_rows,
    opened,
    patterns,
    some_array,
)


def test_files_are_put_end_to_end_as_named_globbed_or_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is known by what it holds and not by its name, and may begin with a byte order mark."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lists").mkdir()
    whole = three_files(tmp_path)
    names = ["part2.h5", "part10.h5", "part11.h5"]
    lines = f"part2.h5\n\n  {tmp_path / 'part10.h5'} \n../part11.h5\n"
    (tmp_path / "lists" / "train.txt").write_text(lines)
    (tmp_path / "lists" / "list.h5").write_text(f"~/{lines}", encoding="utf-8-sig")
    lists = ["lists/train.txt", tmp_path / "lists" / "train.txt", "lists/list.h5"]
    for path in (names, "part*.h5", *lists, [tmp_path / name for name in names]):
        assert_delivers(opened("hdf5", tmp_path, path=path), whole, patterns(30))
    (tmp_path / "part2.h5").rename(tmp_path / "part2.txt")
    assert_delivers(opened("hdf5", tmp_path, path=["part2.txt", *names[1:]]), whole, patterns(30))


def test_an_empty_file_beside_one_of_two_chunks_moves_no_sample(tmp_path: Path) -> None:
    whole = {"data": some_array((8, 3), "f4"), "label": np.arange(8)}
    for name, part in (("a.h5", slice(0)), ("b.h5", slice(8))):
        with h5py.File(tmp_path / name, "w") as file:
            for top, array in whole.items():
                row = array.shape[1:]
                file.create_dataset(top, data=array[part], maxshape=(None, *row), chunks=(4, *row))
    assert_delivers(opened("hdf5", tmp_path, path="*.h5"), whole, patterns(8))


def test_a_loader_of_uncompressed_data_imports_no_h5py(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"data": np.zeros((9, 3)), "label": np.arange(9)})
    source = opened("hdf5", tmp_path, path="a.h5")
    assert source.modules == ()
    assert_needs_no_h5py(source, "label", [8, 2], tmp_path)


@pytest.mark.parametrize("locking", [True, False, "best-effort"])
def test_files_are_locked_or_not_as_wished(locking: bool | str, tmp_path: Path) -> None:
    values = some_array((9, 3), "f4")
    write(tmp_path / "a.h5", {"data": values}, chunks=(4, 3), compression="lzf")
    assert_delivers(opened("hdf5", tmp_path, ["data"], path="a.h5", locking=locking), {"data": values}, patterns(9))


def test_a_file_without_data_gives_all_its_arrays_and_the_log_names_them_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = some_array((6, 2), "f4"), some_array((6, 9), "f4")
    with h5py.File(tmp_path / "xy.h5", "w") as file:
        file["a_label"], file["X"], file["version"] = y, x, 3
    source = opened("hdf5", tmp_path, path="xy.h5")
    assert list(source.specs) == ["X", "a_label"]
    assert_rows(source, [5, 0], {"X": x, "a_label": y})
    (tmp_path / "alike.h5").write_bytes((tmp_path / "xy.h5").read_bytes())
    assert list(opened("hdf5", tmp_path, path="alike.h5").specs) == ["X", "a_label"]
    (record,) = caplog.records
    assert (
        "tops=[X, a_label]; without those that have no number or string for each sample: version" in record.getMessage()
    )
