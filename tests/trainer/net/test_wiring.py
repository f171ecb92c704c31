"""Which layers make a net, and what is said about those that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from blobfeed.layers.torch_blob import BlobError
from blobfeed.trainer.net.graph import Net
from blobfeed.trainer.prototxt.errors import NetError, PrototxtError
from blobfeed.trainer.prototxt.phases import State
from blobfeed.trainer.prototxt.schema import Phase, message_classes

from tests.support.trainer_nets import make_net, with_inputs


def refusal(folder: Path, text: str, phase: Phase = Phase.TRAIN) -> PrototxtError:
    with pytest.raises(PrototxtError) as caught:
        make_net(folder, text, phase)
    assert f"net.prototxt:{caught.value.line}:" in str(caught.value)
    return caught.value


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
    state = State(Phase.TRAIN, level=2, stages=frozenset({"a", "b"}))
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


def test_a_net_with_no_layer_in_its_phase_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrototxtError, match="no layer is included in phase TRAIN"):
        make_net(tmp_path, 'layer { name: "a" type: "Input" include { phase: TEST } }')


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('layer { name: "l" }', "needs a 'type'"),
        ('layer { type: "ReLU" }', "needs a 'name'"),
        (
            'layer { name: "x" type: "PReLU" bottom: "x" top: "y" }',
            "layer 'x': a layer above has the same name, and weights are found by the name",
        ),
        ('layer { name: "l" type: "EuclideanLoss" bottom: "x" top: "y" }', "EuclideanLoss needs 2 bottom, got 1"),
        ('layer { name: "l" type: "ReLU" bottom: "x" top: "y" top: "z" }', "needs 1 top, got 2"),
        ('layer { name: "l" type: "Eltwise" bottom: "x" top: "y" }', "needs at least 2 bottom, got 1"),
        ('layer { name: "l" type: "Flatten" bottom: "x"\n top: "x" }', "cannot work in place"),
        ('layer { name: "l" type: "ReLU" bottom: "x" top: "y"\n loss_weight: [1, 2] }', "one loss_weight for each"),
        (
            'layer { name: "l" type: "ReLU" bottom: "x" top: "y"\n dropout_param { } }',
            "ReLU does not read 'dropout_param'",
        ),
        ('layer { name: "l" type: "ReLU" bottom: "x" top: "y"\n blobs { num: 1 } }', "ReLU does not read 'blobs'"),
        (
            'layer { name: "l" type: "ReLU" bottom: "x" top: "y"\n param { lr_mult: 1 } }',
            "has 0 weight blobs, but `param` is given 1 times",
        ),
        (
            'layer { name: "l" type: "ReLU" bottom: "x" top: "y" include { phase: TEST }\n exclude { phase: TEST } }',
            "layer 'l' has include and exclude rules: give only one kind",
        ),
        (
            'layer { name: "l" bottom: "x" top: "y"\n type: "Convolutoin" }',
            "layer 'l': type 'Convolutoin' is not supported (did you mean 'Convolution'?)",
        ),
        (
            'layer { name: "l" type: "Scale" bottom: "x" top: "y" scale_param {\n filler { type: "xavir" } } }',
            "filler type 'xavir' is not supported (did you mean 'xavier'?)",
        ),
        (
            'layer { name: "l" type: "ReLU" bottom: "x"\n top: "data" }',
            "its top 'data' is already made by layer 'data' (net.prototxt:1:1)",
        ),
        (
            'layer { name: "l" type: "ReLU" top: "y"\n bottom: "dta" }',
            "no layer above makes its bottom 'dta' (did you mean 'data'?)",
        ),
        (
            'layer { name: "l" type: "ReLU" top: "dta"\n bottom: "dta" }',
            "no layer above makes its bottom 'dta' (did you mean 'data'?)",
        ),
        (
            'layer { name: "t" include { phase: TEST } top: "t" } layer { name: "l" type: "Exp" bottom: "t" top: "y" }',
            "layer 't' (net.prototxt:3:1) does, but it stands below or is not in this phase",
        ),
        (
            'layer { name: "i" type: "Input" top: "a" top: "b" top: "c" input_param { shape {} shape {} } }',
            "one for each of its 3 tops, got 2",
        ),
        ('layer { name: "i" type: "Input" top: "a" input_param { shape {\n dim: -1 } } }', "must not be negative"),
        ("\ndebug_info: true", "debug_info is not supported"),
    ],
)
def test_what_makes_no_net_is_refused_with_its_line(tmp_path: Path, text: str, what: str) -> None:
    """The mistake stands in the last line."""
    text = with_inputs(text, data=(1, 2), x=(1, 2))
    error = refusal(tmp_path, text)
    assert what in str(error).replace(f"{tmp_path}/", "")
    assert error.line == text.count("\n") + 1


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ('type: "Convolution" convolution_param { kernel_size: 3 }', "num_output must be at least 1"),
        ('type: "Convolution" convolution_param { num_output: 1 }', "kernel_size is needed"),
        ('type: "Convolution" convolution_param { num_output: 1 kernel_h: 1 }', "kernel_w is needed as well"),
        ('type: "Convolution" convolution_param { num_output: 1 kernel_size: 1 kernel_h: 1 kernel_w: 1 }', "not both"),
        ('type: "Convolution" convolution_param { num_output: 1 kernel_size: [1, 2, 3] }', "given 3 times"),
        (
            'type: "Convolution" convolution_param { num_output: 1 kernel_size: 1 stride: 0 }',
            "stride must be at least 1",
        ),
        ('type: "Convolution" convolution_param { num_output: 3 kernel_size: 1 group: 2 }', "does not divide both"),
        ('type: "Pooling" pooling_param { }', "kernel_size is needed"),
        ('type: "Pooling" pooling_param { kernel_size: 3 pad: 3 }', "must be smaller than the kernel"),
        ('type: "Pooling" pooling_param { kernel_size: 3 pad: 1 pool: STOCHASTIC }', "STOCHASTIC takes no pad"),
        ('type: "Pooling" pooling_param { global_pooling: true stride: 2 }', "takes no kernel"),
        ('type: "InnerProduct" inner_product_param { }', "num_output must be at least 1"),
        ('type: "InnerProduct" inner_product_param { num_output: 1 axis: 4 }', "has no axis 4"),
        ('type: "Dropout" dropout_param { dropout_ratio: 1 }', "at least 0 and below 1"),
        ('type: "LRN" lrn_param { local_size: 4 }', "must be odd"),
        ('type: "LRN" lrn_param { norm_region: WITHIN_CHANNEL k: 2 }', "no effect with WITHIN_CHANNEL"),
        ('type: "BatchNorm" param { lr_mult: 1 }', "are not learnt"),
        (
            'type: "Convolution" bottom: "x" convolution_param { num_output: 1 kernel_size: 1 }',
            "as many tops as bottoms",
        ),
        ('type: "Convolution" convolution_param { num_output: 1 kernel_h: 1 kernel_w: 1 axis: 0 }', "two spatial axes"),
        ('type: "Scale" scale_param { axis: 2 num_axes: 3 }', "num_axes 3 does not fit"),
        ('type: "Flatten" flatten_param { axis: 2 end_axis: 1 }', "comes after"),
        ('type: "Eltwise" bottom: "x" eltwise_param { coeff: 1 }', "one coeff for each"),
        ('type: "Eltwise" bottom: "x" eltwise_param { operation: MAX coeff: [1, 1] }', "only with operation: SUM"),
        ('type: "Python"', "python_param needs 'module'"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_with_their_line(tmp_path: Path, options: str, what: str) -> None:
    error = refusal(tmp_path, with_inputs(f'layer {{ name: "l" bottom: "x" top: "y"\n{options} }}', x=(1, 4, 5, 5)))
    assert what in str(error)
    assert error.line in (2, 3)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ('type: "Convolution" convolution_param { num_output: 1 kernel_size: 9 }', "is larger than the bottom"),
        ('type: "Pooling" pooling_param { kernel_size: 9 }', "is larger than the bottom"),
        ('type: "Pooling" pooling_param { kernel_size: 1 stride: 5 }', "begins behind the bottom"),
        ('type: "Concat" bottom: "z"', r"bottoms of shapes \(1, 4, 5, 5\), \(2, 4\): .* must match"),
        ('type: "Eltwise" bottom: "z"', "the same shape"),
        ('type: "EuclideanLoss" bottom: "z"', "must have the same shape"),
        ('type: "SoftmaxWithLoss" bottom: "z"', "need 25 labels"),
    ],
)
def test_bottoms_that_do_not_fit_are_named_with_their_layer(tmp_path: Path, options: str, what: str) -> None:
    text = with_inputs(f'layer {{ name: "l" bottom: "x" {options} top: "y" }}', x=(1, 4, 5, 5), z=(2, 4))
    with pytest.raises(NetError, match=what) as caught:
        make_net(tmp_path, text)
    assert "net.prototxt:3:1: layer 'l'" in str(caught.value)


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
    for name in "xz":
        net.blobs[name].data[...] = np.random.default_rng(0).normal(size=(4, 2))
    torch.autograd.backward(net.objective())
    assert weights.weights.grad is not None
    # The same input through the same weights: the loss is 0 whatever they are.
    assert not weights.weights.grad.any()


def test_permissive_sharing_asks_only_for_as_many_numbers(tmp_path: Path) -> None:
    text = (
        SHARED.replace("MORE", "share_mode: PERMISSIVE")
        .replace(' param { name: "b" }', "")
        .replace(' param { name: "b" decay_mult: 0 }', "")
    )
    text = text.replace('"z" top: "c"', '"z" top: "c6"').replace(
        'layer { name: "loss"', 'layer { name: "sum" type: "Reduction" bottom: "c6" top: "sum" loss_weight: 1 }\n#'
    )
    text = text.replace("num_output: 3", "num_output: 6", 1)
    net, other = (make_net(tmp_path, with_inputs(text, x=(4, 2), z=(4, 4)), seed=seed) for seed in range(2))
    own, shared = net.layers["a"].blobs[0], net.layers["c"].blobs[0]
    for _ in range(2):
        assert (own.shape, shared.shape, own.data_ptr()) == ((6, 2), (3, 4), shared.data_ptr())
        net.blobs["z"].data[...] = 1
        own.grad = None
        torch.autograd.backward(net.objective())
        assert own.grad is not None
        assert own.grad.unique().tolist() == [4.0]
        net.share_weights(other)
        assert torch.equal(shared.flatten(), other.layers["a"].blobs[0].flatten())


def test_weights_of_another_net_reach_a_layer_of_a_test_that_shares_them_in_another_shape(tmp_path: Path) -> None:
    layer = """layer { name: "%s" type: "InnerProduct" bottom: "%s" top: "%s" param { name: "w" share_mode: PERMISSIVE }
               inner_product_param { num_output: %d bias_term: false weight_filler { type: "xavier" } } }"""
    trained, only_tested = layer % ("a", "x", "a", 6), layer % ("c", "z", "c", 3)
    train = make_net(tmp_path, with_inputs(trained, x=(4, 2), z=(4, 4)))
    test = make_net(tmp_path, with_inputs(trained + only_tested, x=(4, 2), z=(4, 4)), seed=1)
    test.share_weights(train)
    assert torch.equal(test.layers["c"].blobs[0].flatten(), train.layers["a"].blobs[0].flatten())


@pytest.mark.parametrize(
    ("more", "z", "what"),
    [
        ("", (4, 3), r"'w' have the shape \(3, 3\), and those of layer 'a' \(3, 2\)"),
        ("share_mode: PERMISSIVE", (4, 3), "only their counts must agree"),
        ("lr_mult: 1", (4, 2), "lr_mult of the weights 'w' is 1, and 2 in layer 'a'"),
    ],
)
def test_weights_that_cannot_be_shared_are_named(tmp_path: Path, more: str, z: tuple[int, ...], what: str) -> None:
    with pytest.raises(PrototxtError, match=what):
        make_net(tmp_path, with_inputs(SHARED.replace("MORE", more), x=(4, 2), z=z))


def test_no_gradient_goes_where_propagate_down_is_false(tmp_path: Path) -> None:
    net = make_net(
        tmp_path,
        with_inputs(SHARED.replace('top: "loss"', 'top: "loss" propagate_down: [false, true]'), x=(4, 2), z=(4, 2))
        .replace('param { name: "w" lr_mult: 2 } param { name: "b" }', "")
        .replace('param { name: "w" MORE } param { name: "b" decay_mult: 0 }', ""),
    )
    torch.autograd.backward(net.objective())
    assert [each.weights.grad is None for each in net.learnt()] == [True, True, False, False]


def test_with_force_backward_the_inputs_have_gradients_too(tmp_path: Path) -> None:
    text = with_inputs('layer { name: "l" type: "EuclideanLoss" bottom: "x" bottom: "z" top: "l" }', x=(2, 1), z=(2, 1))
    net = make_net(tmp_path, "force_backward: true " + text)
    net.blobs["x"].data[...] = 3
    (gradient,) = torch.autograd.grad(net.objective(), [net.values["x"]])
    assert gradient.tolist() == [[1.5], [1.5]]


@pytest.mark.parametrize(
    "maker",
    [
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
    for _ in range(2):
        (gradient,) = torch.autograd.grad(net.objective(), [net.values["d"]])
        assert gradient.tolist() == [[1.5], [1.5]]


def test_fields_that_choose_among_caffes_implementations_are_listed(tmp_path: Path) -> None:
    text = 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" relu_param { engine: CUDNN } }'
    assert make_net(tmp_path, with_inputs(text, x=(1,))).without_effect == ["engine"]


def test_a_loss_need_not_name_its_top(tmp_path: Path) -> None:
    text = with_inputs('layer { name: "far" type: "EuclideanLoss" bottom: "x" bottom: "z" }', x=(2, 1), z=(2, 1))
    net = make_net(tmp_path, text)
    net.blobs["x"].data[...] = 2
    assert float(net.objective()) == 2
    assert net.output_names == ["far"]


def test_a_layer_may_have_a_phase_of_its_own(tmp_path: Path) -> None:
    text = 'layer { name: "d" type: "Dropout" bottom: "x" top: "y" phase: TEST }'
    net = make_net(tmp_path, with_inputs(text, x=(100,)))
    net.blobs["x"].data[...] = 1
    net.objective()
    assert set(net.blobs["y"].data.tolist()) == {1.0}
