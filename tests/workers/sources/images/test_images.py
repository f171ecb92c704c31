"""Image lists: what is read equals what OpenCV makes of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from blobfeed.workers.base.specs import ArraySpec
from blobfeed.workers.sources.images import decode as image_decode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pictures import decoded, encoded, noise, picture, write_list
from tests.workers.sources.images.reading import SIZE, opened, planes, resized, samples


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tiff", ".ppm", ".webp"])
@pytest.mark.parametrize("options", [{}, {"color": "rgb"}, {"is_color": False}], ids=["bgr", "rgb", "gray"])
def test_every_format_gives_the_pixels_that_opencv_gives(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    content = encoded(picture(75, 100), suffix)
    source = opened(write_list(tmp_path, {f"a{suffix}": content}), max_height=75, max_width=100, **options)
    flag = cv2.IMREAD_GRAYSCALE if "is_color" in options else cv2.IMREAD_COLOR
    expected = planes(decoded(content, flag))
    np.testing.assert_array_equal(samples(source)["data"][0], expected[::-1] if "color" in options else expected)


@pytest.mark.parametrize("how", ["nearest", "linear", "cubic", "area", "lanczos"])
def test_images_are_resized_as_opencv_resizes_them(two_photographs: Path, how: str) -> None:
    source = opened(two_photographs, interpolation=how, dct_scaling=False, **SIZE)
    read = samples(source)
    files = ["china.jpg", "a flower.png"]
    for image, name in zip(read["data"], files, strict=True):
        whole = decoded((two_photographs.parent / name).read_bytes())
        np.testing.assert_array_equal(image, planes(resized(whole, 48, 64, image_decode.INTERPOLATIONS[how])))
    assert source.specs == {
        "data": ArraySpec((3, 48, 64), np.dtype("uint8")),
        "label": ArraySpec((), np.dtype("int64")),
    }


def test_a_pfm_file_with_colours_is_gray_if_gray_is_asked_for(tmp_path: Path) -> None:
    done, content = cv2.imencode(".pfm", picture(75, 100).astype(np.float32))
    assert done
    source = opened(write_list(tmp_path, {"a.pfm": bytes(content)}), max_height=100, is_color=False)
    expected = cv2.cvtColor(decoded(bytes(content)), cv2.COLOR_BGR2GRAY)
    np.testing.assert_array_equal(samples(source)["data"][0][0], expected)


def test_the_shorter_side_is_resized_and_the_other_keeps_the_ratio(two_photographs: Path) -> None:
    source = opened(two_photographs, shorter_side=20)
    assert source.specs["data"] == ArraySpec((3, 80, 80), np.dtype("uint8"), varies=True)
    wide, high = samples(source)["data"]
    assert (wide.shape, high.shape) == ((3, 20, 27), (3, 25, 20))
    np.testing.assert_array_equal(high, planes(resized(noise(50, 40), 25, 20)))


@settings(max_examples=40)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    is_color=st.booleans(),
    suffix=st.sampled_from([".png", ".jpg"]),
)
def test_images_of_any_size_land_whole_in_their_row(
    tmp_path_factory: pytest.TempPathFactory,
    size: tuple[int, int],
    target: tuple[int, int],
    is_color: bool,
    suffix: str,
) -> None:
    content = encoded(noise(*size), suffix)
    path = write_list(tmp_path_factory.getbasetemp(), {f"any{suffix}": content})
    source = opened(path, new_height=target[0], new_width=target[1], is_color=is_color, dct_scaling=False)
    whole = decoded(content, cv2.IMREAD_COLOR if is_color else cv2.IMREAD_GRAYSCALE)
    expected = whole if size == target else resized(whole, *target)
    np.testing.assert_array_equal(samples(source)["data"][0], planes(expected))


def test_cmyk_jpegs_are_read_as_opencv_reads_them(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 4), np.uint8)
    content = simplejpeg.encode_jpeg(pixels, colorspace="CMYK")
    source = opened(write_list(tmp_path, {"a.jpg": content}), max_height=32)
    np.testing.assert_array_equal(samples(source)["data"][0], planes(decoded(content)))


def test_without_simplejpeg_the_bytes_are_the_same(two_photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = samples(opened(two_photographs, dct_scaling=False, **SIZE))["data"][0]
    monkeypatch.setattr(image_decode, "simplejpeg", None)
    np.testing.assert_array_equal(samples(opened(two_photographs, **SIZE))["data"][0], with_it)


def test_jpegs_of_unusual_subsampling_are_left_to_opencv(tmp_path: Path) -> None:
    content = simplejpeg.encode_jpeg(picture(64, 64), colorspace="BGR", colorsubsampling="444")
    frame = content.index(b"\xff\xc0")
    first = frame + 11  # the first component's sampling factors: 3×1 has no name in libjpeg-turbo
    odd = content[:first] + b"\x31" + content[first + 1 :]
    with pytest.raises((KeyError, ValueError)):
        simplejpeg.decode_jpeg_header(odd, strict=False)
    source = opened(write_list(tmp_path, {"a.jpg": odd}), max_height=64)
    np.testing.assert_array_equal(samples(source)["data"][0], planes(decoded(odd)))
