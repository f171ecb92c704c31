"""Image lists: what is wrong with the list, the options or a file is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blobfeed.sources.images import decode as image_decode
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import SampleError
from tests.sources.images.reading import SIZE, opened, samples
from tests.support.part import examples
from tests.support.pictures import encoded, picture, write_list


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
