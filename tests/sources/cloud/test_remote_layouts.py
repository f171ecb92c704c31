"""Files over HTTP are read by few requests; tests/sources/contract holds that the samples are right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources.files import RangeStream, RemoteFile, RemoteStamp
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import SourceError
from tests.support.object_servers import RangeServer, range_server
from tests.support.part import examples
from tests.support.stored import in_loader, opened, rows_of, some_array
from tests.support.tars import write_tar


def h5_bytes(path: Path, **datasets: Any) -> bytes:
    with h5py.File(path, "w") as file:
        for name, (values, layout) in datasets.items():
            file.create_dataset(name, data=values, **layout)
    return path.read_bytes()


def test_what_is_asked_for_together_is_fetched_together_and_labels_once(server: RangeServer, tmp_path: Path) -> None:
    data, label = some_array((64, 40_000), "u1"), np.arange(64)
    server.objects["a.h5"] = h5_bytes(tmp_path / "a.h5", data=(data, {}), label=(label, {}))
    source = in_loader(opened("hdf5", tmp_path, ["data", "label"], path=server.url("a.h5")))
    server.requests.clear()
    source.will_need(np.array([7, 9, 40]))
    rows_of(source, [7, 40, 9])
    # 7 and 9 have a gap that costs less than a request; the labels lie together in one block, here beside a sample.
    assert len(server.requests) <= 3
    server.requests.clear()
    rows_of(source, [20])
    assert len(server.requests) == 1


def test_a_member_of_several_tops_is_fetched_once(server: RangeServer, tmp_path: Path) -> None:
    written = [(f"{n}.json", json.dumps({"width": n, "height": 10 + n}).encode()) for n in range(3)]
    server.objects["a.tar"] = write_tar(tmp_path / "a.tar", written).read_bytes()
    members = {"width": "json:width", "height": "json:height"}
    source = in_loader(opened("tar", tmp_path, path=server.url("a.tar"), members=members))
    server.requests.clear()
    rows = rows_of(source, [2, 0])
    assert (rows["width"].tolist(), rows["height"].tolist()) == ([2, 0], [12, 10])
    assert len(server.requests) == 1


def test_chunks_are_fetched_together_and_those_that_were_never_written_are_not(
    server: RangeServer, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", (41, 5000), "u2", chunks=(4, 5000), fillvalue=7)[8:16] = 3
    server.objects["a.h5"] = (tmp_path / "a.h5").read_bytes()
    source = in_loader(opened("hdf5", tmp_path, ["data"], path=server.url("a.h5")))
    server.requests.clear()
    source.will_need(np.array([40, 11, 13]))
    assert rows_of(source, [40, 13, 0, 11])["data"][:, 4999].tolist() == [7, 3, 7, 3]
    assert len(server.requests) == 1


def test_the_layout_of_an_object_is_read_once(server: RangeServer, tmp_path: Path) -> None:
    values = some_array((64, 100), "u1")
    server.objects["a.h5"] = h5_bytes(tmp_path / "a.h5", data=(values, {"chunks": (1, 100), "compression": "gzip"}))
    asked = []
    for _ in range(2):
        server.requests.clear()
        source = opened("hdf5", tmp_path, ["data"], path=server.url("a.h5"))
        asked.append(len(server.requests))
        np.testing.assert_array_equal(rows_of(source, [5])["data"][0], values[5])
    assert asked[1] < asked[0]
    server.objects["a.h5"] = h5_bytes(tmp_path / "a.h5", data=(values[:9], {}))
    assert len(opened("hdf5", tmp_path, ["data"], path=server.url("a.h5"))) == 9


def test_other_files_are_not_read_by_way_of_an_object(server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(100))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", (10, 10), "u1", external=[(str(tmp_path / "secret"), 0, 100)])
        file["linked"] = h5py.ExternalLink(str(tmp_path / "b.h5"), "data")
    h5_bytes(tmp_path / "b.h5", data=(np.zeros(3), {}))
    server.objects["a.h5"] = (tmp_path / "a.h5").read_bytes()
    for name in ("data", "linked"):
        with pytest.raises(SourceError):
            opened("hdf5", tmp_path, [name], path=server.url("a.h5"), allow_external=True)


def test_a_block_that_another_one_drives_out_still_gives_its_rows(server: RangeServer) -> None:
    whole = np.random.default_rng(0).integers(0, 256, 34 << 20, np.uint8)  # 32 MB of blocks are kept
    server.objects["x"] = whole.tobytes()
    file = RemoteFile(RemoteStamp.of(server.url("x")))
    offsets = np.arange(20, len(whole), 10_000)
    for _ in range(2):
        rows = np.zeros((len(offsets), 10), np.uint8)
        file.gather_at(offsets, np.arange(len(offsets)), rows)
        np.testing.assert_array_equal(rows, whole[offsets[:, None] + np.arange(10)])


OBJECT = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)


@given(rows=st.lists(st.integers(0, 299_000), min_size=1, max_size=20), size=st.integers(1, 9000), early=st.booleans())
@examples(40)
def test_any_ranges_are_those_of_the_object(rows: list[int], size: int, early: bool) -> None:
    size = min(size, 300_000 - max(rows))
    offsets, positions = np.array(rows), np.random.default_rng(0).permutation(len(rows))
    with range_server() as server:
        server.objects["x"] = OBJECT.tobytes()
        file = RemoteFile(RemoteStamp.of(server.url("x")))
        if early:
            file.will_need(offsets, size)
        out = np.zeros((len(rows), size), np.uint8)
        file.gather_at(offsets, positions, out)
        for offset, position in zip(rows, positions, strict=True):
            assert out[position].tobytes() == OBJECT[offset : offset + size].tobytes()
        stream = RangeStream(file.stamp)
        for offset in rows:
            stream.seek(offset)
            assert stream.read(size) == OBJECT[offset : offset + size].tobytes()
        stream.seek(-7, os.SEEK_END)
        assert stream.read(100) == OBJECT[-7:].tobytes()
