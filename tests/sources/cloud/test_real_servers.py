"""The same samples through servers of others: moto, the vendors' own if installed, and fsspec for other schemes."""

from __future__ import annotations

import itertools
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr
from blobfeed.sources.files import expand_paths
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BatchReader, SampleError, SourceError
from tests.support.object_servers import SECRET, RangeServer, google_bucket, nginx, nginx_program, s3_server
from tests.support.pictures import encoded, noise
from tests.support.stored import assert_delivers, in_loader, opened, patterns, rows_of
from tests.support.vendor_servers import azurite, program, s3rver

WRONG_KEY = "d3Jvbmcgd3Jvbmcgd3Jvbmc="
SAMPLES = 40
DATA = np.random.default_rng(0).integers(0, 256, (SAMPLES, 3, 50, 50), np.uint8)
STORED = {"data": DATA, "label": np.arange(SAMPLES)}


def write_h5(path: Path, first: int = 0, stop: int = SAMPLES, **layout: Any) -> bytes:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=DATA[first:stop], **layout)
        file["label"] = STORED["label"][first:stop]
    return path.read_bytes()


def epoch(source: dict[str, Any], **further: Any) -> list[int]:
    with BatchReader(
        source=source, batch_size=8, shuffle=True, epochs=1, num_loaders=2, tops=("data", "label"), **further
    ) as reader:
        found = [
            (row, int(label)) for batch in reader for row, label in zip(batch["data"], batch["label"], strict=True)
        ]
    for row, label in found:
        np.testing.assert_array_equal(row, DATA[label])
    return [label for _, label in found]


def check_store(put: Callable[[str, bytes], None], bucket: str, tmp_path: Path) -> None:
    """Every vendor's store must pass this: globs, an epoch, a cache, a replaced object and a missing one."""
    put("some dir/part_2.h5", write_h5(tmp_path / "a.h5", stop=16))
    put("some dir/part_2/old.h5", write_h5(tmp_path / "a.h5", stop=9))
    put("some dir/part_10.h5", write_h5(tmp_path / "a.h5", 16, chunks=(4, 3, 50, 50), compression="gzip"))
    source = {"hdf5": {"path": f"{bucket}/some dir/part_*.h5"}}
    assert_delivers(opened("hdf5", tmp_path, ["data", "label"], **source["hdf5"]), STORED, patterns(SAMPLES))
    assert len(opened("hdf5", tmp_path, ["label"], path=f"{bucket}/some dir/**/*.h5")) == SAMPLES + 9
    cache = {"path": str(tmp_path / "samples.cache"), "size_limit": 1 << 24}
    first = epoch(source, cache=cache, seed=3)
    assert sorted(first) == list(range(SAMPLES))
    assert epoch(source, cache=cache, seed=3) == first
    loader = in_loader(opened("hdf5", tmp_path, ["data"], **source["hdf5"]))
    put("some dir/part_2.h5", write_h5(tmp_path / "a.h5", 1, 17))
    with pytest.raises(SourceError, match=r"part_2\.h5"):
        rows_of(loader, [3])
    with pytest.raises(SourceError, match=r"none\.h5"):
        opened("hdf5", tmp_path, path=f"{bucket}/none.h5")
    with pytest.raises(SourceError, match=r"none_\*\.h5"):
        opened("hdf5", tmp_path, path=f"{bucket}/none_*.h5")


