"""Crop, mirror and colour against the same done pixel by pixel."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from blobfeed.workers.api import Rows, Transform
from blobfeed.workers.loading import Crop, CropMirror, transform
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from blobfeed import ArraySpec, RaggedRows, SampleShapeError, SampleTooLargeError
from tests.support.part import examples

DTYPES = ["uint8", "int16", "uint16", "int64", "float32", "float64"]

LAYOUTS = ["planes", "pixels", "reversed pixels"]


def image(
    channels: int, height: int, width: int, dtype: str = "uint8", seed: int = 0, lies: str = "planes"
) -> NDArray[Any]:
    """`lies`: in memory as planes, or as pixels whose channels are neighbours, in this order or the other way round."""
    planes = np.random.default_rng(seed).integers(0, 256, (channels, height, width)).astype(dtype)
    if lies == "planes":
        return planes
    order = slice(None, None, -1 if lies == "reversed pixels" else 1)
    return np.ascontiguousarray(planes[order].transpose(1, 2, 0))[:, :, order].transpose(2, 0, 1)


def put(crop_mirror: CropMirror, sample: NDArray[Any], rows: Rows, row: int, seed: int = 0) -> None:
    crop_mirror.put(sample, rows, row, crop_mirror.draw(sample.shape, np.random.default_rng(seed)))


def transformed(crop_mirror: CropMirror, sample: NDArray[Any], seed: int = 0) -> NDArray[Any]:
    out = np.zeros(crop_mirror.output_shape(sample.shape), sample.dtype)
    put(crop_mirror, sample, out[np.newaxis], 0, seed)
    return out


def gray_of(pixel: list[float], dtype: np.dtype[Any]) -> float:
    blue, green, red = pixel
    if dtype == np.uint8:
        return int(cv2.cvtColor(np.array([[[blue, green, red]]], np.uint8), cv2.COLOR_BGR2GRAY).reshape(()))
    # In single precision as soon as the type leaves that open: a half that is missed there is rounded the other way.
    real = np.result_type(dtype, np.float32).type
    gray = float(real(0.114) * real(blue) + real(0.587) * real(green) + real(0.299) * real(red))
    return gray if dtype.kind == "f" else round(gray)


def naive(sample: NDArray[Any], options: Transform, crop: Crop) -> NDArray[Any]:
    """The transform, one pixel after the other: first the colour, then crop and mirror."""
    channels, height, width = sample.shape
    colored = sample
    if options.force_color and channels == 1:
        colored = np.concatenate([sample] * 3)
    elif options.force_gray and channels == 3:
        pixels = sample.reshape(3, -1).T.tolist()
        colored = np.array([gray_of(pixel, sample.dtype) for pixel in pixels]).reshape(1, height, width)
    asked = options.crop_size
    crop_height, crop_width = (asked, asked) if isinstance(asked, int) else asked
    size = (crop_height or height, crop_width or width)
    out = np.zeros((len(colored), *size), sample.dtype)
    top, left = crop.corner
    for c, y, x in np.ndindex(out.shape):
        out[c, y, size[1] - 1 - x if crop.mirrored else x] = colored[c, top + y, left + x]
    return out


options_of = st.builds(
    Transform,
    crop_size=st.integers(0, 8) | st.tuples(st.integers(1, 8), st.integers(1, 8)),
    mirror=st.booleans(),
    force_color=st.booleans(),
    force_gray=st.booleans(),
).filter(lambda options: not (options.force_color and options.force_gray))


@examples(150)
@given(
    options=options_of,
    train=st.booleans(),
    channels=st.sampled_from([1, 3]),
    height=st.integers(8, 12),
    width=st.integers(8, 12),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
    lies=st.sampled_from(LAYOUTS),
    has_opencv=st.booleans(),
)
def test_every_transform_equals_the_same_pixel_by_pixel(
    options: Transform,
    train: bool,
    channels: int,
    height: int,
    width: int,
    dtype: str,
    seed: int,
    lies: str,
    has_opencv: bool,
) -> None:
    sample = image(channels, height, width, dtype, seed, lies)
    crop_mirror = CropMirror(options, train=train)
    crop = crop_mirror.draw(sample.shape, np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        if not has_opencv:
            patch.setattr(transform, "_opencv", lambda: None)
        result = transformed(crop_mirror, sample, seed)
    np.testing.assert_allclose(result, naive(sample, options, crop), rtol=1e-6 if result.dtype.kind == "f" else 0)
    spec = crop_mirror.output_spec(ArraySpec(sample.shape, sample.dtype))
    assert spec == ArraySpec(result.shape, result.dtype)


@given(st.integers(1, 9), st.integers(9, 20), st.integers(9, 20), st.booleans(), st.integers(0, 2**32))
def test_a_test_crop_is_centred_and_never_mirrored(size: int, height: int, width: int, mirror: bool, seed: int) -> None:
    crop_mirror = CropMirror(Transform(crop_size=size, mirror=mirror), train=False)
    rng = np.random.default_rng(seed)
    before = rng.bit_generator.state
    centre = (height - size) // 2, (width - size) // 2
    assert crop_mirror.draw((3, height, width), rng) == Crop(centre, mirrored=False)
    assert rng.bit_generator.state == before, "nothing is drawn in TEST"


def test_train_crops_reach_every_place_alike_and_mirror_half_of_them() -> None:
    crop_mirror = CropMirror(Transform(crop_size=8, mirror=True), train=True)
    rng = np.random.default_rng(0)
    drawn = [crop_mirror.draw((3, 10, 11), rng) for _ in range(12_000)]
    counts = np.zeros((3, 4, 2), int)
    for crop in drawn:
        counts[*crop.corner, int(crop.mirrored)] += 1
    assert abs(counts - 500).max() < 110, "24 kinds of crop, 500 of each: five standard deviations"


def test_a_sample_is_cropped_in_the_same_place_with_mirroring_and_without() -> None:
    plain = CropMirror(Transform(crop_size=8), train=True)
    mirrored = CropMirror(Transform(crop_size=8, mirror=True), train=True)
    for seed in range(50):
        one, other = (both.draw((3, 20, 30), np.random.default_rng(seed)) for both in (plain, mirrored))
        assert one.corner == other.corner


def test_gray_is_opencvs_gray_for_every_byte() -> None:
    values = np.arange(256, dtype=np.uint8)
    colors = np.array(np.meshgrid(values, values[::15], values[::5], indexing="ij")).reshape(3, 256, -1)
    expected = cv2.cvtColor(np.ascontiguousarray(colors.transpose(1, 2, 0)), cv2.COLOR_BGR2GRAY)
    gray = transformed(CropMirror(Transform(force_gray=True), train=False), colors)
    np.testing.assert_array_equal(gray[0], expected)


def test_images_of_varying_size_take_the_room_of_what_they_become() -> None:
    rows = RaggedRows.empty(ArraySpec((3, 10, 20), np.dtype("uint8"), varies=True), 2)
    crop_mirror = CropMirror(Transform(mirror=True, force_color=True), train=True)
    sample = image(1, 7, 13)
    put(crop_mirror, sample, rows, 1)
    np.testing.assert_array_equal(rows.get(1), transformed(crop_mirror, sample))
    with pytest.raises(SampleTooLargeError):
        put(crop_mirror, image(1, 11, 13), rows, 0)


def test_a_crop_makes_images_of_varying_size_equal() -> None:
    spec = ArraySpec((3, 100, 200), np.dtype("uint8"), varies=True)
    crop_mirror = CropMirror(Transform(crop_size=50), train=True)
    assert crop_mirror.output_spec(spec) == ArraySpec((3, 50, 50), np.dtype("uint8"))
    rows = np.zeros((1, 3, 50, 50), np.uint8)
    sample = image(3, 50, 77)
    put(crop_mirror, sample, rows, 0, 3)
    np.testing.assert_array_equal(rows[0], transformed(crop_mirror, sample, 3))
    with pytest.raises(SampleShapeError):
        put(crop_mirror, image(3, 49, 77), rows, 0, 3)
    assert CropMirror(Transform(mirror=True), train=True).output_spec(spec) == spec


@pytest.mark.parametrize(
    ("options", "in_train", "in_test"),
    [
        (Transform(scale=0.5, mean_value=(1.0,)), False, False),
        (Transform(mirror=True), True, False),
        (Transform(crop_size=5), True, True),
        (Transform(force_gray=True), True, True),
    ],
)
def test_it_is_active_only_where_it_changes_something(options: Transform, in_train: bool, in_test: bool) -> None:
    assert CropMirror(options, train=True).active == in_train
    assert CropMirror(options, train=False).active == in_test
