"""Image lists: what is read equals what OpenCV makes of the files, and what is wrong is named."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from blobfeed.workers.base.errors import ParameterError, SampleError, SampleTooLargeError, SourceError
from blobfeed.workers.base.source import Source
from blobfeed.workers.base.specs import AnyArray, ArraySpec, RaggedRows, allocate_rows
from blobfeed.workers.processes.malloc import keep_freed_memory
from blobfeed.workers.sources import open_source
from blobfeed.workers.sources.images import decode as image_decode
from blobfeed.workers.sources.images.decode import reduction
from blobfeed.workers.sources.images.exif import orientation
from blobfeed.workers.sources.images.file import announce_files, read_file
from blobfeed.workers.sources.images.list_file import parse_image_list
from blobfeed.workers.sources.images.options import TargetSize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.pictures import decoded, encoded, noise, photograph, picture, with_orientation, write_list

SIZE: dict[str, Any] = {"new_height": 48, "new_width": 64}


def opened(path: Path, tops: tuple[str, ...] | None = None, **options: Any) -> Source:
    return open_source({"image_list": {"path": path.name, **options}}, tops=tops, base_dir=path.parent)


def samples(source: Source, indices: list[int] | None = None) -> dict[str, list[AnyArray]]:
    """The samples, each in its own shape, by name."""
    wanted = np.array(range(len(source)) if indices is None else indices, np.int64)
    rows = allocate_rows(source.specs, len(wanted))
    source.read(wanted, rows)
    return {
        name: [top.get(k) if isinstance(top, RaggedRows) else top[k] for k in range(len(wanted))]
        for name, top in rows.items()
    }


def planes(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image.transpose(2, 0, 1) if image.ndim == 3 else image[np.newaxis]


def resized(image: NDArray[np.uint8], height: int, width: int, how: int = cv2.INTER_LINEAR) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(image, (width, height), interpolation=how), np.uint8)


@pytest.fixture
def two_photographs(tmp_path: Path) -> Path:
    return write_list(
        tmp_path, {"china.jpg": encoded(picture(96, 128)), "a flower.png": encoded(noise(50, 40), ".png")}
    )


# ---- what is read


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


def test_samples_come_in_any_order_and_as_often_as_asked_for(two_photographs: Path) -> None:
    source = opened(two_photographs, **SIZE)
    assert samples(source, [1, 0, 1, 1])["label"] == [1, 0, 1, 1]
    first, other, *rest = samples(source, [1, 0, 1, 1])["data"]
    assert not np.array_equal(first, other)
    assert all(np.array_equal(first, image) for image in rest)


def test_the_shorter_side_is_resized_and_the_other_keeps_the_ratio(two_photographs: Path) -> None:
    source = opened(two_photographs, shorter_side=20)
    assert source.specs["data"] == ArraySpec((3, 80, 80), np.dtype("uint8"), varies=True)
    wide, high = samples(source)["data"]
    assert (wide.shape, high.shape) == ((3, 20, 27), (3, 25, 20))
    np.testing.assert_array_equal(high, planes(resized(noise(50, 40), 25, 20)))


def test_gray_images_are_resized_too(two_photographs: Path) -> None:
    image = samples(opened(two_photographs, is_color=False, **SIZE), [1])["data"][0]
    gray = decoded((two_photographs.parent / "a flower.png").read_bytes(), cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(image, planes(resized(gray, 48, 64)))


@settings(max_examples=40, deadline=None)
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


def test_tops_choose_and_order_what_is_read(two_photographs: Path) -> None:
    assert list(opened(two_photographs, ("label", "data"), **SIZE).specs) == ["label", "data"]
    assert samples(opened(two_photographs, ("label",), **SIZE)) == {"label": [0, 1]}
    with pytest.raises(ParameterError, match=r"unknown top 'labels' \(did you mean 'label'\?\)"):
        opened(two_photographs, ("labels",), **SIZE)


# ---- reduced decoding


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
    reduced = samples(opened(path, new_height=100, new_width=150))["data"][0]
    quarter = decoded(content, cv2.IMREAD_REDUCED_COLOR_4)
    np.testing.assert_array_equal(reduced, planes(resized(quarter, 100, 150)))
    full = samples(opened(path, new_height=100, new_width=150, dct_scaling=False))["data"][0]
    np.testing.assert_array_equal(full, planes(resized(decoded(content), 100, 150)))
    picked = samples(opened(path, new_height=100, new_width=150, interpolation="nearest"))["data"][0]
    np.testing.assert_array_equal(picked, planes(resized(decoded(content), 100, 150, cv2.INTER_NEAREST)))


@given(height=st.integers(1, 3000), width=st.integers(1, 3000), shorter=st.integers(1, 600))
def test_the_shorter_side_gets_its_length_and_the_ratio_stays(height: int, width: int, shorter: int) -> None:
    new_height, new_width = TargetSize(shorter_side=shorter).of(height, width)
    assert min(new_height, new_width) == shorter
    assert abs(new_height - shorter * height / min(height, width)) <= 0.5
    assert abs(new_width - shorter * width / min(height, width)) <= 0.5


# ---- orientation


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_images_are_turned_upright_where_that_is_asked_for(tmp_path: Path, turn: int, order: str) -> None:
    content = with_orientation(encoded(picture(30, 44)), turn, order)
    path = write_list(tmp_path, {"a.jpg": content})
    upright = samples(opened(path, exif=True, max_height=44))["data"][0]
    np.testing.assert_array_equal(upright, planes(decoded(content, cv2.IMREAD_COLOR)))
    as_stored = samples(opened(path, max_height=44))["data"][0]
    np.testing.assert_array_equal(as_stored, planes(decoded(content)))


def test_a_turned_image_is_reduced_by_the_sides_that_it_has_on_disk(tmp_path: Path) -> None:
    content = with_orientation(encoded(photograph()), 6)
    image = samples(opened(write_list(tmp_path, {"a.jpg": content}), exif=True, new_height=300, new_width=200))["data"][
        0
    ]
    half = np.asarray(cv2.rotate(decoded(content, cv2.IMREAD_REDUCED_COLOR_2 | 128), cv2.ROTATE_90_CLOCKWISE))
    np.testing.assert_array_equal(image, planes(resized(half.astype(np.uint8), 300, 200)))


def test_an_orientation_that_makes_no_sense_is_none() -> None:
    jpeg = encoded(picture(8, 8))
    assert orientation(jpeg) == 1
    assert orientation(with_orientation(jpeg, 6)) == 6
    assert orientation(with_orientation(jpeg, 9)) == 1
    assert orientation(with_orientation(jpeg, 6).replace(b"II", b"XX")) == 1


@settings(deadline=None)
@given(cut=st.integers(0, 60), tail=st.binary(max_size=40))
def test_a_broken_exif_block_gives_an_orientation_all_the_same(cut: int, tail: bytes) -> None:
    jpeg = with_orientation(encoded(picture(8, 8)), 6)
    assert 1 <= orientation(jpeg[:cut] + tail) <= 8


# ---- the list


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=8)
paths = st.lists(words, min_size=1, max_size=3).map(" ".join).filter(lambda path: not path.startswith("#"))


@given(
    entries=st.integers(0, 3).flatmap(
        lambda labels: st.lists(
            st.tuples(paths, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=labels, max_size=labels)), min_size=1
        )
    ),
    noise=st.sampled_from(["", "\n", "# a comment 1 2\n", "  \n#\n"]),
    ending=st.sampled_from(["\n", "\r\n", "  \n"]),
    separator=st.sampled_from([" ", "\t", "   "]),
)
def test_what_is_written_into_a_list_is_parsed_from_it(
    entries: list[tuple[str, list[int]]], noise: str, ending: str, separator: str
) -> None:
    labels = len(entries[0][1])
    text = "".join(noise + separator.join([path, *map(str, numbers)]) + ending for path, numbers in entries)
    listed = parse_image_list(text.encode(), "list.txt", labels)
    assert [path.decode() for path in listed.paths] == [path for path, _ in entries]
    assert [listed.paths[k].decode() for k in range(len(listed.paths))] == [path for path, _ in entries]
    assert listed.labels.tolist() == [numbers for _, numbers in entries]
    lines = text.split("\n")
    assert all(path in lines[line - 1] for line, (path, _) in zip(listed.lines, entries, strict=True))


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a.jpg 1\nb c.jpg 2\n", [[1], [2]], ["a.jpg", "b c.jpg"]),
        ("a.jpg 1 2.5\nb.jpg -3 4e2\n", [[1, 2.5], [-3, 400]], ["a.jpg", "b.jpg"]),
        ("a b.jpg\n7.jpg\n", [[], []], ["a b.jpg", "7.jpg"]),
        ("\ufeffa.jpg 0\n", [[0]], ["a.jpg"]),
        ("photo 5 1\na.jpg 2\nb.jpg 3", [[1], [2], [3]], ["photo 5", "a.jpg", "b.jpg"]),
        ("42 7\n", [[7]], ["42"]),
    ],
)
def test_the_number_of_labels_is_seen_from_the_lines(text: str, labels: list[list[float]], expected: list[str]) -> None:
    listed = parse_image_list(text.encode(), "list.txt")
    assert listed.labels.tolist() == labels
    assert [path.decode() for path in listed.paths] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg 1\n\nb.jpg cat\n", "line 3: label 'cat' is not a finite number; expected 1 label after"),
        ("a.jpg 1 2\nb.jpg 1 nan\n", "line 2: label 'nan' is not a finite number"),
        ("a.jpg 1\nb.jpg 1e999\n", "line 2: label '1e999' is not a finite number"),
        ("a.jpg 1\nb.jpg\nc.jpg 2", "line 2: expected a path and 1 label, got 'b.jpg'"),
        ("# nothing\n\n", "lists no images"),
        ("", "lists no images"),
    ],
)
def test_an_impossible_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(SourceError, match=message) as raised:
        opened(tmp_path / "train.txt", **SIZE)
    assert str(tmp_path / "train.txt") in str(raised.value)


@pytest.mark.parametrize(
    ("labels", "options", "dtype", "shape"),
    [
        ("{position}", {}, "int64", ()),
        ("{position}.5", {}, "float32", ()),
        ("{position}", {"label_dtype": "float32"}, "float32", ()),
        ("{position}.0", {"label_dtype": "int64"}, "int64", ()),
        ("{position} 7", {}, "int64", (2,)),
        ("x {position}", {"labels": 1}, "int64", ()),
    ],
)
def test_labels_have_the_type_and_shape_that_they_are_written_in(
    tmp_path: Path, labels: str, options: dict[str, Any], dtype: str, shape: tuple[int, ...]
) -> None:
    path = write_list(tmp_path, {"a.png": encoded(noise(4, 4), ".png")}, labels)
    assert opened(path, check_files=False, **SIZE, **options).specs["label"] == ArraySpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("label", "dtype"), [("16777217", "float32"), ("0.5", "int64"), ("1e39", "float32"), ("1e30", "int64")]
)
def test_a_label_that_its_type_cannot_hold_is_an_error(tmp_path: Path, label: str, dtype: str) -> None:
    path = write_list(tmp_path, {"a.png": encoded(noise(4, 4), ".png")}, label)
    with pytest.raises(SourceError, match=rf"line 1: label .* cannot be held by {dtype}"):
        opened(path, label_dtype=dtype, **SIZE)


def test_a_list_without_labels_has_no_label_top(tmp_path: Path) -> None:
    path = write_list(tmp_path, {"a.png": encoded(noise(4, 4), ".png")}, "")
    assert list(opened(path, **SIZE).specs) == ["data"]
    with pytest.raises(ParameterError, match="its lines have no labels"):
        opened(path, ("data", "label"), **SIZE)


def test_root_folder_goes_before_every_path_as_in_caffe(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(encoded(noise(4, 4), ".png"))
    (tmp_path / "list.txt").write_text("/a.png 1\na.png 2\n")
    source = opened(tmp_path / "list.txt", root_folder="images", **SIZE)
    first, second = samples(source)["data"]
    np.testing.assert_array_equal(first, second)


def test_a_path_need_not_be_text(tmp_path: Path) -> None:
    name = b"caf\xe9.png"
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(encoded(noise(4, 4), ".png"))
    (tmp_path / "list.txt").write_bytes(name + b" 1\n")
    assert samples(opened(tmp_path / "list.txt", **SIZE))["label"] == [1]


# ---- what is wrong before training


def test_a_list_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.txt cannot be read: No such file"):
        opened(tmp_path / "none.txt", **SIZE)


def test_missing_images_are_named_by_line_and_path(two_photographs: Path) -> None:
    with two_photographs.open("a") as file:
        file.write("\nnone.jpg 3\nneither.jpg 4\n")
    with pytest.raises(SourceError, match=r"list\.txt line 4: .*none\.jpg is no image: no such file.* \(1 more of 4"):
        opened(two_photographs, **SIZE)
    source = opened(two_photographs, check_files=False, **SIZE)
    with pytest.raises(SampleError, match=r"line 5: .*neither\.jpg cannot be read: .*No such file") as raised:
        samples(source, [0, 3])
    assert (raised.value.index, Path(raised.value.path).name) == (3, "neither.jpg")
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_empty_files_and_folders_are_no_images(two_photographs: Path) -> None:
    (two_photographs.parent / "china.jpg").write_bytes(b"")
    with pytest.raises(SourceError, match=r"china\.jpg is no image: an empty file"):
        opened(two_photographs, **SIZE)
    (two_photographs.parent / "china.jpg").unlink()
    (two_photographs.parent / "china.jpg").mkdir()
    with pytest.raises(SourceError, match=r"china\.jpg is no image: not a file"):
        opened(two_photographs, **SIZE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give max_height and max_width .* new_height and new_width or shorter_side"),
        ({"new_height": 10}, "new_height is 10 and new_width 0: give both"),
        ({"new_height": 10, "new_width": 10, "shorter_side": 5}, "exclude each other"),
        ({"new_hight": 10}, r"unknown parameter 'new_hight' \(did you mean 'new_height'\?\)"),
        ({"color": "hsv", **SIZE}, "'color' is 'hsv'"),
    ],
)
def test_options_that_cannot_be_are_refused(two_photographs: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        opened(two_photographs, **options)


def test_a_larger_image_than_declared_is_named(two_photographs: Path) -> None:
    source = opened(two_photographs, max_height=60)
    with pytest.raises(SampleTooLargeError, match=r"line 1: .*china\.jpg: .*\(3, 96, 128\).*\(3, 60, 60\).*max_height"):
        samples(source)


# ---- damaged files


def damaged(path: Path, change: Callable[[bytes], bytes], **options: Any) -> None:
    """Read the list's first image after `change` has been done to its file."""
    file = path.parent / "china.jpg"
    file.write_bytes(change(file.read_bytes()))
    samples(opened(path, check_files=False, **SIZE, **options), [0])


