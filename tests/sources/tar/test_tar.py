"""WebDataset shards by index: grouped by key, decoded by extension, in any order, each sample once, resumable."""

from __future__ import annotations

import io
import json
import pwd
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobfeed import BatchReader, RaggedRows, SourceError
from tests.support.pictures import decoded, encoded, picture
from tests.support.stored import in_loader, opened, rows_of
from tests.support.tars import write_tar

SAMPLES = 23
SIZE = (16, 24)
SHAPE = (3, *SIZE)


def members_of(number: int) -> dict[str, bytes]:
    array = io.BytesIO()
    np.save(array, np.full(4, number, np.float32))
    image = np.roll(picture(*SIZE), number, axis=1)
    return {
        "png": encoded(image, ".png"),
        "cls": str(number).encode(),
        "json": json.dumps({"width": number * 2, "box": [number, 1.5]}).encode(),
        "npy": array.getvalue(),
        "bin": bytes(range(number + 1)),
    }


def write_shard(path: Path, numbers: Iterable[int]) -> Path:
    return write_tar(path, [(f"some.dir/{n:06d}.{ext}", data) for n in numbers for ext, data in members_of(n).items()])


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shard(tmp_path / "train-2.tar", range(10))
    write_shard(tmp_path / "train-10.tar", range(10, SAMPLES))
    return tmp_path


def image(number: int) -> Any:
    return decoded(members_of(number)["png"]).transpose(2, 0, 1)[::-1]


def test_members_are_decoded_by_their_extensions_in_any_order(shards: Path) -> None:
    source = in_loader(opened("tar", shards, path="train-*.tar", new_height=SIZE[0], new_width=SIZE[1]))
    assert len(source) == SAMPLES
    assert {name: str(spec) for name, spec in source.specs.items()} == {
        "png": "(3, 16, 24) uint8",
        "cls": "() int64",
        "json": f"() bytes{8 * len(members_of(22)['json'])}",
        "npy": "(4,) float32",
        "bin": "up to (23,) uint8",
    }
    wanted = [22, 0, 9, 10, 9]
    source.will_need(np.array(wanted))
    rows = rows_of(source, wanted)
    assert rows["cls"].tolist() == wanted
    assert rows["npy"][:, 0].tolist() == wanted
    assert [json.loads(text)["width"] for text in rows["json"].tolist()] == [number * 2 for number in wanted]
    assert isinstance(rows["bin"], RaggedRows)
    for row, number in enumerate(wanted):
        np.testing.assert_array_equal(rows["png"][row], image(number))
        assert rows["bin"].get(row).tobytes() == bytes(range(number + 1))


def test_tops_are_extensions_alternatives_and_keys_of_json(shards: Path) -> None:
    source = opened(
        "tar",
        shards,
        ["box", "label", "data"],
        path=["train-2.tar"],
        members={"data": "jpg;png", "label": ".CLS", "box": "json:box"},
        equal_sizes=True,
        limit=7,
    )
    rows = rows_of(source, [6, 2])
    assert len(source) == 7
    assert rows["box"].tolist() == [[6.0, 1.5], [2.0, 1.5]]
    assert rows["label"].tolist() == [6, 2]
    np.testing.assert_array_equal(rows["data"][1], image(2))


def test_braces_stand_for_as_many_shards(tmp_path: Path) -> None:
    for number in range(9, 12):
        write_tar(tmp_path / f"a-{number:03}.tar", [("0.cls", b"%d" % number)])

    def labels(path: str) -> list[int]:
        source = opened("tar", tmp_path, path=path)
        return list(rows_of(source, range(len(source)))["cls"])

    assert labels("a-{009..010}.tar") == [9, 10]
    write_tar(tmp_path / "b-010.tar", [("0.cls", b"20")])
    assert labels("{b,a}-{010..010}.tar") == [20, 10]
    write_tar(tmp_path / "a-{009..010}.tar", [("0.cls", b"7")])
    assert labels("a-{009..010}.tar") == [7]


