"""A damaged chunk costs its own samples, and no others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import pytest
from blobfeed.workers.base.errors import SourceError

from tests.support.stored import assert_rows, in_loader, opened, rows_of, some_array


@pytest.mark.parametrize("chunk", [(4, 3, 4), (4, 2, 2)])
@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_a_damaged_chunk_spares_the_others(compression: str, chunk: tuple[int, ...], tmp_path: Path) -> None:
    values = some_array((12, 3, 4), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("data", data=values, chunks=chunk, compression=compression, fletcher32=True)
        broken = dataset.id.get_chunk_info_by_coord((4, 0, 0))
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(broken.byte_offset + 5)
        stream.write(b"\xff\x00\xff")
    with closing(in_loader(opened("hdf5", tmp_path, ["data"], path="a.h5"))) as source:
        with pytest.raises(SourceError, match=r"a\.h5:data"):
            rows_of(source, [0, 5, 9])
        assert_rows(source, [0, 3, 8, 11], {"data": values})
