"""Nets in Caffe's older formats are read as Caffe reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from blobfeed.trainer.layer_types import LAYER_TYPES
from blobfeed.trainer.prototxt import DimCheckMode, Document, NetParameter, V1LayerType, read_prototxt
from google.protobuf import text_format


def read(folder: Path, text: str) -> Document[NetParameter]:
    path = folder / "old.prototxt"
    path.write_text(text)
    return read_prototxt(path, NetParameter)


def layers(folder: Path, text: str) -> str:
    """The net in today's words, on one line a layer."""
    message = read(folder, text).message
    return "\n".join(text_format.MessageToString(layer, as_one_line=True) for layer in message.layer)


def test_a_net_of_2014_is_read_as_one_of_today(tmp_path: Path) -> None:
    old = """
    layers { name: "c" type: CONVOLUTION bottom: "x" top: "c" blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0
             param: "w" param: "b" blob_share_mode: PERMISSIVE convolution_param { num_output: 2 kernel_size: 3 } }
    layers { name: "l" type: SOFTMAX_LOSS bottom: "c" bottom: "y" top: "l" loss_weight: 2 include { phase: TRAIN } }
    layers { name: "r" type: RELU bottom: "c" top: "c" relu_param { negative_slope: 0.5 } }
    """
    new = """
    layer { name: "c" type: "Convolution" bottom: "x" top: "c"
            param { name: "w" share_mode: PERMISSIVE lr_mult: 1 decay_mult: 1 }
            param { name: "b" lr_mult: 2 decay_mult: 0 }
            convolution_param { num_output: 2 kernel_size: 3 } }
    layer { name: "l" type: "SoftmaxWithLoss" bottom: "c" bottom: "y" top: "l" loss_weight: 2 include { phase: TRAIN } }
    layer { name: "r" type: "ReLU" bottom: "c" top: "c" relu_param { negative_slope: 0.5 } }
    """
    assert layers(tmp_path, old) == layers(tmp_path, new)
    assert read(tmp_path, old).message.layer[0].param[0].share_mode == DimCheckMode.PERMISSIVE


def test_rates_and_decays_of_old_layers_need_not_be_of_one_number(tmp_path: Path) -> None:
    given = {
        "weight_decay: 1 weight_decay: 0": "param { decay_mult: 1 } param { decay_mult: 0 }",
        "blobs_lr: 1 blobs_lr: 2 weight_decay: 1": "param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 }",
    }
    for old, new in given.items():
        expected = layers(tmp_path, f'layer {{ name: "c" type: "Convolution" {new} }}')
        assert layers(tmp_path, f'layers {{ name: "c" type: CONVOLUTION {old} }}') == expected


def test_every_type_of_2014_is_one_of_today(tmp_path: Path) -> None:
    for kind in [kind for kind in V1LayerType if kind.value]:
        (layer,) = read(tmp_path, f"layers {{ type: {kind.name} }}").message.layer
        assert layer.type in {*LAYER_TYPES, "WindowData"}, kind.name


@pytest.mark.parametrize(
    "shapes",
    ["input_dim: [2, 3, 4, 5, 6, 1, 1, 1]", "input_shape { dim: [2, 3, 4, 5] } input_shape { dim: [6, 1, 1, 1] }"],
)
def test_inputs_of_the_net_become_an_input_layer(tmp_path: Path, shapes: str) -> None:
    relu = 'layer { name: "r" type: "ReLU" bottom: "x" top: "r" }'
    document = read(tmp_path, f'\n input: "x" input: "y"\n{shapes}\n{relu}')
    first, second = document.message.layer
    assert (first.type, list(first.top)) == ("Input", ["x", "y"])
    assert [list(shape.dim) for shape in first.input_param.shape] == [[2, 3, 4, 5], [6, 1, 1, 1]]
    assert document.where("layer", 0).endswith(":2:2")
    assert second.name == "r"
    assert document.where("layer", 1).endswith(":4:1")
