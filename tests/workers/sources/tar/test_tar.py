"""WebDataset shards by index: grouped by key, decoded by extension, in any order, each sample once, resumable."""

from __future__ import annotations

import io
import json
import pwd
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError, SampleError, SourceError
from blobfeed.workers.base.specs import RaggedRows
from blobfeed.workers.sources.files.remote import Stamp
from blobfeed.workers.sources.tar.index import TarIndex, make_index

from blobfeed import BatchReader
from tests.support.pictures import decoded, encoded, picture
from tests.support.stored import in_loader, opened, rows_of

SAMPLES = 23
SIZE = (16, 24)
SHAPE = (3, *SIZE)


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def write_shard(path: Path, numbers: Iterable[int]) -> Path:
    return write_tar(path, [(f"some.dir/{n:06d}.{ext}", data) for n in numbers for ext, data in members_of(n).items()])


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shard(tmp_path / "train-2.tar", range(10))
    write_shard(tmp_path / "train-10.tar", range(10, SAMPLES))
    return tmp_path


def image(number: int) -> Any:
    return decoded(members_of(number)["png"]).transpose(2, 0, 1)


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


def labels_of(batches: Iterable[Any]) -> list[int]:
    return [int(label) for batch in batches for label in batch["label"]]


def test_a_shuffled_epoch_has_each_sample_once_and_goes_on_where_it_was_left(shards: Path) -> None:
    given: dict[str, Any] = {
        "source": {"tar": {"path": str(shards / "train-*.tar"), "members": {"label": "cls", "data": "npy"}}},
        "batch_size": 5,
        "shuffle": True,
        "epochs": 1,
        "last_batch": "partial",
        "num_loaders": 2,
        "seed": 3,
    }
    with BatchReader(**given) as reader:
        whole = labels_of(reader)
    assert sorted(whole) == list(range(SAMPLES))
    assert whole != sorted(whole)
    with BatchReader(**given) as reader:
        batches = iter(reader)
        begun = labels_of([next(batches), next(batches)])
        state = reader.state_dict()
    with BatchReader(**given) as reader:
        reader.load_state_dict(state)
        assert begun + labels_of(reader) == whole


def test_braces_stand_for_as_many_shards(tmp_path: Path) -> None:
    for number in range(9, 12):
        write_tar(tmp_path / f"a-{number:03}.tar", [("0.cls", b"%d" % number)])

    def labels(path: str) -> list[int]:
        source = opened("tar", tmp_path, path=path)
        return list(rows_of(source, range(len(source)))["cls"])

    assert labels("a-{009..010}.tar") == [9, 10]
    write_tar(tmp_path / "b-010.tar", [("0.cls", b"20")])
    assert labels("{b,a}-{010..010}.tar") == [20, 10]
    with pytest.raises(SourceError, match=r"a-\{011,0\{09..10\}\}\.tar' cannot be opened"):
        labels("a-{011,0{09..10}}.tar")
    with pytest.raises(SourceError, match=r"a-012\.tar' cannot be opened"):
        labels("a-{011..012}.tar")
    write_tar(tmp_path / "a-{009..010}.tar", [("0.cls", b"7")])
    assert labels("a-{009..010}.tar") == [7]


