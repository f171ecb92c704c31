"""A net as SVG: every layer is a box with its name, and no two boxes overlap."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from blobfeed.trainer.prototxt.errors import PrototxtError
from blobfeed.trainer.prototxt.phases import State
from blobfeed.trainer.prototxt.prototxt import read_prototxt
from blobfeed.trainer.prototxt.schema import NetParameter, Phase

from blobfeed.draw import draw

_SVG = "{http://www.w3.org/2000/svg}"

BRANCHES = """
layer { name: "data" type: "Input" top: "data" top: "label" input_param { shape { dim: 1 } } }
layer { name: "conv<1>" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 8 kernel_size: 3 pad: 1 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "left" type: "Pooling" bottom: "conv" top: "left" pooling_param { pool: AVE kernel_size: 2 } }
layer { name: "right" type: "Pooling" bottom: "conv" top: "right" }
layer { name: "deep" type: "TanH" bottom: "right" top: "deep" }
layer { name: "sum" type: "Eltwise" bottom: "left" bottom: "deep" top: "sum" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "label" top: "loss" include { phase: TRAIN } }
layer { name: "prob" type: "Softmax" bottom: "sum" top: "prob" include { phase: TEST } }
"""


def drawn(folder: Path, phase: Phase, text: str = BRANCHES) -> ET.Element:
    path = folder / "net.prototxt"
    path.write_text(text)
    return ET.fromstring(draw(read_prototxt(path, NetParameter), State(phase)))


@pytest.mark.parametrize(("phase", "last"), [(Phase.TRAIN, "loss"), (Phase.TEST, "prob")])
def test_every_layer_of_the_phase_is_a_box_below_those_that_it_takes_from(
    tmp_path: Path, phase: Phase, last: str
) -> None:
    boxes = {}
    for group in drawn(tmp_path, phase).iter(f"{_SVG}g"):
        (box,), texts = group.findall(f"{_SVG}rect"), [text.text for text in group.findall(f"{_SVG}text")]
        boxes[texts[0]] = [float(box.attrib[name]) for name in ("x", "y", "width", "height")]
        title = group.find(f"{_SVG}title")
        assert title is not None
        assert str(texts[1]) in str(title.text)
    assert set(boxes) == {"data", "conv<1>", "relu", "left", "right", "deep", "sum", last}
    for above, below in (("data", "conv<1>"), ("conv<1>", "relu"), ("deep", "sum"), ("left", "sum"), ("sum", last)):
        assert boxes[above][1] + boxes[above][3] < boxes[below][1]
    every = list(boxes.values())
    for nth, (x, y, width, height) in enumerate(every):
        for other_x, other_y, other_width, other_height in every[:nth]:
            beside = x + width <= other_x or other_x + other_width <= x
            assert beside or y + height <= other_y or other_y + other_height <= y


def test_a_net_without_a_layer_in_the_phase_is_not_drawn(tmp_path: Path) -> None:
    text = 'layer { name: "a" type: "Input" top: "a" include { phase: TEST } }'
    with pytest.raises(PrototxtError, match=r"net\.prototxt: no layer is included in phase TRAIN"):
        drawn(tmp_path, Phase.TRAIN, text)


def test_options_and_arrows_are_shown(tmp_path: Path) -> None:
    root = drawn(tmp_path, Phase.TRAIN)
    texts = [text.text for text in root.iter(f"{_SVG}text")]
    assert {"num_output 8, pad 1", "kernel_size 3", "pool AVE, kernel_size 2"} <= {text for text in texts if text}
    arrows = [path for path in root.iter(f"{_SVG}path") if path.find(f"{_SVG}title") is not None]
    assert len(arrows) == 9  # one for each bottom
