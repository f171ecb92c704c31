"""A crop is decoded alone: the same pixels, and the same damage is found, as in the whole picture."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from blobfeed.sources.images import ImageListOptions
from blobfeed.sources.images import decode as image_decode
from blobfeed.workers.api import AnyArray, Needed
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BatchReader
from tests.support.part import examples
from tests.support.pictures import encoded, noise, picture, write_list

decode_part: Any = pytest.importorskip(
    "blobfeed.sources.images._crop", reason="no compiler was there, or no libjpeg-turbo"
).decode_part

_SUBSAMPLINGS = st.sampled_from([0x411111, 0x221111, 0x211111, 0x121111, 0x111111])


def _jpeg(image: AnyArray, *how: int) -> bytes:
    return bytes(cv2.imencode(".jpg", image, how)[1])


@st.composite
def _jpegs(draw: st.DrawFn) -> bytes:
    height, width = draw(st.integers(1, 120)), draw(st.integers(1, 120))
    image = cv2.resize(noise(height // 4 + 1, width // 4 + 1), (width, height))
    how = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, draw(_SUBSAMPLINGS), cv2.IMWRITE_JPEG_QUALITY, draw(st.integers(20, 100))]
    how += [cv2.IMWRITE_JPEG_PROGRESSIVE, draw(st.integers(0, 1))]
    how += [cv2.IMWRITE_JPEG_RST_INTERVAL, draw(st.sampled_from([0, 1, 3, 50]))]
    return _jpeg(image[..., 0] if draw(st.booleans()) else image, *how)


@st.composite
def _parts(draw: st.DrawFn, size: tuple[int, int]) -> tuple[int, int, int, int]:
    (top, height), (left, width) = (
        (begin := draw(st.integers(0, all_ - 1)), draw(st.integers(1, all_ - begin))) for all_ in size
    )
    return top, left, height, width


@examples(300)
@given(st.data(), _jpegs(), st.sampled_from([1, 1, 2, 4, 8]), st.booleans())
def test_the_pixels_are_those_of_the_whole_picture(data: st.DataObject, jpeg: bytes, by: int, is_color: bool) -> None:
    height, width = (-(-length // by) for length in simplejpeg.decode_jpeg_header(jpeg)[:2])
    least = {"min_height": height, "min_width": width} if by > 1 else {}
    whole = simplejpeg.decode_jpeg(jpeg, "BGR" if is_color else "GRAY", **least)
    top, left, *size = part = data.draw(_parts((height, width)))
    around = np.full((height + 20, width, 3 if is_color else 1), 7, np.uint8)
    if by > 1 and max(simplejpeg.decode_jpeg_header(jpeg)[:2]) < 16:  # simplejpeg may take a scale between
        return
    assert decode_part(jpeg, around[10:-10], by, part)
    here = slice(top, top + size[0]), slice(left, left + size[1])
    np.testing.assert_array_equal(around[10:-10][here], whole[here])
    assert (around[:10] == 7).all()
    assert (around[-10:] == 7).all()


def _damaged(jpegs: list[bytes], count: int) -> list[bytes]:
    rng = random.Random(1)
    found = []
    for number in range(count):
        jpeg = bytearray(jpegs[number % len(jpegs)])
        begin = rng.randrange(2 if number % 5 == 0 else len(jpeg) // 4, len(jpeg) - 40)
        if number % 2:
            del jpeg[begin:]
        else:
            jpeg[begin : begin + 20] = rng.randbytes(20)
        found.append(bytes(jpeg))
    return found


def _decoder(strict: bool) -> image_decode.ImageDecoder:
    return image_decode.ImageDecoder(ImageListOptions(path="list.txt", equal_sizes=True, strict=strict))


def _seen(decoder: image_decode.ImageDecoder, jpeg: bytes, needed: Needed) -> bytes | str:
    try:
        image, _ = decoder.decode(jpeg, lambda _size: needed)
    except ValueError as error:
        return str(error)
    top, left, height, width = needed.part
    return image[top : top + height, left : left + width].tobytes()


@pytest.mark.parametrize("strict", [True, False])
def test_the_same_damaged_files_are_named(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    jpegs = [encoded(picture(90 + 7 * number, 120)) for number in range(6)]
    jpegs += [
        _jpeg(picture(90, 120), cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        _jpeg(picture(90, 120), cv2.IMWRITE_JPEG_RST_INTERVAL, 2),
    ]
    rng = random.Random(2)
    needs = [Needed((90, 120), (rng.randrange(40), rng.randrange(60), 50, 60)) for _ in range(300)]
    files = _damaged(jpegs, 300)
    decoder = _decoder(strict)  # one for all of them: no picture shows pixels of an earlier one
    ours = [_seen(decoder, *each) for each in zip(files, needs, strict=True)]
    monkeypatch.setattr(image_decode, "decode_part", None)
    assert ours == [_seen(_decoder(strict), *each) for each in zip(files, needs, strict=True)]
    named = sum(isinstance(each, str) for each in ours)
    assert named > 200 if strict else named < 200


@examples(300)
@given(st.data(), _jpegs(), st.integers(1, 20))
def test_no_file_writes_beside_its_memory(data: st.DataObject, jpeg: bytes, changes: int) -> None:
    height, width = simplejpeg.decode_jpeg_header(jpeg)[:2]
    spoilt = bytearray(jpeg)
    for _ in range(changes):
        spoilt[data.draw(st.integers(2, len(jpeg) - 1))] = data.draw(st.integers(0, 255))
    around = np.full((height + 20, width, 3), 7, np.uint8)
    decode_part(
        bytes(spoilt), around[10:-10], data.draw(st.sampled_from([1, 2, 8])), data.draw(_parts((height, width)))
    )
    assert (around[:10] == 7).all()
    assert (around[-10:] == 7).all()


@pytest.mark.parametrize(
    ("out", "part"),
    [
        (np.zeros((60, 80), np.uint8), (0, 0, 1, 1)),
        (np.zeros((60, 80, 2), np.uint8), (0, 0, 1, 1)),
        (np.zeros((60, 80, 3), np.uint16), (0, 0, 1, 1)),
        (np.zeros((60, 80, 3), np.uint8), (0, 0, 61, 1)),
        (np.zeros((60, 80, 3), np.uint8), (1, 1, 1, 80)),
        (np.zeros((60, 80, 3), np.uint8), (0, 2**32 - 1, 1, 2)),
        (np.zeros((60, 80, 3), np.uint8), (0, 0, 0, 1)),
    ],
)
def test_memory_and_parts_that_do_not_fit_are_refused(out: AnyArray, part: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a part of them"):
        decode_part(encoded(picture(60, 80)), out, 1, part)


@pytest.mark.parametrize("by", [0, 1, 3, 2**32 - 1])
def test_a_picture_of_another_size_is_not_decoded(by: int) -> None:
    assert not decode_part(encoded(picture(60, 80)), np.zeros((61, 80, 3), np.uint8), by, (0, 0, 9, 9))


@pytest.mark.parametrize("transform", [{"crop_size": 40}, {"random_resized_crop": 40}], ids=str)
@pytest.mark.parametrize("how", [{}, {"is_color": False}, {"color": "bgr"}, {"train": False}], ids=str)
def test_a_reader_decodes_crops_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, transform: dict[str, Any], how: dict[str, Any]
) -> None:
    files = {f"{number}.jpg": encoded(picture(90 + 9 * number, 140)) for number in range(6)}
    path = write_list(tmp_path, {**files, "6.png": encoded(picture(60, 80), ".png")})
    options = {name: value for name, value in how.items() if name != "train"}
    source = {"image_list": {"path": str(path), "root_folder": str(tmp_path), **options}}

    def read() -> list[bytes]:
        kept: Any = {"transform": {**transform, "mirror": True}, "train": how.get("train", True)}
        with BatchReader(source, batch_size=7, epochs=2, num_loaders=0, **kept) as reader:
            return [batch["data"].tobytes() for batch in reader]

    with monkeypatch.context() as patch:
        patch.setattr(image_decode, "decode_part", None)
        whole = read()
    monkeypatch.delattr(simplejpeg, "decode_jpeg")
    assert read() == whole
