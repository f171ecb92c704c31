"""Image lists: what is read equals what OpenCV makes of the files, at any size and turned upright; damage is named."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from blobfeed.sources.images import ImageListOptions
from blobfeed.sources.images import decode as image_decode
from blobfeed.sources.images.decode import ImageDecoder, reduction
from blobfeed.workers.base import read_whole
from blobfeed.workers.transport import keep_freed_memory
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import ArraySpec, SampleError
from tests.sources.images.reading import SIZE, opened, planes, resized, samples
from tests.support.part import examples
from tests.support.pictures import decoded, encoded, noise, photograph, picture, with_orientation, write_list

COLORS: dict[str, dict[str, Any]] = {"bgr": {"color": "bgr"}, "rgb": {}, "gray": {"is_color": False}}
INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}
LARGEST = {"max_height": 1600, "max_width": 1600}


@pytest.fixture
def two_photographs(tmp_path: Path) -> Path:
    return write_list(
        tmp_path, {"china.jpg": encoded(picture(96, 128)), "a flower.png": encoded(noise(50, 40), ".png")}
    )


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


# ---- sizes and orientation


@given(size=st.tuples(st.integers(1, 5000), st.integers(1, 5000)), target=st.tuples(st.integers(1, 600), st.just(224)))
def test_the_reduction_is_the_largest_that_still_covers_the_target(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    def covers(by: int) -> bool:
        return all(-(-have // by) >= want for have, want in zip(size, target, strict=True))

    by = reduction(size, target)
    assert by in (1, 2, 4, 8)
    assert by == 1 or covers(by)
    assert by == 8 or not covers(2 * by)


def test_large_jpegs_are_decoded_at_a_reduced_size(tmp_path: Path) -> None:
    content = encoded(photograph())
    path = write_list(tmp_path, {"a.jpg": content})
    reduced = samples(opened(path, color="bgr", new_height=100, new_width=150))["data"][0]
    quarter = decoded(content, cv2.IMREAD_REDUCED_COLOR_4)
    np.testing.assert_array_equal(reduced, planes(resized(quarter, 100, 150)))
    full = samples(opened(path, color="bgr", new_height=100, new_width=150, dct_scaling=False))["data"][0]
    np.testing.assert_array_equal(full, planes(resized(decoded(content), 100, 150)))
    picked = samples(opened(path, color="bgr", new_height=100, new_width=150, interpolation="nearest"))["data"][0]
    np.testing.assert_array_equal(picked, planes(resized(decoded(content), 100, 150, cv2.INTER_NEAREST)))


def test_a_turned_image_is_resized_from_its_full_size(tmp_path: Path) -> None:
    content = with_orientation(encoded(photograph()), 6)
    path = write_list(tmp_path, {"a.jpg": content})
    image = samples(opened(path, exif=True, color="bgr", new_height=300, new_width=200))["data"][0]
    np.testing.assert_array_equal(image, planes(resized(decoded(content, cv2.IMREAD_COLOR), 300, 200)))


@pytest.mark.parametrize("content", [with_orientation(encoded(photograph()), 6), encoded(photograph())])
def test_damage_is_seen_where_images_are_turned(content: bytes, tmp_path: Path) -> None:
    middle = len(content) // 2
    path = write_list(tmp_path, {"a.jpg": content[:middle] + bytes(40) + content[middle + 40 :]})
    with pytest.raises(SampleError) as caught:
        samples(opened(path, exif=True, new_height=300, new_width=200))
    assert caught.value.path.endswith("a.jpg")
    samples(opened(path, exif=True, new_height=300, new_width=200, strict=False))


@given(cut=st.integers(2, 60), tail=st.binary(max_size=40))
def test_a_broken_exif_block_leaves_an_image_or_an_error(cut: int, tail: bytes) -> None:
    jpeg = with_orientation(encoded(picture(8, 8)), 6)
    decoder = ImageDecoder(ImageListOptions(path="list.txt", exif=True, equal_sizes=True))
    with suppress(ValueError):
        image, size = decoder.decode(jpeg[:cut] + tail + jpeg[cut:])
        assert image.shape[:2] == size


# ---- damage


def damaged(path: Path, change: Callable[[bytes], bytes], **options: Any) -> None:
    """Read the list's first image after `change` has been done to its file."""
    file = path.parent / "china.jpg"
    file.write_bytes(change(file.read_bytes()))
    samples(opened(path, check_files=False, **SIZE, **options), [0])