def test_a_user_without_a_home_keeps_no_index(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    known: dict[int, Any] = {}
    monkeypatch.setattr(pwd, "getpwuid", known.__getitem__)
    monkeypatch.chdir(shards)
    before = sorted(shards.rglob("*"))
    assert len(opened("tar", shards, path="train-2.tar", members={"label": "cls"})) == 10
    assert sorted(shards.rglob("*")) == before


def test_names_that_are_no_utf8_are_what_they_are(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(f"\udcff{n}.{end}", b"%d" % n) for n in range(2) for end in ("cls", "\udcfe.txt")])
    source = opened("tar", tmp_path, path="a.tar")
    rows = rows_of(source, [1, 0])
    assert (rows["cls"].tolist(), rows[r"\xfe.txt"].tolist()) == ([1, 0], [b"1", b"0"])
    assert source.where(1).endswith(r":\xff1")


def test_a_long_name_and_a_folder_are_what_they_are(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("a")
    folder.type = tarfile.DIRTYPE
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(folder)
        for number in range(2):
            entry = tarfile.TarInfo(f"a/{'ü' * 150}{number}.left.cls")
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"%d" % number))
    source = opened("tar", tmp_path, path="a.tar", members={"label": "left.cls"})
    assert rows_of(source, [1, 0])["label"].tolist() == [1, 0]
    assert source.where(1).endswith("ü1")


def test_members_without_a_name_or_an_extension_are_skipped(tmp_path: Path) -> None:
    names = ["README", "a.b/._0.cls", "a.b/0.cls", ".DS_Store", "a.b/.DS_Store", "a.b/1.cls", "a.b/LICENSE"]
    write_tar(tmp_path / "a.tar", [(name, b"%d" % number) for number, name in enumerate(names)])
    source = opened("tar", tmp_path, path="a.tar")
    assert rows_of(source, range(len(source)))["cls"].tolist() == [2, 5]


def test_a_cache_goes_by_the_decoder_of_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a.tar", [("0.png", members_of(0)["png"])])
    before = opened("tar", tmp_path, path="a.tar", equal_sizes=True).fingerprint()
    monkeypatch.setattr("blobfeed.sources.images.decode.REDUCES", False)
    assert opened("tar", tmp_path, path="a.tar", equal_sizes=True).fingerprint() != before


def test_symbolic_links_are_said_to_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_tar(tmp_path / "a.tar", [("0.cls", b"0")])
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        entry = tarfile.TarInfo("1.cls")
        entry.type, entry.linkname = tarfile.SYMTYPE, "0.cls"
        tar.addfile(entry)
    assert len(opened("tar", tmp_path, path="a.tar")) == 1
    assert "1 symbolic links, such as '1.cls', are skipped: write it with tar --dereference" in caplog.text


@pytest.mark.parametrize("first", [0, 2])
def test_a_string_under_a_key_is_never_cut(tmp_path: Path, first: int) -> None:
    names = [*["cat", "dog", "elephant", "nähmaschine"][first:], "ox"]
    write_tar(tmp_path / "a.tar", [(f"{n}.json", json.dumps({"name": name}).encode()) for n, name in enumerate(names)])
    source = opened("tar", tmp_path, path="a.tar", members={"name": "json:name"})
    assert [text.decode() for text in rows_of(source, range(len(names)))["name"].tolist()] == names


def test_a_header_of_a_huge_length_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Releases of Python take it for an overflow or for damage, so its words stand in no catalogue."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, kind, content in (
            ("a.cls", tarfile.REGTYPE, b"1"),
            ("pax", tarfile.XHDTYPE, b"99999999999999999999 a=b\n"),
            ("b.cls", tarfile.REGTYPE, b"2"),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(content)
            tar.addfile(entry, io.BytesIO(content))
    with pytest.raises(SourceError) as caught:
        BatchReader({"tar": {"path": str(path)}}, batch_size=1)
    assert str(path) in str(caught.value)
