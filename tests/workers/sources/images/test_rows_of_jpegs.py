"""A crop of a JPEG is decoded no further than its lowest row, and has the same pixels as of the whole picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from blobfeed.workers.base.errors import SampleError
from blobfeed.workers.base.parameters import Transform
from blobfeed.workers.base.specs import AnyArray
from blobfeed.workers.loading.transform import CropMirror
from blobfeed.workers.sources.images.decode import ImageDecoder, Undecoded
from blobfeed.workers.sources.images.jpeg_header import frame_of
from blobfeed.workers.sources.images.options import PictureOptions
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pictures import encoded, noise, picture, with_orientation, write_list
from tests.workers.sources.images.reading import opened, samples

_SUBSAMPLING = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}


def _jpeg(height: int, width: int, subsampling: str = "4:2:0", **options: int) -> bytes:
    flags = {getattr(cv2, f"IMWRITE_JPEG_{name.upper()}"): value for name, value in options.items()}
    return encoded(
        picture(height, width), ".jpg", {cv2.IMWRITE_JPEG_SAMPLING_FACTOR: _SUBSAMPLING[subsampling], **flags}
    )


def _lent(path: Path, **options: Any) -> AnyArray:
    lent = opened(path, max_height=640, **options).lend(np.array([0], np.int64))
    assert lent is not None
    return next(iter(lent))["data"]


@given(
    size=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    subsampling=st.sampled_from(sorted(_SUBSAMPLING)),
    quality=st.integers(1, 100),
    is_color=st.booleans(),
    in_gray=st.booleans(),
    data=st.data(),
)
def test_the_rows_that_are_asked_for_are_those_of_the_whole_picture(
    size: tuple[int, int], subsampling: str, quality: int, is_color: bool, in_gray: bool, data: st.DataObject
) -> None:
    flags = {cv2.IMWRITE_JPEG_QUALITY: quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR: _SUBSAMPLING[subsampling]}
    image = noise(*size)[:, :, 0] if in_gray else noise(*size)
    jpeg = encoded(image, ".jpg", flags)
    decoder = ImageDecoder(PictureOptions(is_color=is_color, max_height=150))
    whole = decoder.planes(*decoder.decode(jpeg)).copy()
    frame = decoder.frame(jpeg)
    assert frame is not None
    assert (frame.height, frame.width) == size
    for rows in data.draw(st.lists(st.integers(1, size[0]), min_size=1, max_size=4)):
        decoder._decoded.memory[:] = 77
        np.testing.assert_array_equal(decoder.rows(jpeg, frame, rows)[:, :rows], whole[:, :rows], strict=True)


def test_what_lies_below_a_crop_is_not_decoded(tmp_path: Path) -> None:
    jpeg = _jpeg(427, 640)
    path = write_list(tmp_path, {"china.jpg": jpeg})
    whole, lent = samples(opened(path, max_height=640), [0])["data"][0], _lent(path)
    assert isinstance(lent, Undecoded)
    np.testing.assert_array_equal(lent[:, 20:100, 30:200], whole[:, 20:100, 30:200])

    broken = jpeg[:-8002] + b"\xff\xd0" * 4000 + jpeg[-2:]  # restart markers where nobody expects any
    (tmp_path / "china.jpg").write_bytes(broken)
    with pytest.raises(SampleError, match=r"line 1: .*china\.jpg cannot be read: the JPEG is damaged"):
        samples(opened(path, max_height=640), [0])
    np.testing.assert_array_equal(_lent(path)[:, 20:100, 30:200], whole[:, 20:100, 30:200])
    with pytest.raises(SampleError, match=r"line 1: .*china\.jpg cannot be read: the JPEG is damaged"):
        _lent(path)[:, 300:427, 30:200]


def test_a_crop_of_a_jpeg_that_ends_early_is_an_error_wherever_it_lies(tmp_path: Path) -> None:
    path = write_list(tmp_path, {"china.jpg": _jpeg(427, 640)[:-2000]})
    with pytest.raises(SampleError, match=r"line 1: .*china\.jpg cannot be read: the JPEG is damaged"):
        _lent(path)[:, :8, :8]


@pytest.mark.parametrize(
    ("jpeg", "options"),
    [
        pytest.param(_jpeg(90, 120, progressive=1), {"max_height": 200}, id="progressive"),
        pytest.param(_jpeg(90, 120, rst_interval=2), {"max_height": 200}, id="restart markers"),
        pytest.param(_jpeg(90, 120) + b"\0", {"max_height": 200}, id="something behind its end"),
        pytest.param(with_orientation(_jpeg(90, 120), 6), {"max_height": 200, "exif": True}, id="to be turned"),
        pytest.param(_jpeg(90, 120), {"new_height": 40, "new_width": 50}, id="to be resized"),
        pytest.param(encoded(picture(90, 120), ".png"), {"max_height": 200}, id="no JPEG"),
    ],
)
def test_others_are_decoded_whole(tmp_path: Path, jpeg: bytes, options: dict[str, Any]) -> None:
    path = write_list(tmp_path, {"china.jpg": jpeg})
    source = opened(path, **options)
    lent = source.lend(np.array([0], np.int64))
    assert lent is not None
    value = next(iter(lent))["data"]
    assert isinstance(value, np.ndarray)
    np.testing.assert_array_equal(value, samples(source, [0])["data"][0])


@given(cut=st.integers(0, 700), byte=st.integers(0, 255))
def test_a_broken_header_has_no_frame_or_one(cut: int, byte: int) -> None:
    jpeg = bytearray(_jpeg(90, 120))
    assert frame_of(bytes(jpeg)) == (jpeg.index(b"\xff\xc0") + 5, 90, 120, 16)
    jpeg[cut] = byte
    frame_of(bytes(jpeg))
    frame_of(bytes(jpeg[:cut]))


def test_a_transform_gets_the_same_pixels(tmp_path: Path) -> None:
    path = write_list(tmp_path, {"china.jpg": _jpeg(200, 260)})
    whole = samples(opened(path, max_height=300), [0])["data"][0]
    crop_mirror = CropMirror(Transform(crop_size=64, mirror=True), train=True)
    for seed in range(20):
        expected, got = (np.empty((3, 64, 64), np.uint8) for _ in range(2))
        crop_mirror.apply(whole, expected, np.random.default_rng(seed))
        crop_mirror.apply(
            _lent(
                path,
            ),
            got,
            np.random.default_rng(seed),
        )
        np.testing.assert_array_equal(got, expected)
