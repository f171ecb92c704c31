"""What is wrong with an HDF5 archive, its options or a sample is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.errors import SourceError

from tests.support.stored import assert_rows, in_loader, opened, rows_of, some_array
from tests.workers.sources.hdf5_samples.archives import KIND, archive


def test_numbers_of_several_types_become_the_type_that_holds_all(tmp_path: Path) -> None:
    values: list[Any] = [1, 2.5, np.float32(3), True]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, value in enumerate(values):
            file[str(number)] = np.zeros(2)
            file[str(number)].attrs.update({"label": value, "name": "x" * (number + 1)})
    source = opened(KIND, tmp_path, path="a.h5", labels=["label", "name"])
    assert source.specs["label"].dtype == np.float64
    rows = rows_of(source, range(4))
    assert rows["label"].tolist() == [1.0, 2.5, 3.0, 1.0]
    assert rows["name"].tolist() == [b"x", b"xx", b"xxx", b"xxxx"]
    source.close()


def test_a_damaged_sample_is_named_and_spares_the_others(tmp_path: Path) -> None:
    data = some_array((3, 500), "f4")
    archive(tmp_path / "a.h5", data, compression="gzip", chunks=(500,), fletcher32=True)
    with h5py.File(tmp_path / "a.h5") as file:
        chunk = file["trajectory_1"].id.get_chunk_info(0)
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(chunk.byte_offset + 5)
        stream.write(b"\xff\x00\xff")
    source = in_loader(opened(KIND, tmp_path, path="a.h5"))
    with pytest.raises(SourceError, match=r"a\.h5:trajectory_1: reading the sample failed"):
        rows_of(source, [0, 1, 2])
    assert_rows(source, [2, 0], {"data": data})
    source.close()