def test_the_index_is_kept_until_the_file_changes(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def noted(stamp: Stamp) -> TarIndex:
        looked.append(stamp.path)
        return make_index(stamp)

    monkeypatch.setattr("blobfeed.workers.sources.tar.source.make_index", noted)
    options: dict[str, Any] = {"path": "train-2.tar", "members": {"label": "cls"}}
    for _ in range(2):
        opened("tar", shards, **options)
    assert len(looked) == 1
    write_shard(shards / "train-2.tar", range(3))
    assert len(opened("tar", shards, **options)) == 3
    kept = max((shards / "cache" / "blobfeed").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert len(opened("tar", shards, **options)) == 3
    assert len(looked) == 3


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
    source = opened("tar", tmp_path, path="a.tar", equal_sizes=True)
    before = source.fingerprint()
    monkeypatch.setattr("blobfeed.workers.sources.images.decode.REDUCES", False)
    assert source.fingerprint() != before


def add_link(tar: tarfile.TarFile, kind: bytes, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    tar.addfile(entry)


def test_hard_links_are_the_files_that_they_name(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.CLS").write_bytes(b"%d" % number)
    (tmp_path / "3.CLS").hardlink_to(tmp_path / "1.CLS")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(4):
            tar.add(tmp_path / f"{number}.CLS", f"./some.dir/{number}.CLS")
    source = opened("tar", tmp_path, path="a.tar")
    assert rows_of(source, range(4))["cls"].tolist() == [0, 1, 2, 1]
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        add_link(tar, tarfile.LNKTYPE, "4.cls", "5.cls")
    with pytest.raises(SourceError, match=r"'4\.cls' is a hard link to '5\.cls', which is no file in it"):
        opened("tar", tmp_path, path="a.tar")


def test_symbolic_links_are_said_to_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_tar(tmp_path / "a.tar", [("0.cls", b"0")])
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        add_link(tar, tarfile.SYMTYPE, "1.cls", "0.cls")
    assert len(opened("tar", tmp_path, path="a.tar")) == 1
    assert "1 symbolic links, such as '1.cls', are left out: write it with tar --dereference" in caplog.text


@pytest.mark.parametrize(
    ("members", "options", "says"),
    [
        ([("a.cls", b"1"), ("b.txt", b"x")], {"members": {"y": "cls"}}, "1 of 2 samples have no member .cls"),
        (
            [("a.cls", b"1"), ("b.txt", b"x"), ("a.txt", b"x"), ("b.cls", b"2")],
            {"members": {"y": "cls"}},
            "2 of 4 samples have no member .cls .* write the file with tar --sort=name",
        ),
        ([("a.cls", b"1"), ("a.cls", b"2")], {}, "has two members 'cls'"),
        ([("a.cls", b"1")], {"tops": ["clas"]}, r"'members', .*: unknown top 'clas' \(did you mean 'cls'"),
        ([], {}, "no samples"),
        ([("a.jpg", b"1")], {}, "source tar: images keep their own sizes"),
        ([("a.npy", b"1")], {}, "cannot be read"),
        ([("a.npy", b"")], {}, r"a\.npy cannot be read: No data left"),
    ],
)
def test_what_is_wrong_is_said_at_the_start(
    members: Sequence[tuple[str, bytes]], options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    write_tar(tmp_path / "a.tar", members)
    with pytest.raises((SourceError, ParameterError, SampleError), match=says):
        opened("tar", tmp_path, path="a.tar", **options)


def test_damage_is_an_error_and_not_the_end(shards: Path) -> None:
    path = shards / "train-2.tar"
    whole = path.read_bytes()
    for damaged in (whole[:3000], b"", b"x" * 600):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=r"cut short|damaged at|tar file: .*; write an empty, damaged or"):
            opened("tar", shards, path="train-2.tar", members={"label": "cls"})
    second = whole.index(b"some.dir/000001")
    path.write_bytes(whole[:second] + b"\xff" * 512 + whole[second + 512 :])
    with pytest.raises(SourceError, match=f"damaged at byte {second}"):
        opened("tar", shards, path="train-2.tar", members={"label": "cls"})


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        (b"14 size=-1536\n", "'b.cls' has the size -1536"),  # the next member is the one before
        (b"99999999999999999999 a=b\n", "too large to convert"),
    ],
)
def test_a_lie_in_a_pax_header_is_an_error_and_no_hang(tmp_path: Path, attribute: bytes, says: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, kind, content in (("a.cls", b"0", b"1"), ("pax", b"x", attribute), ("b.cls", b"Q", b"")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(content)
            tar.addfile(entry, io.BytesIO(content))
    with pytest.raises(SourceError, match=rf"a\.tar' cannot be read as a tar file: .*{says}.*; write"):
        opened("tar", tmp_path, path="a.tar")


def test_a_second_tar_file_behind_the_first_is_an_error(shards: Path) -> None:
    whole = (shards / "train-2.tar").read_bytes()
    (shards / "train-2.tar").write_bytes(whole * 2)
    with pytest.raises(SourceError, match="and more follows: tar files that were put end to end by cat"):
        opened("tar", shards, path="train-2.tar", members={"label": "cls"})


@pytest.mark.parametrize("first", [0, 2])
def test_a_string_under_a_key_is_never_cut(tmp_path: Path, first: int) -> None:
    names = [*["cat", "dog", "elephant", "nähmaschine"][first:], "ox"]
    write_tar(tmp_path / "a.tar", [(f"{n}.json", json.dumps({"name": name}).encode()) for n, name in enumerate(names)])
    source = opened("tar", tmp_path, path="a.tar", members={"name": "json:name"})
    assert [text.decode() for text in rows_of(source, range(len(names)))["name"].tolist()] == names


@pytest.mark.parametrize(("given", "holds"), [(np.bytes_("cat"), "S3"), (np.int64(5), "int64"), (5.5, "float64")])
def test_a_text_takes_neither_a_longer_one_nor_a_number(tmp_path: Path, given: Any, holds: str) -> None:
    arrays = [io.BytesIO() for _ in range(2)]
    for array, value in zip(arrays, (np.bytes_("ox"), given), strict=True):
        np.save(array, value)
    write_tar(tmp_path / "a.tar", [(f"{number}.npy", array.getvalue()) for number, array in enumerate(arrays)])
    source = opened("tar", tmp_path, path="a.tar")
    with pytest.raises(SampleError, match=rf"a\.tar:1\.npy cannot be read: it holds \(\) .*{holds}, and the first"):
        rows_of(source, [0, 1])


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63)])
def test_an_integer_that_the_first_samples_float_would_round_is_an_error(tmp_path: Path, value: int) -> None:
    values = [0.5, 2**53, value]
    write_tar(tmp_path / "a.tar", [(f"{n}.json", json.dumps({"x": given}).encode()) for n, given in enumerate(values)])
    source = opened("tar", tmp_path, path="a.tar", members={"x": "json:x"})
    assert rows_of(source, [0, 1])["x"].tolist() == values[:2]
    with pytest.raises(
        SampleError, match=rf"a\.tar:2\.json:x cannot be read: it holds {value}, and .* float64, which would"
    ):
        rows_of(source, [2])


def test_an_integer_of_an_array_that_the_first_float_would_round_is_an_error(tmp_path: Path) -> None:
    arrays = [io.BytesIO() for _ in range(2)]
    for array, value in zip(arrays, (np.zeros(2), np.array([1, 2**53 + 1])), strict=True):
        np.save(array, value)
    write_tar(tmp_path / "a.tar", [(f"{number}.npy", array.getvalue()) for number, array in enumerate(arrays)])
    source = opened("tar", tmp_path, path="a.tar")
    with pytest.raises(SampleError, match=r"a\.tar:1\.npy cannot be read: it holds 9007199254740993, and"):
        rows_of(source, [1])


@pytest.mark.parametrize("numbers", [[0.5, 2**53 + 1], [2**63 + 1, -1]])
def test_an_integer_that_a_float_beside_it_would_round_is_an_error(tmp_path: Path, numbers: list[Any]) -> None:
    values = [[0.5, 2**60], numbers]
    write_tar(tmp_path / "a.tar", [(f"{n}.json", json.dumps({"x": given}).encode()) for n, given in enumerate(values)])
    source = opened("tar", tmp_path, path="a.tar", members={"x": "json:x"})
    assert rows_of(source, [0])["x"].tolist() == values[:1]
    with pytest.raises(SampleError, match=rf"a\.tar:1\.json:x cannot be read: it holds {max(numbers)} beside floats"):
        rows_of(source, [1])


def test_a_bad_member_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"one")])
    source = opened("tar", tmp_path, path="a.tar")
    with pytest.raises(SampleError, match=r"a\.tar:b\.cls cannot be read"):
        rows_of(source, [0, 1])


def test_an_error_names_the_member_and_not_the_top(tmp_path: Path) -> None:
    good = encoded(picture(*SIZE), ".png")
    write_tar(tmp_path / "a.tar", [("0.jpg", good), ("1.jpg", b"no picture"), ("2.png", b"no picture")])
    source = opened("tar", tmp_path, path="a.tar", members={"data": "jpg;png"}, equal_sizes=True)
    for index, name in ((1, "1.jpg"), (2, "2.png")):
        with pytest.raises(SampleError, match=rf"a\.tar:{name} cannot be read"):
            rows_of(source, [index])


def test_a_first_picture_that_is_damaged_is_named_or_replaced(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(f"{n}.png", members_of(n)["png"][: 40 if n == 0 else None]) for n in range(6)])
    with pytest.raises(SampleError, match=r"a\.tar:0\.png cannot be read"):
        opened("tar", tmp_path, path="a.tar", equal_sizes=True)
    source = {"tar": {"path": str(tmp_path / "a.tar"), "new_height": 8, "new_width": 8}}
    with BatchReader(source, batch_size=6, epochs=1, on_error="replace", num_loaders=0) as reader:
        assert next(iter(reader))["png"].shape == (6, 3, 8, 8)
        assert reader.statistics().replaced
