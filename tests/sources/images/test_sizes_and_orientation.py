"""Images decoded at a reduced size, resized by their shorter side, and turned upright."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from blobfeed.sources.images import ImageListOptions
from blobfeed.sources.images.decode import ImageDecoder, reduction
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import SampleError
from tests.sources.images.reading import opened, planes, resized, samples
from tests.support.pictures import decoded, encoded, photograph, picture, with_orientation, write_list


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
