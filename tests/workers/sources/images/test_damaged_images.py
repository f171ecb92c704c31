"""Image lists: what is wrong with the list, the options or a file is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blobfeed.workers.base.errors import ParameterError, SampleError, SampleTooLargeError, SourceError
from blobfeed.workers.sources.images import decode as image_decode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pictures import encoded, picture, write_list
from tests.workers.sources.images.reading import SIZE, opened, samples


def test_a_list_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.txt cannot be read: No such file"):
        opened(tmp_path / "none.txt", **SIZE)


def test_missing_images_are_named_by_line_and_path(two_photographs: Path) -> None:
    with two_photographs.open("a") as file:
        file.write("\nnone.jpg 3\nneither.jpg 4\n")
    with pytest.raises(
        SourceError, match=r"list\.txt line 4: .*none\.jpg is no image: no such file.* \(1 more of the first 100, too"
    ):
        opened(two_photographs, **SIZE)
    source = opened(two_photographs, check_files=False, **SIZE)
    with pytest.raises(SampleError, match=r"line 5: .*neither\.jpg cannot be read: .*No such file") as raised:
        samples(source, [0, 3])
    assert (raised.value.index, Path(raised.value.path).name) == (3, "neither.jpg")
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_the_name_of_a_class_is_no_label(two_photographs: Path) -> None:
    two_photographs.write_text("china.jpg cat\nflower.jpg dog\n")
    with pytest.raises(SourceError, match=r"list\.txt line 1: the label of china\.jpg is 'cat': expected a number"):
        opened(two_photographs, **SIZE)
    two_photographs.write_text("china.jpg 0\n")
    with pytest.raises(SourceError, match=r"the label of china\.jpg is '0': expected none, by labels: 0"):
        opened(two_photographs, labels=0, **SIZE)


def test_an_empty_list_is_not_asked_for_sizes(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("")
    with pytest.raises(SourceError, match="lists no images"):
        opened(tmp_path / "list.txt")


def test_an_image_behind_the_first_hundred_is_looked_at_when_it_is_read(two_photographs: Path) -> None:
    lines = ["china.jpg 0"] * 100 + ["", "none.jpg 3"]
    two_photographs.write_text("\n".join(lines))
    source = opened(two_photographs, **SIZE)
    assert samples(source, [99])["label"] == [0]
    with pytest.raises(SampleError, match=r"line 102: .*none\.jpg cannot be read: .*No such file"):
        samples(source, [100])


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
        ({"equal_sizes": True, "max_height": 4}, "equal_sizes takes the size of the first image"),
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


def damaged(path: Path, change: Callable[[bytes], bytes], **options: Any) -> None:
    """Read the list's first image after `change` has been done to its file."""
    file = path.parent / "china.jpg"
    file.write_bytes(change(file.read_bytes()))
    samples(opened(path, check_files=False, **SIZE, **options), [0])


@settings(max_examples=25)
@given(kept=st.floats(0, 0.999), turbo=st.booleans(), is_color=st.booleans())
def test_a_jpeg_that_ends_early_is_an_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, kept: float, turbo: bool, is_color: bool
) -> None:
    path = write_list(tmp_path_factory.getbasetemp(), {"china.jpg": encoded(picture(60, 80))})
    with pytest.MonkeyPatch.context() as patch:
        if not turbo:
            patch.setattr(image_decode, "simplejpeg", None)
        with pytest.raises(SampleError, match=r"source image_list: .*china\.jpg cannot be read: "):
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
