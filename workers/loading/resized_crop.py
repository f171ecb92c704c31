"""The crop of a random part of an image, in size, shape and place, that is resized to one size: pure decisions.

Areas and shapes are distributed as in torchvision's RandomResizedCrop: the part's area is a uniform fraction of the
image's, its width : height is uniform in the logarithm, and after ten tries that do not fit into the image, the part is
the largest one in the centre whose shape is allowed.
"""

from __future__ import annotations

import math

import numpy as np

from ..api import AnyArray, RandomResizedCrop
from ..base import need

RESIZABLE = frozenset(map(np.dtype, ("uint8", "uint16", "int16", "float32", "float64")))

_TRIES = 10
_CENTRE = 7 / 8
"""The share of the shorter side in a test: that of torchvision's weights, 224 of 256 pixels."""

_SMOOTHED_FROM = 2.0
"""Parts that are larger by more than this are averaged: a bilinear sum of four pixels would pass over the others."""

Part = tuple[int, int, int, int]
"""Top, left, height and width of a part, in pixels."""


def random_part(height: int, width: int, options: RandomResizedCrop, rng: np.random.Generator) -> Part:
    """Draw a part of an image of `height` and `width`."""
    down, right = rng.random(2).tolist()
    (least, most), (narrowest, widest) = options.scale, options.ratio
    for _ in range(_TRIES):
        by_area, by_shape = rng.random(2).tolist()
        area = height * width * (least + by_area * (most - least))
        shape = narrowest * (widest / narrowest) ** by_shape
        part_height, part_width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
        if 0 < part_height <= height and 0 < part_width <= width:
            down, right = down * (height - part_height + 1), right * (width - part_width + 1)
            return int(down), int(right), part_height, part_width
    shape = min(max(width / height, narrowest), widest)
    return _centred(height, width, min(height, round(width / shape)), min(width, round(height * shape)))


def central_part(height: int, width: int, size: tuple[int, int]) -> Part:
    """Return the part that is used in tests: in the centre, of the shape of `size`, (height, width)."""
    scale = _CENTRE * min(height / size[0], width / size[1])
    return _centred(height, width, max(1, round(scale * size[0])), max(1, round(scale * size[1])))


def _centred(height: int, width: int, part_height: int, part_width: int) -> Part:
    return (height - part_height) // 2, (width - part_width) // 2, max(1, part_height), max(1, part_width)


def sufficient_size(size: tuple[int, int], part: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) of the smallest copy of an image of `size` in which `part` has `wanted` pixels."""
    height, width = (-(-whole * pixels // piece) for whole, piece, pixels in zip(size, part, wanted, strict=True))
    return height, width


def resized(part: AnyArray, size: tuple[int, int]) -> AnyArray:
    """Return `part`, shape (channels, height, width), resized to `size`; with the channels adjacent if they were."""
    need("cv2", "transform: random_resized_crop")
    import cv2

    smooth = max(part.shape[1] / size[0], part.shape[2] / size[1]) > _SMOOTHED_FROM
    how = cv2.INTER_AREA if smooth else cv2.INTER_LINEAR
    if len(part) == 3 and abs(part.strides[0]) == part.itemsize:  # pixels: all channels at once
        order = slice(None, None, 1 if part.strides[0] > 0 else -1)
        return cv2.resize(part[order].transpose(1, 2, 0), size[::-1], interpolation=how).transpose(2, 0, 1)[order]
    return np.stack([cv2.resize(np.ascontiguousarray(plane), size[::-1], interpolation=how) for plane in part])
