"""Windows of pictures: the numbers of Caffe's formulas, written out here pixel by pixel, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from blobfeed.workers.api import allocate_rows
from blobfeed.workers.sources import open_source
from blobfeed.workers.sources.images.windows import WindowTable
from numpy.typing import NDArray

from tests.support.pictures import encoded, noise

SIZES = ((40, 60), (33, 25))
WINDOWS = (
    # picture, class, overlap, x1, y1, x2, y2
    (0, 3, 0.9, 5, 6, 30, 20),
    (0, 3, 0.2, 0, 0, 12, 39),
    (0, 1, 0.5, 40, 1, 59, 39),
    (0, 2, 0.4, 20, 20, 21, 22),
    (1, 7, 0.7, 0, 10, 24, 17),
    (1, 7, 0.0, 3, 3, 3, 32),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = []
    for number, (height, width) in enumerate(SIZES):
        (tmp_path / f"{number}.png").write_bytes(encoded(noise(height, width, number), ".png"))
        mine = [window[1:] for window in WINDOWS if window[0] == number]
        lines += [f"# {number}", f"{number}.png", "3", str(height), str(width), str(len(mine))]
        lines += [" ".join(map(str, window)) for window in mine]
    (tmp_path / "windows.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def opened(folder: Path, **options: object) -> WindowTable:
    source = open_source({"windows": {"path": "windows.txt", **options}}, tops=None, base_dir=folder)
    assert isinstance(source, WindowTable)
    return source


def everything(source: WindowTable) -> Mapping[str, NDArray[np.int64]]:
    rows = allocate_rows(source.specs, len(source))
    source.read(np.arange(len(source)), rows)
    source.close()
    return {name: np.asarray(array) for name, array in rows.items()}


def away_from_zero(number: np.floating[Any]) -> int:
    exact = float(number)
    return math.floor(exact + 0.5) if exact >= 0 else -math.floor(-exact + 0.5)


def of_caffe(
    image: NDArray[np.uint8], box: tuple[int, ...], size: int, pad: int, square: bool, mirror: bool
) -> NDArray[np.uint8]:
    """What window_data_layer.cpp puts into an empty blob, step by step."""
    real = np.float32
    x1, y1, x2, y2 = box
    crop_width = crop_height = size
    pad_w = pad_h = 0
    if pad or square:
        scale = real(size) / real(size - 2 * pad)
        half_height, half_width = real((y2 - y1 + 1) / 2.0), real((x2 - x1 + 1) / 2.0)
        center_x, center_y = real(x1) + half_width, real(y1) + half_height
        if square:
            half_width = half_height = max(half_width, half_height)
        x1, x2 = away_from_zero(center_x - half_width * scale), away_from_zero(center_x + half_width * scale)
        y1, y2 = away_from_zero(center_y - half_height * scale), away_from_zero(center_y + half_height * scale)
        unclipped_height, unclipped_width = y2 - y1 + 1, x2 - x1 + 1
        pad_x1, pad_y1 = max(0, -x1), max(0, -y1)
        pad_x2, pad_y2 = max(0, x2 - image.shape[1] + 1), max(0, y2 - image.shape[0] + 1)
        x1, x2, y1, y2 = x1 + pad_x1, x2 - pad_x2, y1 + pad_y1, y2 - pad_y2
        scale_x, scale_y = real(size) / real(unclipped_width), real(size) / real(unclipped_height)
        crop_width = away_from_zero(real(x2 - x1 + 1) * scale_x)
        crop_height = away_from_zero(real(y2 - y1 + 1) * scale_y)
        pad_h = away_from_zero(real(pad_y1) * scale_y)
        pad_w = away_from_zero(real(pad_x2 if mirror else pad_x1) * scale_x)
        crop_height = min(crop_height, size - pad_h)
        crop_width = min(crop_width, size - pad_w)
    cut = cv2.resize(image[y1 : y2 + 1, x1 : x2 + 1], (crop_width, crop_height), interpolation=cv2.INTER_LINEAR)
    if mirror:
        cut = cv2.flip(cut, 1)
    blob = np.zeros((3, size, size), np.uint8)
    for h in range(crop_height):
        for w in range(crop_width):
            for c in range(3):
                blob[c, h + pad_h, w + pad_w] = cut[h, w, c]
    return blob


@pytest.mark.parametrize("mode", ["warp", "square"])
@pytest.mark.parametrize("pad", [0, 3])
def test_windows_are_cut_and_warped_as_by_caffe(folder: Path, mode: str, pad: int) -> None:
    source = opened(folder, crop_size=19, context_pad=pad, crop_mode=mode, mirror=True)
    found = everything(source)
    back = [window for window in WINDOWS if window[2] < 0.5]
    front = [window for window in WINDOWS if window[2] >= 0.5]
    assert (source.background, source.foreground, len(source)) == (len(back), len(front), 2 * len(WINDOWS))
    assert found["label"].tolist() == 2 * ([0] * len(back) + [int(window[1]) for window in front])
    for index, window in enumerate(2 * (back + front)):
        image = noise(*SIZES[int(window[0])], int(window[0]))
        box = tuple(int(number) for number in window[3:])
        expected = of_caffe(image, box, 19, pad, mode == "square", index >= len(WINDOWS))
        np.testing.assert_array_equal(found["data"][index], expected, err_msg=str(window))
        top, left, height, width = found["area"][index]
        outside = found["data"][index].copy()
        outside[:, top : top + height, left : left + width] = 0
        assert not outside.any()


def test_windows_between_the_thresholds_are_left_out(folder: Path) -> None:
    source = opened(folder, crop_size=8, fg_threshold=0.6, bg_threshold=0.3)
    assert everything(source)["label"].tolist() == [0, 0, 3, 7]