@examples(25)
@given(kept=st.floats(0, 0.999), turbo=st.booleans(), is_color=st.booleans())
def test_a_jpeg_that_ends_early_is_an_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, kept: float, turbo: bool, is_color: bool
) -> None:
    path = write_list(tmp_path_factory.getbasetemp(), {"china.jpg": encoded(picture(60, 80))})
    with pytest.MonkeyPatch.context() as patch:
        if not turbo:
            patch.setattr(image_decode, "simplejpeg", None)
        with pytest.raises(SampleError, match=r"china\.jpg"):
            damaged(path, lambda content: content[: int(kept * len(content))], is_color=is_color)


def test_an_end_is_missed_even_where_a_thumbnail_has_one() -> None:
    # Newer versions of OpenCV see this for themselves, older ones fill up with gray.
    thumbnail = encoded(picture(8, 8))
    segment = b"\xff\xe1" + (len(thumbnail) + 8).to_bytes(2, "big") + b"Thumb\0" + thumbnail
    whole = encoded(picture(60, 80))
    whole = whole[:2] + segment + whole[2:]
    assert not image_decode.ends_early(whole)
    assert not image_decode.ends_early(whole + b"trailing junk")
    assert image_decode.ends_early(whole[:-2])
    assert image_decode.ends_early(whole[: len(segment) + 800])
    assert not image_decode.ends_early(encoded(picture(8, 8), ".png"))


# ---- among processes, and the memory they use


def test_a_source_travels_without_its_buffers_and_reads_the_same_elsewhere(two_photographs: Path) -> None:
    source = opened(two_photographs, **SIZE)
    before = samples(source)
    code = (
        "import pickle, sys, cv2, numpy as np\n"
        "from blobfeed.workers.api import allocate_rows\n"
        "from blobfeed.workers.processes import settle\n"
        "cv2.setNumThreads(3)\n"
        "source = pickle.load(sys.stdin.buffer)\n"
        "settle()\n"
        "rows = allocate_rows(source.specs, 2)\n"
        "source.read(np.arange(2), rows)\n"
        "assert cv2.getNumThreads() == 1, 'a loader shares its cores'\n"
        "assert 'torch' not in sys.modules\n"
        "sys.stdout.buffer.write(rows['data'].tobytes())\n"
    )
    sent = pickle.dumps(source)
    assert len(sent) < 5000
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, input=sent, capture_output=True, timeout=200, check=False, pass_fds=source.descriptors
    )
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == b"".join(np.asarray(image).tobytes() for image in before["data"])
    source.close()
    np.testing.assert_array_equal(samples(source)["data"][0], before["data"][0])


def test_the_trainer_keeps_its_own_opencv_threads(two_photographs: Path) -> None:
    threads = cv2.getNumThreads()
    cv2.setNumThreads(2)
    try:
        samples(opened(two_photographs, **SIZE))
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(threads)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_files_of_any_size_are_read_whole(tmp_path: Path, size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "file").write_bytes(content)
    assert read_whole(os.fsencode(tmp_path / "file")) == content


def test_freed_memory_is_kept_for_the_next_image() -> None:
    code = (
        "import resource\n"
        "import numpy as np\n"
        "from blobfeed.workers.transport import keep_freed_memory\n"
        "assert keep_freed_memory()\n"
        "def work():\n"
        "    for size in [3_000_000, 600_000, 9_000_000] * 10:\n"
        "        np.empty(size, np.uint8).fill(1)\n"
        "work()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "work()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert int(result.stdout) < 500, "126 MB were written to, 30,000 pages if each were fresh"


def test_another_c_library_is_told_of_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    caplog.set_level("INFO")
    assert not keep_freed_memory()
    assert "not glibc" in caplog.text
