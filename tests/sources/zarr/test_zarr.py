"""zarr: chunks that are not there, shards, and what only object storage has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from blobfeed.sources.files import RemoteStamp, object_stores
from blobfeed.workers.base import read_whole

from blobfeed import SourceError
from tests.support.object_servers import RangeServer, range_server, s3_server
from tests.support.stored import assert_delivers, in_loader, opened, rows_of, some_array
from tests.support.waiting import wait_until

SAMPLES = 41
SHAPE = (SAMPLES, 6, 5)

SHARDS: dict[str, Any] = {"chunks": (2, 3, 5), "shards": (8, 6, 5)}


def as_in_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have objects fetched ahead by threads, as only processes do that have not examined them."""
    stamp_of = RemoteStamp.of
    monkeypatch.setattr(
        RemoteStamp, "of", lambda url: RemoteStamp(url, stamp_of(url).size, stamp_of(url).version, home=-1)
    )


def publish(server: RangeServer, folder: Path) -> str:
    for path in (folder / "a.zarr").rglob("*"):
        if path.is_file():
            server.objects[str(path.relative_to(folder))] = path.read_bytes()
    return server.url("a.zarr")


def write(folder: Path, name: str, values: Any, **how: Any) -> None:
    how = {"zarr_format": 3, **how}
    group = zarr.open_group(folder / "a.zarr", mode="a", zarr_format=how.pop("zarr_format"))
    group.create_array(name, shape=values.shape, dtype=values.dtype, **how)[...] = values


def test_chunks_and_shards_that_were_never_written_have_the_fill_value(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("data", shape=(20, 3), chunks=(2, 3), shards=(10, 3), dtype="i2", fill_value=7)[0:2] = 1
    group.create_array("label", shape=(20,), chunks=(4,), dtype="i8", fill_value=9)
    with range_server() as server:
        for path in (str(tmp_path / "a.zarr"), publish(server, tmp_path)):
            rows = rows_of(in_loader(opened("zarr", tmp_path, path=path)), [0, 5, 19])
            assert rows["data"].tolist() == [[1] * 3, [7] * 3, [7] * 3]
            assert rows["label"].tolist() == [9, 9, 9]


def test_an_array_by_itself_dims_and_several_put_end_to_end(tmp_path: Path) -> None:
    values = some_array((5, 6, 3, 7), "u1")
    write(tmp_path, "x", values, chunks=(5, 6, 3, 2))
    path = str(tmp_path / "a.zarr" / "x")
    source = opened("zarr", tmp_path, ["data"], path=[path, path], dims=["h", "w", "c", "n"], limit=9)
    assert source.chunk_samples == 2
    assert_delivers(source, {"data": np.concatenate([values.transpose(3, 2, 0, 1)] * 2)[:9]}, [[8, 0, 7, 6]])


def test_chunks_that_were_announced_and_never_read_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = some_array((700, 5), "f4")
    write(tmp_path, "data", values, chunks=(1, 5))
    as_in_a_loader(monkeypatch)
    with range_server() as server:
        source = in_loader(opened("zarr", tmp_path, ["data"], path=publish(server, tmp_path)))
        server.requests.clear()
        for first in range(0, 700, 100):
            source.will_need(np.arange(first, first + 100))
        wait_until(lambda: len(server.requests) == 300, "as many are asked for as there is room")
        np.testing.assert_array_equal(rows_of(source, [699])["data"], values[[699]])
        assert len(server.requests) == 301


def test_chunks_that_were_never_written_push_no_others_out_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(400, 50), chunks=(4, 50), dtype="f4")
    array[:8] = 1.0  # two chunks of 800 bytes, and 98 that were never written
    source = in_loader(opened("zarr", tmp_path, path="a.zarr", chunk_cache_bytes=70_000))
    rows_of(source, list(range(400)))
    read: list[Path | bytes] = []

    def noted(path: Path | bytes) -> bytes:
        read.append(path)
        return read_whole(path)

    monkeypatch.setattr(object_stores, "read_whole", noted)
    rows_of(source, list(range(400)))
    assert read == []


def test_a_shard_that_is_written_anew_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "data", some_array(SHAPE, "f4"), **SHARDS)
    source = opened("zarr", tmp_path, ["data"], path="a.zarr", chunk_cache_bytes=0)
    rows_of(source, [0])
    shard = tmp_path / "a.zarr" / "data" / "c" / "0" / "0" / "0"
    copy = shard.with_name("copy")
    copy.write_bytes(shard.read_bytes())
    os.replace(copy, shard)  # noqa: PTH105
    with pytest.raises(SourceError, match=r"a\.zarr/data/c/0/0/0"):
        rows_of(source, [0])


def test_in_object_storage_the_listing_says_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "data", some_array(SHAPE, "f4"), chunks=(4, 6, 5))
    with range_server() as server, pytest.raises(SourceError, match="'cache'"):
        opened("zarr", tmp_path, ["data"], path=publish(server, tmp_path)).fingerprint()
    chunk = tmp_path / "a.zarr" / "data" / "c" / "1" / "0" / "0"
    with s3_server("chunks", monkeypatch) as put:
        for path in (tmp_path / "a.zarr").rglob("*"):
            if path.is_file():
                put(str(path.relative_to(tmp_path)), path.read_bytes())
        for url in ("s3://chunks/a.zarr", f"local://{tmp_path}/a.zarr"):
            before = opened("zarr", tmp_path, ["data"], path=url).fingerprint()
            assert opened("zarr", tmp_path, ["data"], path=url).fingerprint() == before
            chunk.write_bytes(chunk.read_bytes()[::-1])
            put("a.zarr/data/c/1/0/0", chunk.read_bytes())
            assert opened("zarr", tmp_path, ["data"], path=url).fingerprint() != before


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_glob_in_object_storage_means_groups_in_natural_order(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(f"globbed-{version}", monkeypatch) as put:
        for number in (10, 9):
            write(tmp_path, "data", np.full((2, 3), number, "i4"), chunks=(1, 3), zarr_format=version)
            for path in (tmp_path / "a.zarr").rglob("*"):
                if path.is_file():
                    put(f"train_{number}.zarr/{path.relative_to(tmp_path / 'a.zarr')}", path.read_bytes())
            shutil.rmtree(tmp_path / "a.zarr")
        source = opened("zarr", tmp_path, ["data"], path=f"s3://globbed-{version}/train_*.zarr/")
        assert rows_of(source, range(4))["data"][:, 0].tolist() == [9, 9, 10, 10]
        with pytest.raises(SourceError, match=r"test_\*\.zarr"):
            opened("zarr", tmp_path, ["data"], path=f"s3://globbed-{version}/test_*.zarr")
