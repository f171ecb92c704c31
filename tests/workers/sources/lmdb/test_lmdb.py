"""The source `lmdb`: records as they were written, in any order, and errors that name the file and the key."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError, SampleError, SampleTooLargeError, SourceError
from blobfeed.workers.base.source import Source
from blobfeed.workers.base.specs import AnyArray, RaggedRows, allocate_rows
from blobfeed.workers.sources import open_source

from tests.support.datums import encoded_datum, float_datum, raw_datum, write_lmdb
from tests.support.pictures import decoded, encoded, noise, picture

RAW = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), np.uint8)
LABELS = [3, 1, 4, 1, 5, 9, 2]


def opened(path: Path, tops: tuple[str, ...] | None = None, **options: Any) -> Source:
    return open_source({"lmdb": {"path": path.name, **options}}, tops=tops, base_dir=path.parent)


def read(source: Source, indices: list[int]) -> dict[str, list[AnyArray]]:
    """The samples, each in its own shape, by name."""
    rows = allocate_rows(source.specs, len(indices))
    source.read(np.array(indices, np.int64), rows)
    return {
        name: [top.get(k) if isinstance(top, RaggedRows) else top[k] for k in range(len(indices))]
        for name, top in rows.items()
    }


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_lmdb(tmp_path / "raw", map(raw_datum, RAW, LABELS))


def test_a_database_may_be_a_file_by_itself(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "alone.mdb", map(raw_datum, RAW, LABELS), subdir=False)
    np.testing.assert_array_equal(read(opened(path), [5])["data"], RAW[[5]])


def test_a_tilde_is_the_home_directory(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(raw.parent))
    assert len(open_source({"lmdb": "~/raw"}, tops=None, base_dir=Path("elsewhere"))) == 7


def test_floats_are_read_as_floats(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(2, 1, 3, 4)).astype(np.float32)
    source = opened(write_lmdb(tmp_path / "floats", map(float_datum, values)))
    assert str(source.specs["data"]) == "(1, 3, 4) float32"
    np.testing.assert_array_equal(read(source, [1, 0])["data"], values[::-1])


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_encoded_records_are_decoded_as_opencv_does(tmp_path: Path, suffix: str) -> None:
    contents = [encoded(picture(24, 32, name), suffix) for name in ("china", "flower")]
    path = write_lmdb(tmp_path / "encoded", map(encoded_datum, contents, [0, 1]))
    expected = [decoded(content).transpose(2, 0, 1) for content in contents]
    np.testing.assert_array_equal(read(opened(path), [0, 1])["data"], expected)
    np.testing.assert_array_equal(
        read(opened(path, color="rgb"), [0, 1])["data"], [planes[::-1] for planes in expected]
    )
    gray = opened(path, is_color=False)
    assert str(gray.specs["data"]) == "(1, 24, 32) uint8"
    np.testing.assert_array_equal(read(gray, [1])["data"], [decoded(contents[1], 0)[np.newaxis]])


def test_gray_pictures_have_one_channel_unless_colour_is_asked_for(tmp_path: Path) -> None:
    gray = noise(6, 5)[:, :, 0]
    path = write_lmdb(tmp_path / "gray", [encoded_datum(encoded(gray, ".png"))])
    np.testing.assert_array_equal(read(opened(path), [0])["data"], [gray[np.newaxis]])
    np.testing.assert_array_equal(read(opened(path, is_color=True), [0])["data"], [np.stack([gray] * 3)])


def test_a_first_jpeg_that_ends_early_says_which_options_read_it(tmp_path: Path) -> None:
    whole = encoded(picture(24, 32))
    path = write_lmdb(tmp_path / "cut", map(encoded_datum, (whole[:-20], whole)))
    with pytest.raises(SampleError, match=r"'00000000' .*; is_color says how many channels .* strict: false takes"):
        opened(path, strict=False)
    assert read(opened(path, strict=False, is_color=True), [0])["data"][0].shape == (3, 24, 32)


def test_sizes_may_vary_up_to_a_declared_one(tmp_path: Path) -> None:
    images = [noise(6, 5), noise(8, 3)]
    records = [encoded_datum(encoded(images[0], ".png")), raw_datum(images[1].transpose(2, 0, 1).copy())]
    path = write_lmdb(tmp_path / "varying", records)
    found = read(opened(path, max_height=8), [1, 0])["data"]
    for sample, image in zip(found, images[::-1], strict=True):
        np.testing.assert_array_equal(sample, image.transpose(2, 0, 1))
    with pytest.raises(SampleTooLargeError, match=r"key '00000001'.*max_height"):
        read(opened(path, max_height=7), [1])
    with pytest.raises(SampleError, match=r"key '00000001'.*it is 8×3 and the first one 6×5.*max_height"):
        read(opened(path), [1])


@pytest.mark.parametrize("channels", [1, 5])
def test_all_records_need_as_many_channels_as_the_first_one(tmp_path: Path, channels: int) -> None:
    records = [raw_datum(np.ones((count, 2, 2), np.uint8)) for count in (3, channels)]
    source = opened(write_lmdb(tmp_path / "channels", records), max_height=4)
    with pytest.raises(SampleError, match=rf"'00000001'.*has {channels} channels and the first one 3"):
        read(source, [0, 1])


def test_a_pickled_source_reads_on_and_two_read_the_same_database(raw: Path) -> None:
    source = opened(raw)
    copy = pickle.loads(pickle.dumps(source))
    for each in (source, copy, source):
        assert read(each, [4])["label"] == [5]
        each.close()


def test_one_database_may_be_read_by_several_paths(raw: Path) -> None:
    (raw.parent / "link").symlink_to(raw)
    sources = [opened(path) for path in (raw, raw.parent / "link", raw / "data.mdb")]
    assert [read(source, [3])["label"] for source in sources] == [[1]] * 3
    for source in sources:
        source.close()


def test_the_name_of_a_database_need_be_no_utf8(raw: Path) -> None:
    source = opened(raw.rename(raw.parent / os.fsdecode(b"\xff")))
    assert read(source, [3])["label"] == [1]
    source.close()


def test_a_database_that_the_program_has_open_itself_is_named(raw: Path) -> None:
    with (
        lmdb.open(str(raw), readonly=True, lock=False),
        pytest.raises(
            SourceError, match=r"raw' cannot be opened: .* already open .* Close it where your program opens it"
        ),
    ):
        opened(raw)


def test_a_closed_source_leaves_the_database_to_others(raw: Path) -> None:
    source = opened(raw)
    source.close()
    with lmdb.open(str(raw), readonly=True, lock=False) as environment:
        assert environment.stat()["entries"] == 7
    assert read(source, [0])["label"] == [3]
    assert sorted(file.name for file in raw.iterdir()) == ["data.mdb"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"no protobuf", "no Datum, as Caffe's tools write them"),
        (raw_datum(RAW[0])[:30], "parsing"),
        (b"", r"\(0, 0, 0\) and holds 0 bytes of data"),
        (encoded_datum(b"no picture"), "no format that OpenCV knows"),
        (encoded_datum(encoded(noise(5, 4), ".png")[:60]), "truncated, damaged"),
        (raw_datum(RAW[0][:1].copy()), r"it has 1 channels and the first one 3"),
        (float_datum(RAW[0]), "holds 0 bytes of data and 60 float_data; expected one number for each in bytes"),
    ],
)
def test_a_bad_record_is_named_by_file_and_key(tmp_path: Path, record: bytes, message: str) -> None:
    path = write_lmdb(tmp_path / "bad", [raw_datum(RAW[0]), record])
    source = opened(path)
    with pytest.raises(SampleError, match=rf"bad key '00000001'.*(?i:{message})") as error:
        read(source, [0, 1])
    assert (error.value.source, error.value.index) == (str(path), 1)


def test_what_is_no_database_is_said(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"there is no database '.*none'; check path"):
        opened(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ParameterError, match=r"the folder has no data.mdb"):
        opened(tmp_path / "empty")
    (tmp_path / "level").mkdir()
    (tmp_path / "level" / "CURRENT").write_text("MANIFEST-000002\n")
    with pytest.raises(ParameterError, match=r"a LevelDB; make an LMDB of it: blobfeed convert \S*level \S*\.lmdb\)"):
        opened(tmp_path / "level")
    (tmp_path / "text.mdb").write_text("text" * 5000)
    with pytest.raises(SourceError, match=r"text.mdb' cannot be opened: .*MDB_INVALID"):
        opened(tmp_path / "text.mdb")
    with pytest.raises(SourceError, match=r"holds no records"):
        opened(write_lmdb(tmp_path / "nothing", []))


def test_a_database_cut_short_is_an_error_and_not_a_crash(raw: Path) -> None:
    whole = (raw / "data.mdb").read_bytes()
    cut = raw.with_name("cut")
    shutil.copytree(raw, cut)
    (cut / "data.mdb").write_bytes(whole[:8192])
    with pytest.raises(SourceError, match=r"cut/data.mdb' is cut short: it needs \d+ bytes and has 8192"):
        opened(cut)
