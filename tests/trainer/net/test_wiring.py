"""Which layers make a net, and what is said about those that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from blobfeed.layers.torch_blob import BlobError
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import NetState, Phase, message_classes

from tests.support.trainer_nets import make_net, with_inputs


@pytest.mark.parametrize(
    ("rule", "met"),
    [
        ({}, True),
        ({"phase": Phase.TEST}, False),
        ({"phase": Phase.TRAIN}, True),
        ({"min_level": 2}, True),
        ({"min_level": 3}, False),
        ({"max_level": 1}, False),
        ({"stage": ["a"]}, True),
        ({"stage": ["a", "c"]}, False),
        ({"not_stage": ["c"]}, True),
        ({"not_stage": ["c", "b"]}, False),
    ],
)
def test_a_rule_asks_for_phase_level_and_stages(rule: dict[str, object], met: bool) -> None:
    state = NetState(Phase.TRAIN, level=2, stages=frozenset({"a", "b"}))
    assert state.meets(message_classes()["NetStateRule"](**rule)) == met


def names(net: Net) -> list[str]:
    return list(net.layers)


def test_include_takes_any_rule_that_is_met_and_exclude_drops_any(tmp_path: Path) -> None:
    text = with_inputs(
        """
        layer { name: "both" type: "ReLU" bottom: "x" top: "a" include { phase: TRAIN } include { phase: TEST } }
        layer { name: "train" type: "ReLU" bottom: "x" top: "b" include { phase: TRAIN } }
        layer { name: "not_train" type: "ReLU" bottom: "x" top: "c" exclude { phase: TRAIN } }
        """,
        x=(1,),
    )
    assert names(make_net(tmp_path, text)) == ["x", "both", "train"]
    assert names(make_net(tmp_path, text, Phase.TEST)) == ["x", "both", "not_train"]


def test_layers_without_weights_may_have_the_same_name(tmp_path: Path) -> None:
    loss = 'layer { name: "loss" type: "%s" bottom: "x" bottom: "y" top: "%s" }'
    net = make_net(
        tmp_path,
        with_inputs(loss % ("SigmoidCrossEntropyLoss", "a") + loss % ("EuclideanLoss", "b"), x=(1, 2), y=(1, 2)),
    )
    assert names(net) == ["x", "y", "loss", "loss'"]
    assert float(net.objective()) == pytest.approx(2 * np.log(2))


def test_blobs_that_no_layer_takes_are_the_outputs(tmp_path: Path) -> None:
    text = with_inputs(
        """
        layer { name: "split" type: "Split" bottom: "x" top: "a" top: "b" top: "c" }
        layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
        layer { name: "quiet" type: "Silence" bottom: "b" }
        """,
        x=(1,),
    )
    net = make_net(tmp_path, text)
    assert net.output_names == ["a", "c"]
    with pytest.raises(BlobError):
        net.blobs["a"].reshape(-1)


SHARED = """
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" lr_mult: 2 } param { name: "b" }
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "c" type: "InnerProduct" bottom: "z" top: "c" param { name: "w" MORE } param { name: "b" decay_mult: 0 }
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "c" top: "loss" }
"""


def test_weights_of_one_name_are_shared_and_learnt_once(tmp_path: Path) -> None:
    net = make_net(tmp_path, with_inputs(SHARED.replace("MORE", ""), x=(4, 2), z=(4, 2)))
    assert net.layers["a"].blobs[0] is net.layers["c"].blobs[0]
    weights, bias = net.learnt()
    assert (weights.lr_mult, weights.decay_mult) == (2.0, 1.0)
    assert (bias.lr_mult, bias.decay_mult) == (1.0, 0.0)


def test_weights_of_another_net_reach_a_layer_of_a_test_that_shares_them_in_another_shape(tmp_path: Path) -> None:
    layer = """layer { name: "%s" type: "InnerProduct" bottom: "%s" top: "%s" param { name: "w" share_mode: PERMISSIVE }
               inner_product_param { num_output: %d bias_term: false weight_filler { type: "xavier" } } }"""
    trained, only_tested = layer % ("a", "x", "a", 6), layer % ("c", "z", "c", 3)
    train = make_net(tmp_path, with_inputs(trained, x=(4, 2), z=(4, 4)))
    test = make_net(tmp_path, with_inputs(trained + only_tested, x=(4, 2), z=(4, 4)), seed=1)
    test.share_weights(train)
    assert torch.equal(test.layers["c"].blobs[0].flatten(), train.layers["a"].blobs[0].flatten())


def test_no_gradient_goes_where_propagate_down_is_false(tmp_path: Path) -> None:
    net = make_net(
        tmp_path,
        with_inputs(SHARED.replace('top: "loss"', 'top: "loss" propagate_down: [false, true]'), x=(4, 2), z=(4, 2))
        .replace('param { name: "w" lr_mult: 2 } param { name: "b" }', "")
        .replace('param { name: "w" MORE } param { name: "b" decay_mult: 0 }', ""),
    )
    torch.autograd.backward(net.objective())
    assert [each.weights.grad is None for each in net.learnt()] == [True, True, False, False]


@pytest.mark.parametrize(
    "maker",
    [
        'type: "Input" input_param { shape { dim: [2, 1] } }',
        'type: "DummyData" dummy_data_param { shape { dim: [2, 1] } data_filler { value: 3 } }',
        'type: "Python" python_param { module: "threes" layer: "Threes" }',
    ],
)
def test_with_force_backward_the_tops_of_any_layer_without_bottoms_have_gradients(tmp_path: Path, maker: str) -> None:
    (tmp_path / "threes.py").write_text(
        "class Threes:\n"
        "    def __init__(self, layer_param): pass\n"
        "    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(2, 1)\n"
        "    def forward(self, bottom, top): top[0].data[...] = 3\n"
    )
    text = f'layer {{ name: "d" top: "d" {maker} }} layer {{ name: "l" type: "EuclideanLoss" bottom: "d" bottom: "z" }}'
    net = make_net(tmp_path, "force_backward: true " + with_inputs(text, z=(2, 1)))
    net.blobs["d"].data[...] = 3
    for _ in range(2):
        (gradient,) = torch.autograd.grad(net.objective(), [net.values["d"]])
        assert gradient.tolist() == [[1.5], [1.5]]


def test_a_layer_may_have_a_phase_of_its_own(tmp_path: Path) -> None:
    text = 'layer { name: "d" type: "Dropout" bottom: "x" top: "y" phase: TEST }'
    net = make_net(tmp_path, with_inputs(text, x=(100,)))
    net.blobs["x"].data[...] = 1
    net.objective()
    assert set(net.blobs["y"].data.tolist()) == {1.0}
