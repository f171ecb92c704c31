"""Answers that fail, stall, are cut short or come from another object: recovered or named, before the deadline."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import obstore
import pytest
from blobfeed.workers.sources.files import WholeObjects, locate
from blobfeed.workers.sources.images import WholeFiles
from obstore.exceptions import GenericError
from obstore.store import HTTPStore

from blobfeed import BatchReader, ExtraMissing, SampleError, SourceError
from tests.support.object_servers import SECRET, Fault, RangeServer
from tests.support.stored import in_loader, opened, rows_of
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
    passing: list[Fault] = ["error", "reset", "truncated", "expired"]
    served.fault = lambda _path, number: passing[number // 3 % 4] if number % 3 == 0 else None
    with reader(served) as batches:
        assert sorted(labels(batches)) == list(range(SAMPLES))


def test_retries_leave_the_users_random_numbers_alone(served: RangeServer, tmp_path: Path) -> None:
    served.fault = lambda _path, number: "error" if number % 2 == 0 else None
    before = random.getstate()
    assert len(opened("npy", tmp_path, data=served.url("a.npy"))) == SAMPLES
    assert random.getstate() == before


@pytest.mark.parametrize("name", ["Range.npy", "credentials.npy"])
def test_a_word_in_an_object_s_name_is_no_reason(served: RangeServer, name: str, tmp_path: Path) -> None:
    served.objects[name] = served.objects["a.npy"]
    loader = in_loader(opened("npy", tmp_path, data=served.url(name)))
    served.fault = lambda _path, number: "error" if number % 3 else None
    for number in range(3):
        np.testing.assert_array_equal(rows_of(loader, [number])["data"], DATA[[number]])


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


@pytest.mark.usefixtures("_one_second")
def test_a_store_that_is_down_gets_one_attempt_for_each_further_row(served: RangeServer, tmp_path: Path) -> None:
    loader = in_loader(opened("npy", tmp_path, data=served.url("a.npy")))
    served.fault = lambda _path, _number: "error"
    with pytest.raises(SourceError):
        rows_of(loader, [5])
    served.requests.clear()
    with pytest.raises(SourceError, match=r"a\.npy"):
        rows_of(loader, [6])
    assert len(served.requests) == 1


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
    wait_until(lambda: len(server.requests) == 8, "each is asked for, and once more with new credentials")
    server.fault = lambda _path, _number: None
    assert [objects.content(url) for url in urls] == [b"0", b"1", b"2", b"3"]


def test_pictures_that_were_announced_and_never_read_are_bounded_and_forgotten(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, urls = pictures(server, 200)
    with monkeypatch.context() as in_trainer:
        in_trainer.setattr(os, "getpid", lambda: -1)
        files = WholeFiles([url.encode() for url in urls], b"", prefixed=False, any_remote=True)
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
@pytest.mark.parametrize("has_weak_etags", [True, False])
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

    monkeypatch.setattr(obstore, "get", gone)
    store, key = locate(f"https://{host}/a/b.h5")
    assert store.look(key) is None
    assert asked == [(HTTPStore, "a/b.h5")]


def test_an_answer_that_comes_slowly_is_awaited(
    served: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOBFEED_CLOUD_DEADLINE_S", "16")
    monkeypatch.setattr("blobfeed.workers.sources.files.object_stores._SILENCE_S", 2.0)
    loader = in_loader(opened("npy", tmp_path, data=served.url("a.npy")))
    before = len(served.requests)
    served.fault = lambda _path, _number: "dripping"
    np.testing.assert_array_equal(rows_of(loader, [5])["data"], DATA[[5]])
    assert len(served.requests) == before + 1
    before = len(served.requests)
    served.fault = lambda _path, number: "slow" if number == before + 1 else None
    np.testing.assert_array_equal(rows_of(loader, [40])["data"], DATA[[40]])  # asked again after 2 s


@pytest.mark.parametrize(
    "asked",
    [
        "PUT http://169.254.169.254/latest/api/token",
        "GET http://169.254.169.254/metadata/identity/oauth2/token?api-version=2019-08-01",
        "GET http://169.254.169.254/computeMetadata/v1/instance/service-accounts/default/token",
    ],
)
@pytest.mark.parametrize("answer", ["HTTP error: error sending request", "status code: 403", "status code: 404"])
def test_a_machine_that_has_no_credentials_is_not_asked_for_a_minute(
    asked: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, busy = (f"Generic S3 error: Error performing {asked} in 3 ms - {each}" for each in (answer, _BUSY))
    store, key = locate("s3://unsigned/a.npy")
    errors: list[Exception] = []
    monkeypatch.setattr(obstore, "get", lambda *_, **_options: _raise(errors.pop(0)))
    errors[:] = [GenericError(refused), GenericError(refused), FileNotFoundError()]
    with pytest.raises(SourceError, match="AWS_SKIP_SIGNATURE=true"):
        store.look(key)
    assert len(errors) == 1, "credentials are looked for once more"
    errors[:] = [GenericError(busy), GenericError(busy), FileNotFoundError()]
    assert store.look(key) is None, "many loaders ask at the same time: it is asked again"


_BUSY = "status code: 503"


def _raise(error: Exception) -> NoReturn:
    raise error


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
        "import sys; from blobfeed.workers.sources.hdf5 import open_hdf5;"
        "import blobfeed.workers.sources.tar.source, blobfeed.workers.sources.stored.npy;"
        "print({'obstore', 'fsspec', 'boto3', 'zarr', 'numcodecs', 'pyarrow'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "set()\n"
