"""HDF5: chunks that are kept, modules that a loader needs, the fingerprint, locking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.sources.stored import chunk_decode
from blobfeed.workers.sources.stored import rows as stored_rows

from tests.support.stored import (
    assert_delivers,
    assert_needs_no_h5py,
    assert_rows,
    opened,
    patterns,
    some_array,
)
from tests.workers.sources.hdf5.layouts import write


def test_each_chunk_is_decoded_once_in_a_read_and_kept_as_far_as_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = some_array((64, 10), "f4")
    write(tmp_path / "a.h5", {"data": values}, chunks=(8, 10), compression="gzip")
    decoded = 0
    decode = chunk_decode.decode_chunk

    def counting(*args: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return decode(*args)

    monkeypatch.setattr(stored_rows, "decode_chunk", counting)
    shuffled = np.random.default_rng(0).permutation(64).tolist()
    for cache_bytes, in_two_reads in ((0, 16), (8 * 320, 8), (4 * 320, 16)):
        source = opened("hdf5", tmp_path, ["data"], path="a.h5", chunk_cache_bytes=cache_bytes)
        decoded = 0
        assert_rows(source, shuffled, {"data": values})
        assert decoded == 8
        assert_rows(source, shuffled, {"data": values})
        assert decoded == in_two_reads
        source.close()


def test_chunk_samples_tells_of_the_largest_top_alone(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=np.zeros((64, 10)), chunks=(8, 5), compression="gzip")
        file.create_dataset("plain", data=np.zeros((64, 10)), chunks=(8, 10))
        file.create_dataset("label", data=np.zeros(64), chunks=(32,), compression="gzip")
    assert opened("hdf5", tmp_path, ["data", "label"], path="a.h5").chunk_samples == 8
    assert opened("hdf5", tmp_path, ["plain", "label"], path="a.h5").chunk_samples is None
    assert opened("hdf5", tmp_path, ["label"], path="a.h5").chunk_samples == 32


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
    x, y = some_array((6, 3, 2), "f4"), np.arange(6)
    with h5py.File(tmp_path / "xy.h5", "w") as file:
        file["a_label"], file["X"], file["version"] = y, x, 3
    source = opened("hdf5", tmp_path, path="xy.h5")
    assert list(source.specs) == ["X", "a_label"]  # the largest samples first
    assert_rows(source, [5, 0], {"X": x, "a_label": y})
    (record,) = caplog.records
    assert "tops=[X, a_label]; left out, since they count no samples: version" in record.getMessage()