def test_s3_by_signed_requests_globs_and_a_cache_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server("bucket", monkeypatch) as put:
        check_store(put, "s3://bucket", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(program("azurite-blob") is None, reason="needs azurite: make test-cloud installs it")
def test_azure_through_its_vendors_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with azurite("container", tmp_path, monkeypatch) as put:
        check_store(put, "az://container", tmp_path)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", WRONG_KEY)
        # Another container: a store is made once, with the credentials of that time.
        with pytest.raises(SourceError, match="403") as caught:
            opened("hdf5", tmp_path, path="az://another/a.h5")
        assert WRONG_KEY not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(program("s3rver") is None, reason="needs s3rver: make test-cloud installs it")
def test_s3_through_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3rver("files", tmp_path, monkeypatch) as put:
        check_store(put, "s3://files", tmp_path)


def test_googles_protocol(server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_store(google_bucket(server, "bucket", monkeypatch), "gs://bucket", tmp_path)


def test_credentials_in_the_users_own_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text(f"[mine]\naws_access_key_id = {SECRET}\naws_secret_access_key = x\n")
    with s3_server("profiled", monkeypatch) as put:
        put("a.h5", write_h5(tmp_path / "a.h5"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_PROFILE", "mine")
        rows = rows_of(opened("hdf5", tmp_path, ["label"], path="s3://profiled/a.h5"), [7])
        assert rows["label"].tolist() == [7]


@pytest.mark.skipif(nginx_program() is None, reason="needs nginx; the other tests have servers of their own")
def test_nginx(tmp_path: Path) -> None:
    write_h5(tmp_path / "objects" / "a.h5")
    with tarfile.open(tmp_path / "objects" / "a.tar", "w") as tar:
        for number in range(SAMPLES):
            np.save(tmp_path / "x.npy", DATA[number])
            tar.add(tmp_path / "x.npy", f"{number}.npy")
            (tmp_path / "x.cls").write_text(str(number))
            tar.add(tmp_path / "x.cls", f"{number}.cls")
    with nginx(tmp_path) as port:
        address = f"http://127.0.0.1:{port}"
        assert sorted(epoch({"hdf5": {"path": f"{address}/a.h5"}})) == list(range(SAMPLES))
        members = {"data": "npy", "label": "cls"}
        assert sorted(epoch({"tar": {"path": f"{address}/a.tar", "members": members}})) == list(range(SAMPLES))
        with BatchReader(source={"hdf5": {"path": f"{address}/a.h5"}}, batch_size=8, num_loaders=1) as reader:
            write_h5(tmp_path / "objects" / "b.h5")
            os.utime(tmp_path / "objects" / "b.h5", (1, 1))  # nginx tells objects of one size apart by whole seconds
            (tmp_path / "objects" / "b.h5").replace(tmp_path / "objects" / "a.h5")
            with pytest.raises(SampleError, match=r"a\.h5"):
                list(reader)


def test_other_schemes_go_through_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write_h5(tmp_path / "a.h5")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.h5", "inside/a.h5")
    assert sorted(epoch({"hdf5": {"path": f"zip://inside/a.h5::{tmp_path}/a.zip"}})) == list(range(SAMPLES))
    for chain in ("simplecache::local://", "simplecache::"):
        rows = rows_of(opened("hdf5", tmp_path, ["label"], path=f"{chain}{tmp_path}/*.h5"), [7])
        assert rows["label"].tolist() == [7]
    loader = in_loader(opened("hdf5", tmp_path, ["label"], path=f"local://{tmp_path}/a.h5"))
    write_h5(tmp_path / "a.h5", 1)
    with pytest.raises(SourceError, match=r"a\.h5"):
        rows_of(loader, [3])


def test_what_lies_in_an_archive_is_found_by_groups_globs_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number in range(2):
        write_h5(tmp_path / f"{number}.h5", 20 * number, 20 * number + 20)
    (tmp_path / "a.png").write_bytes(encoded(noise(8, 9, 0), ".png"))
    (tmp_path / "list.txt").write_text("a.png 3\n./a.png 4\n/a.png 5\n")
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_group(store, path="inside").create_array("label", data=STORED["label"], shards=(20,), chunks=(5,))
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as archive:
        for name in ("0.h5", "1.h5", "a.png"):
            archive.write(tmp_path / name, f"inside/{name}")
    for chain in (f"::{tmp_path}/a.zip", f"::simplecache::local://{tmp_path}/a.zip"):
        zarrs = [("zarr", path) for path in ("inside", "inside/", "in*", "inside/label")]
        for kind, path in (("hdf5", "inside/*.h5"), *zarrs):
            rows = rows_of(opened(kind, tmp_path, ["label"], path=f"zip://{path}{chain}"), [7, 39])
            assert rows["label"].tolist() == [7, 39]
        pictures = opened("image_list", tmp_path, path="list.txt", root_folder=f"zip://inside{chain}", equal_sizes=True)
        rows = rows_of(pictures, [0, 1, 2])
        assert rows["label"].tolist() == [3, 4, 5]
        assert (rows["data"] == rows["data"][0]).all()


def test_a_file_system_that_names_its_versions_in_another_way_is_watched_too(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    np.save(tmp_path / "a.npy", STORED["label"])
    memory.put(str(tmp_path / "a.npy"), "/a.npy")
    try:
        loader = in_loader(opened("npy", tmp_path, data="memory://a.npy"))
        np.save(tmp_path / "a.npy", STORED["label"][::-1])
        memory.put(str(tmp_path / "a.npy"), "/a.npy")
        with pytest.raises(SourceError, match=r"a\.npy"):
            rows_of(loader, [7])
        assert rows_of(opened("npy", tmp_path, data="memory://a.npy"), [7])["data"].tolist() == [SAMPLES - 8]
    finally:
        memory.rm("/a.npy")


def test_a_glob_at_the_top_of_a_file_system_keeps_its_slashes(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    np.save(tmp_path / "a.npy", STORED["label"])
    try:
        for name in ("/top.npy", "/folder/below.npy"):
            memory.put(str(tmp_path / "a.npy"), name)
        for pattern in ("memory://t*.npy", "memory://folder/*.npy", "memory:///folder/*.npy"):
            assert rows_of(opened("npy", tmp_path, data=pattern), [7])["data"].tolist() == [7]
        assert len(opened("npy", tmp_path, data="memory://**/*.npy")) == 2 * SAMPLES
    finally:
        memory.rm("/", recursive=True)


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four levels of folders a and ab, each with the files b and ac."""
    folder = tmp_path_factory.mktemp("deep")
    for depth in range(5):
        for below in itertools.product(("a", "ab"), repeat=depth):
            place = folder.joinpath(*below)
            place.mkdir(exist_ok=True)
            for name in ("b", "ac"):
                (place / name).touch()
    return folder


@given(parts=st.lists(st.sampled_from(["**", "*", "a*", "?", "[ab]", "a"]), min_size=1, max_size=4).map("/".join))
def test_a_glob_finds_the_objects_that_it_finds_as_files(parts: str, deep_folder: Path) -> None:
    found = []
    for pattern in (f"local://{deep_folder}/*/{parts}", f"{deep_folder}/*/{parts}"):
        try:
            found.append({path.removeprefix("local://") for path in expand_paths(pattern, Path(), "test")})
        except SourceError:
            found.append(set())
    assert found[0] == {path for path in found[1] if Path(path).is_file()}


def test_a_file_with_two_colons_in_its_name_is_a_file(tmp_path: Path) -> None:
    write_h5(tmp_path / "run::1.h5")
    assert rows_of(opened("hdf5", tmp_path, ["label"], path="run::1.h5"), [7])["label"].tolist() == [7]


def test_pictures_by_a_list_of_urls_or_below_one(server: RangeServer, tmp_path: Path) -> None:
    pictures = [noise(8, 9, seed) for seed in range(20)]
    for number, image in enumerate(pictures):
        server.objects[f"folder/{number}.png"] = encoded(image, ".png")
    server.objects["list.txt"] = b"".join(b"%s%d.png %d\n" % ([b"", b"./", b"/"][n % 3], n, n) for n in range(20))
    (tmp_path / "list.txt").write_text(
        "".join(f"{server.url(f'folder/{number}.png')} {number}\n" for number in range(20))
    )
    for path, root in ((server.url("list.txt"), server.url("folder/")), (str(tmp_path / "list.txt"), "")):
        source = {"image_list": {"path": path, "root_folder": root, "equal_sizes": True, "color": "bgr"}}
        with BatchReader(source=source, batch_size=5, shuffle=True, epochs=1, num_loaders=2) as reader:
            batches = [(batch["data"], batch["label"]) for batch in reader]
        assert sorted(int(label) for _, labels in batches for label in labels) == list(range(20))
        for rows, labels in batches:
            for row, label in zip(rows, labels, strict=True):
                np.testing.assert_array_equal(row.transpose(1, 2, 0), pictures[label])
    del server.objects["folder/7.png"]
    source_without = in_loader(opened("image_list", tmp_path, path="list.txt", equal_sizes=True))
    with pytest.raises(SampleError, match=r"7\.png"):
        rows_of(source_without, [3, 7])


def test_a_cache_of_pictures_goes_by_what_the_store_lists(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(root: str, **options: Any) -> str:
        return opened(
            "image_list", tmp_path, path="list.txt", root_folder=root, equal_sizes=True, **options
        ).fingerprint()

    (tmp_path / "list.txt").write_text("cats/0.png 0\n1.png 1\n")
    with s3_server("pictures", monkeypatch) as put:
        for number, key in enumerate(("cats/0.png", "1.png")):
            put(f"train/{key}", encoded(noise(8, 9, number), ".png"))
        before = fingerprint("s3://pictures/train")
        put("train/cats/2.png", b"none of ours")
        assert fingerprint("s3://pictures/train") == before
        put("train/cats/0.png", encoded(noise(8, 9, 2), ".png"))
        assert fingerprint("s3://pictures/train") != before
    server.objects["cats/0.png"] = encoded(noise(8, 9, 0), ".png")
    with pytest.raises(SourceError, match=r"'cache'.*check_files: false"):
        fingerprint(server.url(""))
    assert fingerprint(server.url(""), check_files=False)
