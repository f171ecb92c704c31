"""py-faster-rcnn's three blobs, on real photographs, against the same computed one picture at a time."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from blobfeed.trainer.layer_types import Generators
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import NetParameter, NetState, Phase, read_prototxt
from blobfeed.workers.api.param_str import parse_param_str
from numpy.typing import NDArray

from blobfeed import LayerHarness

from .support.trainer_nets import CPU
from .support.training import importing_leaves_no_trace, one_thread

__all__ = ["importing_leaves_no_trace", "one_thread"]

EXAMPLE = Path(__file__).resolve().parent.parent / "prototxt_examples" / "regions"
MEAN = np.array([102.9801, 115.9465, 122.7717], np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("net.prototxt", "regions.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    subprocess.run([sys.executable, str(EXAMPLE / "make_data.py"), str(tmp_path)], check=True)
    return tmp_path


def reference(line: str, mirrored: bool) -> tuple[NDArray[Any], list[float], NDArray[Any]]:
    """One picture as the original prepares it: im_data, im_info, gt_boxes."""
    path, *numbers = line.split()
    picture: NDArray[Any] = np.asarray(cv2.imread(path), np.float32) - MEAN
    boxes = np.array(numbers, np.float32).reshape(-1, 5)
    boxes = boxes[boxes[:, 4] >= 0]
    if mirrored:
        left = boxes[:, 0].copy()
        boxes[:, 0] = picture.shape[1] - 1 - boxes[:, 2]
        boxes[:, 2] = picture.shape[1] - 1 - left
        picture = picture[:, ::-1]
    scale = 600 / min(picture.shape[:2])
    if scale * max(picture.shape[:2]) > 1000:
        scale = 1000 / max(picture.shape[:2])
    picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    boxes[:, :4] *= scale
    return picture.transpose(2, 0, 1), [*picture.shape[:2], scale], boxes


def is_mirrored(data: NDArray[Any], line: str) -> bool:
    plain, mirrored = (reference(line, flag)[0] for flag in (False, True))
    return bool(np.abs(data - mirrored).mean() < np.abs(data - plain).mean())


def test_the_net_gets_the_originals_three_blobs(folder: Path) -> None:
    lines = (folder / "pictures.txt").read_text().splitlines()
    document = read_prototxt(folder / "net.prototxt", NetParameter)
    net = Net(document, NetState(Phase.TRAIN), CPU, Generators.seeded(1, CPU))
    seen = []
    try:
        for _ in range(8):
            net.forward()
            data, info, boxes = (net.values[name].detach().numpy() for name in ("data", "im_info", "gt_boxes"))
            line = lines[0] if len(boxes) == 3 else lines[1]
            mirrored = is_mirrored(data[0], line)
            seen.append((line, mirrored))
            wanted, wanted_info, wanted_boxes = reference(line, mirrored)
            assert data.shape == (1, *wanted.shape)
            assert np.abs(data[0] - wanted).max() <= 1.0  # the layer's pictures are rounded to bytes
            np.testing.assert_allclose(info, [wanted_info], rtol=1e-6)
            np.testing.assert_allclose(boxes, wanted_boxes, rtol=1e-6)
            assert net.values["conv1_1"].shape[2:] == data.shape[2:]
    finally:
        net.close()
    assert len(set(seen)) >= 3  # both pictures, and one of them both ways


def test_a_batch_of_several_pictures_says_whose_each_box_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    layer = importlib.import_module("regions").RegionsLayer
    lines = (folder / "pictures.txt").read_text().splitlines()
    (text,) = re.findall(r"param_str: (.*?)\n  }", (folder / "net.prototxt").read_text(), re.DOTALL)
    given = parse_param_str("".join(re.findall(r'"(.*?)"', text)))
    tops = ["data", "im_info", "gt_boxes", "data_lengths", "gt_boxes_samples"]
    given |= {"batch_size": 2, "shuffle": False, "target_size": 200}
    with LayerHarness(layer, given, tops=tops, phase="TEST", base_dir=folder) as harness:
        made = harness.forward()
        first = harness.decode(0)
    assert made["data"].shape == (2, 3, 200, 300)
    assert made["data_lengths"].tolist() == [[200, 300]] * 2
    assert made["gt_boxes_samples"].tolist() == [0, 0, 0, 1, 1]
    wanted = [np.array(line.split()[1:], np.float32).reshape(-1, 5) for line in lines]
    boxes = np.concatenate([boxes[boxes[:, 4] >= 0] for boxes in wanted])
    np.testing.assert_allclose(made["gt_boxes"][:, :4], boxes[:, :4] * (200 / 427), rtol=1e-5)
    np.testing.assert_array_equal(made["gt_boxes"][:, 4], boxes[:, 4])
    np.testing.assert_array_equal(first["gt_boxes"], made["gt_boxes"][:3])
