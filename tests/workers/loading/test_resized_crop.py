"""random_resized_crop: where the parts lie, and how they are resized."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import pytest
from blobfeed.workers.api import RandomResizedCrop, Transform
from blobfeed.workers.loading import CropMirror, central_part, random_part
from hypothesis import given
from hypothesis import strategies as st

DRAWS = 4000
SIDES = st.integers(1, 700)
RANGES = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(lambda ends: (min(ends), max(ends)))


def part_by_torchvision(height: int, width: int, scale: Any, ratio: Any, rng: np.random.Generator) -> tuple[int, ...]:
    """The published rule, one step after the other."""
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w
    h, w = height, width
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (64, 64), (60, 300)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 0.6)])
def test_parts_are_distributed_as_those_of_torchvision(size: tuple[int, int], scale: tuple[float, float]) -> None:
    options = RandomResizedCrop(size=8, scale=scale)
    rng, theirs = np.random.default_rng(1), np.random.default_rng(2)
    here = np.array([random_part(*size, options, rng) for _ in range(DRAWS)], float)
    there = np.array([part_by_torchvision(*size, scale, options.ratio, theirs) for _ in range(DRAWS)], float)
    for parts in (here, there):  # area and shape in place of height and width
        height, width = parts[:, 2].copy(), parts[:, 3].copy()
        parts[:, 2], parts[:, 3] = height * width / math.prod(size), np.log(width / height)
    for name, ours, others in zip(("top", "left", "area", "shape"), here.T, there.T, strict=True):
        ends = np.unique(np.concatenate([ours, others]))
        shares = [np.searchsorted(np.sort(values), ends, side="right") / DRAWS for values in (ours, others)]
        assert np.abs(shares[0] - shares[1]).max() < 1.95 * math.sqrt(2 / DRAWS), name  # Kolmogorov-Smirnov, p = 0.001


@given(SIDES, SIDES, RANGES, RANGES, st.integers(0, 2**32))
def test_every_part_lies_in_its_picture(height: int, width: int, scale: Any, ratio: Any, seed: int) -> None:
    options = RandomResizedCrop(size=8, scale=scale, ratio=ratio)
    for part in (
        random_part(height, width, options, np.random.default_rng(seed)),
        central_part(height, width, (8, 5)),
    ):
        top, left, h, w = part
        assert 0 <= top < top + h <= height, part
        assert 0 <= left < left + w <= width, part


def test_a_part_that_never_fits_is_the_largest_in_the_centre_whose_shape_is_allowed() -> None:
    options, rng = RandomResizedCrop(size=8, scale=(1, 1)), np.random.default_rng(0)
    assert random_part(90, 900, options, rng) == (0, 390, 90, 120)
    assert random_part(900, 90, options, rng) == (390, 0, 120, 90)
    assert central_part(256, 400, (224, 224)) == (16, 88, 224, 224)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
@pytest.mark.parametrize("lies", ["planes", "pixels", "reversed pixels"])
@pytest.mark.parametrize("how", [{}, {"mirror": True}, {"force_gray": True}])
def test_a_part_is_resized_by_opencv(dtype: str, lies: str, how: dict[str, Any]) -> None:
    pixels = np.random.default_rng(0).integers(0, 200, (90, 120, 3)).astype(dtype)
    order = slice(None, None, -1) if lies == "reversed pixels" else slice(None)
    sample = pixels[:, :, order].transpose(2, 0, 1)
    if lies == "planes":
        sample = np.ascontiguousarray(sample)
    crop_mirror = CropMirror(Transform(random_resized_crop=RandomResizedCrop(size=(20, 30)), **how), train=True)
    for seed in range(8):
        crop = crop_mirror.draw(sample.shape, np.random.default_rng(seed))
        assert crop.size is not None
        rows = np.zeros((1, *crop_mirror.output_shape(sample.shape)), dtype)
        crop_mirror.put(sample, rows, 0, crop)
        top, left = crop.corner
        part = pixels[top : top + crop.size[0], left : left + crop.size[1]]
        by = max(crop.size[0] / 20, crop.size[1] / 30)
        expected = cv2.resize(part, (30, 20), interpolation=cv2.INTER_AREA if by > 2 else cv2.INTER_LINEAR)
        expected = expected[:, ::-1, order] if crop.mirrored else expected[:, :, order]
        if how.get("force_gray"):
            expected = (expected @ [0.114, 0.587, 0.299])[..., np.newaxis]
        rounds = how.get("force_gray") or dtype.endswith("16")  # OpenCV 4.8 does so by the memory's order
        np.testing.assert_allclose(rows[0], expected.transpose(2, 0, 1), atol=1.1 if rounds else 1e-3)
