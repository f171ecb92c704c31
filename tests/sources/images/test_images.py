"""Image lists: what is read equals what OpenCV makes of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from blobfeed.sources.images import decode as image_decode
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import ArraySpec
from tests.sources.images.reading import SIZE, opened, planes, resized, samples
from tests.support.part import examples
from tests.support.pictures import decoded, encoded, noise, picture, with_orientation, write_list

COLORS: dict[str, dict[str, Any]] = {"bgr": {"color": "bgr"}, "rgb": {}, "gray": {"is_color": False}}
INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}
LARGEST = {"max_height": 1600, "max_width": 1600}


@examples(200)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    suffix=st.sampled_from([".jpg", ".png", ".bmp", ".tiff", ".ppm", ".webp"]),
    color=st.sampled_from(list(COLORS)),
    sides=st.sampled_from([(), (1,), (1, 1)]).flatmap(lambda sides: st.tuples(*(st.integers(1, 40) for _ in sides))),
    how=st.sampled_from(list(INTERPOLATIONS)),
    turn=st.none() | st.tuples(st.integers(1, 8), st.sampled_from("<>")),
    exif=st.booleans(),
)
def test_pictures_are_those_that_opencv_makes(
    tmp_path_factory: pytest.TempPathFactory,
    size: tuple[int, int],
    suffix: str,
    color: str,
    sides: tuple[int, ...],
    how: str,
    turn: tuple[int, str] | None,
    exif: bool,
) -> None:
    content = encoded(noise(*size), suffix)
    if turn and suffix == ".jpg":
        content = with_orientation(content, *turn)
    path = write_list(tmp_path_factory.getbasetemp(), {f"any{suffix}": content})
    flags = cv2.IMREAD_GRAYSCALE if color == "gray" else cv2.IMREAD_COLOR
    whole = decoded(content, flags | (0 if exif else cv2.IMREAD_IGNORE_ORIENTATION))
    height, width = whole.shape[:2]
    options: dict[str, Any] = {"interpolation": how, "exif": exif, "dct_scaling": how == "nearest", **COLORS[color]}
    target: tuple[int, ...] = (height, width)
    match sides:
        case ():
            options |= LARGEST
        case (shorter,):
            target = tuple(max(1, round(side * (shorter / min(height, width)))) for side in (height, width))
            options |= {"shorter_side": shorter, **LARGEST}
        case _:
            target = sides
            options |= {"new_height": sides[0], "new_width": sides[1]}
    source = opened(path, **options)
    channels = 1 if color == "gray" else 3
    largest = target if len(sides) == 2 else (1600, 1600)
    assert source.specs["data"] == ArraySpec((channels, *largest), np.dtype("uint8"), varies=len(sides) < 2)
    expected = planes(whole if target == (height, width) else resized(whole, target[0], target[1], INTERPOLATIONS[how]))
    np.testing.assert_array_equal(samples(source)["data"][0], expected[::-1] if color == "rgb" else expected)


def test_a_pfm_file_with_colours_is_gray_if_gray_is_asked_for(tmp_path: Path) -> None:
    done, content = cv2.imencode(".pfm", picture(75, 100).astype(np.float32))
    assert done
    source = opened(write_list(tmp_path, {"a.pfm": bytes(content)}), max_height=100, is_color=False)
    expected = cv2.cvtColor(decoded(bytes(content)), cv2.COLOR_BGR2GRAY)
    np.testing.assert_array_equal(samples(source)["data"][0][0], expected)


def test_cmyk_jpegs_are_read_as_opencv_reads_them(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 4), np.uint8)
    content = simplejpeg.encode_jpeg(pixels, colorspace="CMYK")
    source = opened(write_list(tmp_path, {"a.jpg": content}), max_height=32, color="bgr")
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
    source = opened(write_list(tmp_path, {"a.jpg": odd}), max_height=64, color="bgr")
    np.testing.assert_array_equal(samples(source)["data"][0], planes(decoded(odd)))