@settings(max_examples=25, deadline=None)
@given(kept=st.floats(0, 0.999), turbo=st.booleans(), is_color=st.booleans())
def test_a_jpeg_that_ends_early_is_an_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, kept: float, turbo: bool, is_color: bool
) -> None:
    path = write_list(tmp_path_factory.getbasetemp(), {"china.jpg": encoded(picture(60, 80))})
    with pytest.MonkeyPatch.context() as patch:
        if not turbo:
            patch.setattr(image_decode, "simplejpeg", None)
        with pytest.raises(SampleError, match=r"image .*china\.jpg cannot be read: "):
            damaged(path, lambda content: content[: int(kept * len(content))], is_color=is_color)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".webp"])
def test_other_formats_that_end_early_are_errors_too(tmp_path: Path, suffix: str) -> None:
    content = encoded(picture(60, 80), suffix)
    source = opened(write_list(tmp_path, {f"a{suffix}": content[: len(content) * 2 // 3]}), **SIZE)
    with pytest.raises(SampleError, match=r"line 1: .* cannot be read: it is truncated, damaged, or in no format"):
        samples(source)


def test_a_damaged_jpeg_is_an_error_unless_strict_is_false(two_photographs: Path) -> None:
    def overwrite(content: bytes) -> bytes:
        return content[: len(content) // 2] + b"\xff\xd3" * 20 + content[len(content) // 2 + 40 :]

    with pytest.raises(SampleError, match=r"the JPEG is damaged: .* \(strict: false decodes what is left of it\)"):
        damaged(two_photographs, overwrite)
    damaged(two_photographs, lambda content: content, strict=False)


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


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"text", b"\x89PNG\r\n\x1a\n", bytes(1000)])
def test_what_is_no_image_is_an_error_that_names_the_file(two_photographs: Path, content: bytes) -> None:
    with pytest.raises(SampleError, match=r"list\.txt line 1: .*china\.jpg cannot be read: "):
        damaged(two_photographs, lambda _: content)


def test_a_header_that_asks_for_gigabytes_is_an_error(two_photographs: Path) -> None:
    def huge(content: bytes) -> bytes:
        at = content.index(b"\xff\xc0") + 5  # the height in the frame header, the width behind it
        return content[:at] + b"\xff\xf0\xff\xf0" + content[at + 4 :]

    with pytest.raises(SampleError, match="cannot be read"):
        damaged(two_photographs, huge)


# ---- life among processes


def test_a_source_travels_without_its_buffers_and_reads_the_same_elsewhere(two_photographs: Path) -> None:
    source = opened(two_photographs, **SIZE)
    before = samples(source)
    code = (
        "import pickle, sys, cv2, numpy as np\n"
        "from blobfeed.workers.base.specs import allocate_rows\n"
        "cv2.setNumThreads(3)\n"
        "source = pickle.load(sys.stdin.buffer)\n"
        "rows = allocate_rows(source.specs, 2)\n"
        "source.read(np.arange(2), rows)\n"
        "assert cv2.getNumThreads() == 1, 'a loader shares its cores'\n"
        "assert 'torch' not in sys.modules\n"
        "sys.stdout.buffer.write(rows['data'].tobytes())\n"
    )
    sent = pickle.dumps(source)
    assert len(sent) < 5000
    result = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, timeout=60, check=False)
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


def test_the_fingerprint_follows_what_read_would_give(two_photographs: Path) -> None:
    first = opened(two_photographs, **SIZE).fingerprint()
    assert opened(two_photographs, **SIZE).fingerprint() == first
    assert pickle.loads(pickle.dumps(opened(two_photographs, **SIZE))).fingerprint() == first
    others = {opened(two_photographs, color="rgb", **SIZE).fingerprint()}
    image = two_photographs.parent / "china.jpg"
    os.utime(image, ns=(0, 1))
    others.add(opened(two_photographs, **SIZE).fingerprint())
    image.write_bytes(image.read_bytes() + b"\0")
    os.utime(image, ns=(0, 1))
    others.add(opened(two_photographs, **SIZE).fingerprint())
    two_photographs.write_text(two_photographs.read_text().replace("0", "5"))
    others.add(opened(two_photographs, **SIZE).fingerprint())
    assert len(others | {first}) == 5


def test_images_can_be_announced_before_they_are_read(two_photographs: Path) -> None:
    opened(two_photographs, **SIZE).will_need(np.array([1, 0, 1]))
    announce_files([os.fsencode(two_photographs), b"/no/such/file"])
    announce_files([])


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_files_of_any_size_are_read_whole(tmp_path: Path, size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "file").write_bytes(content)
    assert read_file(os.fsencode(tmp_path / "file")) == content


def test_freed_memory_is_kept_for_the_next_image() -> None:
    code = (
        "import resource\n"
        "import numpy as np\n"
        "from blobfeed.workers.processes.malloc import keep_freed_memory\n"
        "assert keep_freed_memory()\n"
        "def work():\n"
        "    for size in [3_000_000, 600_000, 9_000_000] * 10:\n"
        "        np.empty(size, np.uint8).fill(1)\n"
        "work()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "work()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert int(result.stdout) < 500, "126 MB were written to, 30,000 pages if each were fresh"


def test_another_c_library_is_told_of_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "confstr", lambda _: None)
    caplog.set_level("INFO")
    assert not keep_freed_memory()
    assert "not glibc" in caplog.text
