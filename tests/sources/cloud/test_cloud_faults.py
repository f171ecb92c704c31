"""Objects over HTTP: read by few requests; answers that fail, stall, are cut short or come from another object.

The latter are recovered or named, before the deadline. tests/sources/contract holds that the samples are right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import h5py  # type: ignore[import-untyped]
import numpy as np
import obstore
import pytest
from blobfeed.sources.files import RangeStream, RemoteFile, RemoteStamp, WholeFiles, WholeObjects, locate
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import HTTPStore

from blobfeed import BatchReader, ExtraMissing, SampleError, SourceError
from tests.support.object_servers import SECRET, Fault, RangeServer, range_server
from tests.support.part import examples, some_of
from tests.support.stored import in_loader, opened, rows_of, some_array
from tests.support.tars import write_tar
from tests.support.waiting import wait_until

SAMPLES = 48
DATA = np.random.default_rng(0).integers(0, 256, (SAMPLES, 9000), np.uint8)
FAULTS: list[Fault] = ["error", "reset", "truncated", "slow", "expired"]


@pytest.fixture
def _one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOBFEED_CLOUD_DEADLINE_S", "1")


@pytest.fixture
def served(server: RangeServer, tmp_path: Path) -> RangeServer:
    np.save(tmp_path / "a.npy", DATA)
    server.objects["a.npy"] = (tmp_path / "a.npy").read_bytes()
    return server


def labels(reader: BatchReader) -> list[int]:
    """Which samples came, by their bytes."""
    numbers = {row.tobytes(): number for number, row in enumerate(DATA)}
    return [numbers[row.tobytes()] for batch in reader for row in batch["data"]]


def reader(server: RangeServer, **further: Any) -> BatchReader:
    source = {"npy": {"data": server.url("a.npy")}}
    return BatchReader(source=source, batch_size=8, shuffle=True, epochs=1, num_loaders=2, seed=1, **further)


def test_loaders_recover_from_all_that_passes(served: RangeServer) -> None:
    passing: list[Fault] = ["error", "reset", "truncated"]
    served.fault = lambda _path, number: passing[number // 3 % 3] if number % 3 == 0 else None
    with reader(served) as batches:
        assert sorted(labels(batches)) == list(range(SAMPLES))


@pytest.mark.usefixtures("_one_second")
@pytest.mark.parametrize("fault", [*FAULTS, "plain"])
def test_what_does_not_pass_is_named_before_the_deadline(served: RangeServer, fault: Fault, tmp_path: Path) -> None:
    loader = in_loader(opened("npy", tmp_path, data=served.url("a.npy")))
    served.fault = lambda _path, _number: fault
    begun = time.monotonic()
    with pytest.raises(SourceError, match=r"/a\.npy: ") as caught:
        rows_of(loader, [5, 40])
    assert time.monotonic() - begun < 30  # the deadline is a minute where nobody sets it
    assert {"expired": "400", "error": "503"}.get(fault, "") in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    served.fault = lambda _path, _number: None
    np.testing.assert_array_equal(rows_of(loader, [40])["data"], DATA[[40]])


def pictures(server: RangeServer, count: int) -> tuple[WholeObjects, list[str]]:
    """So many objects, read as by a process that has not examined them, and their URLs."""
    server.objects.update({f"{number}.png": b"%d" % number for number in range(count)})
    return WholeObjects(home=-1), [server.url(f"{number}.png") for number in range(count)]


def test_what_failed_beside_another_is_asked_for_again(server: RangeServer) -> None:
    objects, urls = pictures(server, 4)
    server.fault = lambda _path, _number: "expired"
    objects.fetch(urls)
    with pytest.raises(SourceError, match=r"0\.png"):
        objects.content(urls[0])
    wait_until(lambda: len(server.requests) == 4, "each is asked for")
    server.fault = lambda _path, _number: None
    assert [objects.content(url) for url in urls] == [b"0", b"1", b"2", b"3"]


def test_pictures_that_were_announced_and_never_read_are_bounded_and_forgotten(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, urls = pictures(server, 200)
    with monkeypatch.context() as in_trainer:
        in_trainer.setattr(os, "getpid", lambda: -1)
        files = WholeFiles([url.encode() for url in urls], b"", "source files", any_remote=True)
    for first in range(0, 200, 20):
        files.will_need(range(first, first + 20))
    wait_until(lambda: len(server.requests) == 80, "as many are asked for as there is room")
    for _ in range(10):
        files.finish()
    files.will_need([199])
    assert files.read(199) == b"199"
    assert files.read(0) == b"0"
    assert len(server.requests) == 82, "the first one was forgotten"


@pytest.mark.parametrize("knows_if_match", [True, False])
@pytest.mark.parametrize("has_weak_etags", some_of([True, False], 2))
def test_an_object_that_is_replaced_ends_the_run(
    served: RangeServer, knows_if_match: bool, has_weak_etags: bool
) -> None:
    served.knows_if_match, served.has_weak_etags = knows_if_match, has_weak_etags
    whole = served.objects["a.npy"]
    with reader(served) as batches:
        assert sorted(labels(batches)) == list(range(SAMPLES))
    with reader(served) as batches:
        served.objects["a.npy"] = whole[:-1] + b"?"
        with pytest.raises(SampleError, match=r"a\.npy"):
            labels(batches)


@pytest.mark.parametrize("host", ["s3.amazonaws.com", "account.blob.core.windows.net", "b.s3.us-west-2.amazonaws.com"])
def test_https_is_read_without_a_vendor_s_protocol(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, str]] = []

    def gone(store: object, key: str, **_: object) -> NoReturn:
        asked.append((type(store), key))
        raise FileNotFoundError

    monkeypatch.setattr(obstore, "head", gone)
    store, key = locate(f"https://{host}/a/b.h5")
    assert store.look(key) is None
    assert asked == [(HTTPStore, "a/b.h5")]


def test_an_answer_that_comes_slowly_is_awaited(
    served: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOBFEED_CLOUD_DEADLINE_S", "6")
    loader = in_loader(opened("npy", tmp_path, data=served.url("a.npy")))
    before = len(served.requests)
    served.fault = lambda _path, _number: "dripping"
    np.testing.assert_array_equal(rows_of(loader, [5])["data"], DATA[[5]])
    assert len(served.requests) == before + 1
    before = len(served.requests)
    served.fault = lambda _path, number: "slow" if number == before + 1 else None
    np.testing.assert_array_equal(rows_of(loader, [40])["data"], DATA[[40]])  # asked again after a third


def test_without_the_library_one_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobfeed.workers.base.extras.find_spec", lambda _name: None)
    with pytest.raises(ExtraMissing, match=r"s3://bucket .*obstore.*blobfeed\[cloud\]"):
        opened("npy", tmp_path, data="s3://bucket/a.npy")
    with pytest.raises(ExtraMissing, match=r"zarr.*blobfeed\[zarr\]"):
        opened("zarr", tmp_path, path="a.zarr")
    with pytest.raises(ExtraMissing, match=r"pyarrow.*blobfeed\[parquet\]"):
        opened("parquet", tmp_path, path="a.parquet")


def test_who_reads_no_url_imports_none_of_it() -> None:
    code = (
        "import sys; from blobfeed.sources.hdf5 import open_hdf5;"
        "import blobfeed.sources.tar.source, blobfeed.sources.stored.npy;"
        "print({'obstore', 'fsspec', 'boto3', 'zarr', 'numcodecs', 'pyarrow'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "set()\n"


# ---- few requests


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
