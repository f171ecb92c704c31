"""The source `lmdb`: records as they were written, in any order, and errors that name the file and the key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from blobfeed.sources import open_source

from blobfeed import Source
from tests.sources.images.reading import samples
from tests.support.datums import encoded_datum, float_datum, raw_datum, write_lmdb
from tests.support.pictures import decoded, encoded, noise, picture

RAW = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), np.uint8)
LABELS = [3, 1, 4, 1, 5, 9, 2]


def opened(path: Path, tops: tuple[str, ...] | None = None, **options: Any) -> Source:
    return open_source({"lmdb": {"path": path.name, **options}}, tops=tops, base_dir=path.parent)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_lmdb(tmp_path / "raw", map(raw_datum, RAW, LABELS))


def test_a_database_may_be_a_file_by_itself(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "alone.mdb", map(raw_datum, RAW, LABELS), subdir=False)
    np.testing.assert_array_equal(samples(opened(path), [5])["data"], RAW[[5]])


def test_floats_are_read_as_floats(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(2, 1, 3, 4)).astype(np.float32)
    source = opened(write_lmdb(tmp_path / "floats", map(float_datum, values)))
    assert str(source.specs["data"]) == "(1, 3, 4) float32"
    np.testing.assert_array_equal(samples(source, [1, 0])["data"], values[::-1])


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_encoded_records_are_decoded_as_opencv_does(tmp_path: Path, suffix: str) -> None:
    contents = [encoded(picture(24, 32, name), suffix) for name in ("china", "flower")]
    path = write_lmdb(tmp_path / "encoded", map(encoded_datum, contents, [0, 1]))
    expected = [decoded(content).transpose(2, 0, 1) for content in contents]
    np.testing.assert_array_equal(samples(opened(path, color="bgr"), [0, 1])["data"], expected)
    np.testing.assert_array_equal(samples(opened(path), [0, 1])["data"], [planes[::-1] for planes in expected])
    gray = opened(path, is_color=False)
    assert str(gray.specs["data"]) == "(1, 24, 32) uint8"
    np.testing.assert_array_equal(samples(gray, [1])["data"], [decoded(contents[1], 0)[np.newaxis]])


def test_gray_pictures_have_one_channel_unless_colour_is_asked_for(tmp_path: Path) -> None:
    gray = noise(6, 5)[:, :, 0]
    path = write_lmdb(tmp_path / "gray", [encoded_datum(encoded(gray, ".png"))])
    np.testing.assert_array_equal(samples(opened(path), [0])["data"], [gray[np.newaxis]])
    np.testing.assert_array_equal(samples(opened(path, is_color=True), [0])["data"], [np.stack([gray] * 3)])


def test_a_first_jpeg_that_ends_early_is_read_if_its_channels_are_given(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "cut", [encoded_datum(encoded(picture(24, 32))[:-20])])
    assert samples(opened(path, strict=False, is_color=True), [0])["data"][0].shape == (3, 24, 32)


def test_one_database_may_be_read_by_several_paths(raw: Path) -> None:
    (raw.parent / "link").symlink_to(raw)
    sources = [opened(path) for path in (raw, raw.parent / "link", raw / "data.mdb")]
    assert [samples(source, [3])["label"] for source in sources] == [[1]] * 3
    for source in sources:
        source.close()


def test_the_name_of_a_database_need_be_no_utf8(raw: Path) -> None:
    source = opened(raw.rename(raw.parent / os.fsdecode(b"\xff")))
    assert samples(source, [3])["label"] == [1]
    source.close()


def test_a_closed_source_leaves_the_database_to_others(raw: Path) -> None:
    source = opened(raw)
    source.close()
    with lmdb.open(str(raw), readonly=True, lock=False) as environment:
        assert environment.stat()["entries"] == 7
    assert samples(source, [0])["label"] == [3]
    assert sorted(file.name for file in raw.iterdir()) == ["data.mdb"]
