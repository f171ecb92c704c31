"""What the golden cases do not show of the layer types, against formulas written out in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from blobfeed.trainer.layer_types import Layer
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import BlobProto, NetError, Phase, fill_blob, message_class
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tests.support.part import examples
from tests.support.standin_files import write_hdf5
from tests.support.trainer_nets import make_net, with_inputs

Floats = NDArray[np.float32]
DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> Floats:
    return DRAW.normal(size=shape).astype(np.float32)


def weights_of(blob: torch.Tensor) -> Floats:
    array: Floats = blob.detach().clone().numpy()
    return array


def run(net: Net, **inputs: Floats) -> Floats:
    """The blob y after a forward on `inputs`."""
    for name, array in inputs.items():
        net.blobs[name].reshape(*array.shape)
        net.blobs[name].data[...] = array
    net.forward()
    return np.array(net.blobs["y"].data)


def layer_net(folder: Path, options: str, phase: Phase = Phase.TRAIN, **inputs: Floats) -> Net:
    shapes = {name: array.shape for name, array in inputs.items()}
    text = with_inputs(f'layer {{ name: "y" bottom: "x" top: "y" {options} }}', **shapes)
    return make_net(folder, text, phase)


X = numbers(2, 3, 4, 5)
LABELS = np.array([[[0, 2], [1, 1]], [[2, 0], [0, 0]]], np.float32)
WEIGHTS = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" }'
PLAIN = 'weight_filler { type: "xavier" } bias_term: false'

# The options of a layer, its bottoms, and its top as torch computes it from them and from the weights.
FORMULAS: list[tuple[str, list[Floats], Callable[..., Tensor]]] = [
    (
        f'type: "Convolution" convolution_param {{ num_output: 2 kernel_h: 1 kernel_w: 3 stride_h: 2 {PLAIN} }}',
        [X],
        lambda x, w: functional.conv2d(x, w, None, (2, 1)),
    ),
    (
        f'type: "Convolution" convolution_param {{ num_output: 5 kernel_size: 3 axis: 2 {PLAIN} }}',
        [X],
        lambda x, w: functional.conv1d(x.flatten(0, 1), w).view(2, 3, 5, 3),
    ),
    *(
        (
            f'type: "InnerProduct" inner_product_param {{ num_output: 5 axis: {axis} {WEIGHTS} }}',
            [X],
            lambda x, w, b, axis=axis: functional.linear(x.flatten(axis), w, b),
        )
        for axis in (2, -1)
    ),
    ('type: "Pooling" pooling_param { global_pooling: true stride: 1 pad: 0 }', [X], lambda x: x.amax((2, 3), True)),
    ('type: "Flatten" flatten_param { axis: 1 end_axis: 2 }', [X], lambda x: x.flatten(1, 2)),
    ('type: "Scale" scale_param { axis: 2 num_axes: -1 }', [X], lambda x, w: x * torch.ones(4, 5).mul(w)),
    (
        'type: "LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 norm_region: WITHIN_CHANNEL }',
        [X],
        lambda x: x / (1 + 0.5 * functional.avg_pool2d(x**2, 3, 1, 1)) ** 0.6,
    ),
    (
        # Fewer channels than a window has.
        'type: "LRN" lrn_param { local_size: 5 alpha: 0.5 beta: 0.6 }',
        [X],
        lambda x: x / (1 + 0.5 / 5 * x.square().sum(1, keepdim=True)) ** 0.6,
    ),
    ('type: "MVN"', [X[:, :, 0, 0]], torch.zeros_like),
    (
        # Divided by the rows, and not by the labels.
        'bottom: "z" type: "SoftmaxWithLoss" loss_param { normalization: BATCH_SIZE }',
        [X[:, :, :2, :2], LABELS],
        lambda x, z: functional.cross_entropy(x, z.long(), reduction="sum") / 2,
    ),
    (
        'bottom: "z" type: "SoftmaxWithLoss" loss_param { ignore_label: 255 }',
        [X[:, :, 0, 0], np.full(2, 255, np.float32)],
        lambda x, z: torch.tensor(0.0),
    ),
    # A tie is no right answer.
    ('bottom: "z" type: "Accuracy"', [np.zeros((2, 3), np.float32), X[:, 0, 0, 0] * 0], lambda x, z: torch.tensor(0.0)),
]


@pytest.mark.parametrize(("options", "bottoms", "formula"), FORMULAS, ids=[options for options, _, _ in FORMULAS])
def test_a_top_is_what_the_formula_says(
    tmp_path: Path, options: str, bottoms: list[Floats], formula: Callable[..., Tensor]
) -> None:
    inputs = dict(zip("xz", bottoms, strict=False))
    net = layer_net(tmp_path, options, Phase.TRAIN, **inputs)
    expected = formula(*map(torch.from_numpy, bottoms), *net.layers["y"].blobs)
    np.testing.assert_allclose(run(net, **inputs), expected.detach(), rtol=1e-4, atol=1e-5)
    assert net.blobs["y"].shape == tuple(expected.shape)


@pytest.mark.parametrize(("kind", "second"), [("SoftmaxWithLoss", [[0.5, 0.5], [0.5, 0.5]]), ("Accuracy", [0.0, 0.0])])
def test_a_second_top_has_the_probabilities_or_the_accuracy_by_class(tmp_path: Path, kind: str, second: object) -> None:
    x, labels = np.zeros((2, 2), np.float32), np.array([0, 1], np.float32)
    net = layer_net(tmp_path, f'bottom: "z" top: "second" type: "{kind}"', x=x, z=labels)
    run(net, x=x, z=labels)
    assert net.blobs["second"].data.tolist() == second


def pooled(x: Floats, kernel: int, stride: int, pad: int, average: bool) -> Floats:
    """As Caffe's documentation and papers describe it: sizes rounded up, windows cut at the padded image's end."""
    sizes = []
    for size in x.shape[2:]:
        windows = math.ceil((size + 2 * pad - kernel) / stride) + 1
        if pad and (windows - 1) * stride >= size + pad:
            windows -= 1
        sizes.append(windows)
    y = np.zeros((*x.shape[:2], *sizes), np.float32)
    for n, c, i, j in np.ndindex(*y.shape):
        top, left = i * stride - pad, j * stride - pad
        bottom, right = (min(at + kernel, size + pad) for at, size in zip((top, left), x.shape[2:], strict=True))
        window = x[n, c, max(top, 0) : bottom, max(left, 0) : right]
        y[n, c, i, j] = window.sum() / ((bottom - top) * (right - left)) if average else window.max()
    return y


@examples(60)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    pad=st.integers(0, 2),
    average=st.booleans(),
)
def test_pooling(
    tmp_path_factory: pytest.TempPathFactory,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    pad: int,
    average: bool,
) -> None:
    # A kernel that is larger by less than the stride has one window, cut at the end.
    assume(stride <= kernel and pad < kernel < min(height, width) + 2 * pad + stride)
    x = numbers(1, 2, height, width)
    options = f"kernel_size: {kernel} stride: {stride} pad: {pad} pool: {'AVE' if average else 'MAX'}"
    net = layer_net(tmp_path_factory.mktemp("net"), f'type: "Pooling" pooling_param {{ {options} }}', x=x)
    expected = pooled(x, kernel, stride, pad, average)
    assert net.blobs["y"].shape == expected.shape
    np.testing.assert_allclose(run(net, x=x), expected, atol=1e-6)


def test_a_pad_of_one_axis_drops_windows_behind_the_image_on_both(tmp_path: Path) -> None:
    x = numbers(1, 1, 7, 8)
    options = "kernel_h: 3 pad_h: 1 kernel_w: 1 pad_w: 0 stride: 2"
    net = layer_net(tmp_path, f'type: "Pooling" pooling_param {{ {options} }}', x=x)
    assert net.blobs["y"].shape == (1, 1, 4, 4)
    np.testing.assert_array_equal(run(net, x=x)[0, 0, 1], x[0, 0, 1:4, ::2].max(0))


@pytest.mark.parametrize("pad", [1, 2], ids=["torch pads", "more than torch pads"])
def test_the_second_top_of_max_pooling_says_where_the_maxima_are(tmp_path: Path, pad: int) -> None:
    x = numbers(2, 3, 7, 8)
    text = f'type: "Pooling" top: "at" pooling_param {{ kernel_size: 3 stride: 2 pad: {pad} }}'
    net = layer_net(tmp_path, text, x=x)
    y = run(net, x=x)
    at = np.asarray(net.blobs["at"].data).astype(int)
    np.testing.assert_array_equal(np.take_along_axis(x.reshape(6, -1), at.reshape(6, -1), 1), y.reshape(6, -1))


def test_dropout_scales_what_it_keeps_in_training_and_does_nothing_in_testing(tmp_path: Path) -> None:
    x = np.ones((100, 100), np.float32)
    options = 'type: "Dropout" dropout_param { dropout_ratio: 0.2 }'
    y = run(layer_net(tmp_path, options, x=x), x=x)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1.25)}
    assert abs((y == 0).mean() - 0.2) < 0.02
    assert (run(layer_net(tmp_path, options, Phase.TEST, x=x), x=x) == 1).all()
    assert (run(layer_net(tmp_path, options.replace("0.2", "0"), x=x), x=x) == 1).all()


def test_batch_norm_uses_the_batch_in_training_and_what_it_remembers_in_testing(tmp_path: Path) -> None:
    x, z = 3 * numbers(4, 2, 5, 5) + 1, numbers(4, 2, 5, 5)
    net = layer_net(tmp_path, 'type: "BatchNorm" batch_norm_param { moving_average_fraction: 0.5 }', x=x)
    axes = (0, 2, 3)

    def normal(array: Floats, mean: Floats, variance: Floats) -> Floats:
        scaled: Floats = (array - mean[:, None, None]) / np.sqrt(variance[:, None, None] + 1e-5)
        return scaled

    np.testing.assert_allclose(run(net, x=x), normal(x, x.mean(axes), x.var(axes)), atol=1e-4)
    run(net, x=z)
    # Older batches count half as much with each newer one; the third number is what the sums are divided by.
    mean, variance, weight = (weights_of(blob) for blob in net.layers["y"].blobs)
    np.testing.assert_allclose(weight, [1.5])
    np.testing.assert_allclose(mean, x.mean(axes) / 2 + z.mean(axes), atol=1e-5)
    np.testing.assert_allclose(variance, x.var(axes, ddof=1) / 2 + z.var(axes, ddof=1), rtol=1e-5)
    test = layer_net(tmp_path, 'type: "BatchNorm"', Phase.TEST, x=x)
    test.share_weights(net)
    np.testing.assert_allclose(run(test, x=x), normal(x, mean / np.float32(1.5), variance / np.float32(1.5)), atol=1e-4)
    assert not list(net.learnt())


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1), (1,)])
def test_batch_norm_gives_0_for_one_number_in_a_channel_as_caffe_does(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    net = layer_net(tmp_path, 'type: "BatchNorm"', x=x)
    assert not run(net, x=x).any()
    mean, variance, weight = (weights_of(blob) for blob in net.layers["y"].blobs)
    np.testing.assert_array_equal(mean, x.ravel())
    assert not variance.any()
    assert weight.tolist() == [1]


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "Accuracy"])
def test_a_label_with_a_fraction_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    x = numbers(2, 3)
    net = layer_net(tmp_path, f'bottom: "z" type: "{kind}"', x=x, z=numbers(2))
    whole = run(net, x=x, z=np.array([0, 1], np.float32))
    assert caplog.messages == []
    for _ in range(3):
        assert run(net, x=x, z=np.array([0.5, 1.5], np.float32)) == whole
    (message,) = caplog.messages
    assert "layer 'y': label 0.5 is not a whole number" in message


def test_a_label_that_is_no_number_is_named_with_its_batch_and_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = np.array([0, 1, 1, 0, np.nan, 1], np.float32)
    write_hdf5(tmp_path / "train.h5", data=np.zeros((6, 2), np.float32), label=labels)
    net = make_net(tmp_path, FED)
    try:
        net.forward()
        with pytest.raises(NetError, match=rf"label nan .* batch 1 row 0: epoch 0 sample 4 {tmp_path}/train.h5"):
            net.forward()
    finally:
        net.close()
    assert caplog.messages == []


FED = """layer { name: "d" type: "Python" top: "data" top: "label" python_param { module: "blobfeed.layers"
    layer: "HDF5InputLayer" param_str: "{path: train.h5, batch_size: 4, num_loaders: 0}" } }
layer { name: "l" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" top: "l" }"""


def test_a_wrong_number_that_only_the_device_has_seen_is_named_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = np.array([0, 1], np.float32), np.array([0, 7], np.float32)
    net = layer_net(tmp_path, 'type: "Embed" embed_param { num_output: 2 input_dim: 3 }', x=good)
    worse = np.array([8, 9], np.float32)
    for name_it in (net.check, lambda: run(net, x=good)):
        with monkeypatch.context() as patched:
            patched.setattr(Layer, "is_on_host", lambda self, tensor: False)
            for numbers_given in (good, bad, worse, good):  # the first wrong number stays the one that is named
                assert np.isfinite(run(net, x=numbers_given)).all()
        with pytest.raises(NetError, match=r"\b7\b"):
            name_it()
        net.check()


@pytest.mark.parametrize("kind", ["MultinomialLogisticLoss", "HingeLoss"])
def test_a_loss_is_finite_though_only_the_device_has_seen_a_wrong_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    x, labels = np.full((2, 3), 0.5, np.float32), np.array([0, 7], np.float32)
    net = layer_net(tmp_path, f'bottom: "z" type: "{kind}"', x=x, z=labels)
    monkeypatch.setattr(Layer, "is_on_host", lambda self, tensor: False)
    assert np.isfinite(run(net, x=x, z=labels))
    with pytest.raises(NetError):
        net.check()


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")  # said once, whenever it is set
@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "Accuracy"])
def test_on_cuda_the_host_does_not_wait_for_the_labels(tmp_path: Path, kind: str) -> None:
    shapes = {"x": (2, 3), "z": (2,)}
    text = with_inputs(f'layer {{ name: "y" bottom: "x" top: "y" bottom: "z" type: "{kind}" }}', **shapes)
    net = make_net(tmp_path, text, device=torch.device("cuda"))
    for name, shape in shapes.items():
        net.blobs[name].reshape(*shape)
        net.blobs[name].data[...] = np.ones(shape, np.float32)
    net.forward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        net.forward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    net.check()


def test_euclidean_loss_takes_a_second_bottom_of_other_axes_that_is_not_contiguous(tmp_path: Path) -> None:
    a, b = numbers(2, 12), numbers(2, 3, 4, 2)
    text = """layer { name: "s" type: "Slice" bottom: "z" top: "b" top: "rest" slice_param { axis: 2 } }
              layer { name: "y" type: "EuclideanLoss" bottom: "x" bottom: "b" top: "y" }"""
    net = make_net(tmp_path, with_inputs(text, x=a.shape, z=b.shape))
    np.testing.assert_allclose(run(net, x=a, z=b), ((a - b[:, :, :2].reshape(2, 12)) ** 2).sum() / 4, rtol=1e-5)


def test_targets_of_a_sigmoid_cross_entropy_may_be_integers(tmp_path: Path) -> None:
    x, z = numbers(4, 3), np.eye(4, 3, dtype=np.float32)
    net = layer_net(tmp_path, 'bottom: "z" type: "SigmoidCrossEntropyLoss"', x=x, z=z)
    found = [
        net(x=torch.from_numpy(x), z=targets)["y"] for targets in (torch.from_numpy(z), torch.from_numpy(z).long())
    ]
    assert torch.equal(*found)


def test_stochastic_pooling_draws_from_each_window_and_tests_with_the_weighted_mean(tmp_path: Path) -> None:
    x = np.abs(numbers(2, 3, 5, 5))
    options = 'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }'
    drawn = run(layer_net(tmp_path, options, x=x), x=x)
    tested = run(layer_net(tmp_path, options, Phase.TEST, x=x), x=x)
    for n, c, i, j in np.ndindex(*drawn.shape):
        window = x[n, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        assert drawn[n, c, i, j] in window
        assert tested[n, c, i, j] == pytest.approx((window**2).sum() / window.sum(), rel=1e-5)


def test_dummy_data_draws_anew_unless_it_is_constant_with_one_extent_for_all_tops_or_one_each(tmp_path: Path) -> None:
    text = """layer { name: "d" type: "DummyData" top: "x" top: "y" dummy_data_param {
        num: 8 channels: [3, 1] height: [28, 1] width: [28, 1]
        data_filler { value: 4 } data_filler { type: "uniform" } } }"""
    net = make_net(tmp_path, text)
    seen = []
    for _ in range(2):
        net.forward()
        assert (net.blobs["x"].data == torch.full((8, 3, 28, 28), 4.0)).all()
        seen.append(net.blobs["y"].data.clone())
    assert seen[0].shape == (8, 1, 1, 1)
    assert not torch.equal(*seen)


def test_a_state_that_is_exposed_goes_on_where_the_last_call_ended(tmp_path: Path) -> None:
    x, cont, zero = numbers(6, 2, 3), np.ones((6, 2), np.float32), np.zeros((1, 2, 4), np.float32)
    options = 'recurrent_param { num_output: 4 expose_hidden: true weight_filler { type: "uniform" min: -0.5 } }'
    for kind, states in (("RNN", "h"), ("LSTM", "hc")):
        bottoms = "".join(f' bottom: "{name}0"' for name in states)
        tops = "".join(f' top: "{name}1"' for name in states)
        inputs = {f"{name}0": zero for name in states}
        text = f'bottom: "cont"{bottoms}{tops} type: "{kind}" {options}'
        net = layer_net(tmp_path, text, Phase.TRAIN, **{"x": x, "cont": cont, **inputs})
        whole = run(net, x=x, cont=cont, **inputs)
        first = run(net, x=x[:4], cont=cont[:4], **inputs)
        handed_on = {f"{name}0": np.array(net.blobs[f"{name}1"].data) for name in states}
        second = run(net, x=x[4:], cont=cont[4:], **handed_on)
        np.testing.assert_allclose(np.concatenate([first, second]), whole, atol=1e-6)


def test_the_gradient_of_a_maximum_goes_to_the_second_of_equal_bottoms(tmp_path: Path) -> None:
    bottoms = "".join(f' bottom: "{name}"' for name in "abc")
    text = f'layer {{ name: "y" type: "Eltwise"{bottoms} top: "y" eltwise_param {{ operation: MAX }} }}'
    net = make_net(tmp_path, f"force_backward: true {with_inputs(text, a=(2,), b=(2,), c=(2,))}")
    high, low = np.array([0, 1], np.float32), np.zeros(2, np.float32)
    run(net, a=high, b=low, c=high)
    gradients = torch.autograd.grad(net.values["y"].sum(), [net.values[name] for name in "abc"])
    assert [gradient.tolist() for gradient in gradients] == [[0, 1], [1, 0], [0, 0]]


@pytest.mark.parametrize(("kind", "states"), [("RNN", "h"), ("LSTM", "hc")])
def test_no_gradient_passes_through_an_exposed_state(tmp_path: Path, kind: str, states: str) -> None:
    bottoms = "".join(f' bottom: "{name}0"' for name in states)
    tops = "".join(f' top: "{name}1"' for name in states)
    text = f'''layer {{ name: "y" type: "{kind}" bottom: "x" bottom: "cont"{bottoms} top: "y"{tops}
        recurrent_param {{ num_output: 4 expose_hidden: true weight_filler {{ type: "gaussian" }} }} }}'''
    inputs = with_inputs(text, x=(3, 2, 3), cont=(3, 2), **{f"{name}0": (1, 2, 4) for name in states})
    net = make_net(tmp_path, f"force_backward: true {inputs}")
    net.forward()
    given = [net.values[f"{name}0"] for name in states]
    assert torch.autograd.grad(net.values["y"].sum(), given, allow_unused=True) == (None,) * len(states)
    assert not any(net.values[f"{name}1"].requires_grad for name in states)


@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
def test_a_state_that_is_not_exposed_is_carried_from_batch_to_batch(tmp_path: Path, kind: str) -> None:
    x, cont = numbers(6, 2, 3), np.ones((6, 2), np.float32)
    options = 'recurrent_param { num_output: 4 weight_filler { type: "uniform" min: -0.5 max: 0.5 } }'

    def fresh(phase: Phase = Phase.TRAIN) -> Net:
        return layer_net(tmp_path, f'bottom: "cont" type: "{kind}" {options}', phase, x=x, cont=cont)

    net = fresh()
    whole = run(fresh(), x=x, cont=cont)
    np.testing.assert_allclose(run(net, x=x[:4], cont=cont[:4]), whole[:4], atol=1e-6)
    torch.autograd.backward(net.values["y"].sum())
    tested = fresh(Phase.TEST)  # the weights are shared, the state is not
    tested.share_weights(net)
    np.testing.assert_allclose(run(tested, x=x, cont=cont), whole, atol=1e-6)
    np.testing.assert_allclose(run(net, x=x[4:], cont=cont[4:]), whole[4:], atol=1e-6)
    torch.autograd.backward(net.values["y"].sum())  # reaches no further than this batch

    begins = np.concatenate([np.zeros((1, 2), np.float32), cont[1:]])
    np.testing.assert_allclose(run(net, x=x, cont=begins), whole, atol=1e-6)
    one = run(net, x=x[:, :1], cont=cont[:, :1])  # of another number of streams no state is known
    np.testing.assert_allclose(one, whole[:, :1], atol=1e-6)


FANS = {"FAN_IN": 4 * 25, "FAN_OUT": 20 * 25, "AVERAGE": 12 * 25}


def uniform(fan: int) -> Callable[[Floats], object]:
    return lambda w: 0.99 < abs(w).max() / math.sqrt(3 / fan) <= 1 + 1e-6


def normal(fan: int) -> Callable[[Floats], object]:
    return lambda w: abs(w.std() / math.sqrt(2 / fan) - 1) < 0.1


FILLERS: dict[str, Callable[[Floats], object]] = {
    'type: "positive_unitball"': lambda w: np.allclose(w.sum((1, 2, 3)), 1) and (w >= 0).all(),
    'type: "gaussian" sparse: 2': lambda w: 0.05 < (w != 0).mean() < 0.16,
    'type: "gaussian" mean: 1 std: 2': lambda w: abs(w.mean() - 1) < 0.2 and abs(w.std() / 2 - 1) < 0.1,
    **{f'type: "xavier" variance_norm: {norm}': uniform(fan) for norm, fan in FANS.items()},
    **{f'type: "msra" variance_norm: {norm}': normal(fan) for norm, fan in FANS.items()},
}


@pytest.mark.parametrize("filler", FILLERS)
def test_fillers(tmp_path: Path, filler: str) -> None:
    options = f"convolution_param {{ num_output: 20 kernel_size: 5 weight_filler {{ {filler} }} }}"
    net = layer_net(tmp_path, f'type: "Convolution" {options}', x=numbers(1, 4, 5, 5))
    assert FILLERS[filler](net.layers["y"].blobs[0].detach().numpy())


@pytest.mark.parametrize("edge", range(2, 11))
def test_a_bilinear_filler_is_symmetric(tmp_path: Path, edge: int) -> None:
    options = f'num_output: 1 kernel_size: {edge} weight_filler {{ type: "bilinear" }}'
    net = layer_net(tmp_path, f'type: "Deconvolution" convolution_param {{ {options} }}', x=numbers(1, 1, 3, 3))
    weights = net.layers["y"].blobs[0]
    torch.testing.assert_close(weights, weights.flip(-1))
    torch.testing.assert_close(weights, weights.flip(-2))


@pytest.mark.parametrize("folder", [".", "beside the working directory"])
def test_infogain_reads_its_matrix_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir(exist_ok=True)
    blob = message_class(BlobProto)()
    fill_blob(blob, np.diag([1, 2, 3]).astype(np.float32).reshape(1, 1, 3, 3))
    (tmp_path / "matrix.binaryproto").write_bytes(blob.SerializeToString())
    options = 'bottom: "z" type: "InfogainLoss" infogain_loss_param { source: "matrix.binaryproto" }'
    x, labels = numbers(4, 3), np.array([0, 1, 2, 1], np.float32)
    net = layer_net(tmp_path / folder, options, x=x, z=labels)
    losses = functional.cross_entropy(torch.from_numpy(x), torch.from_numpy(labels).long(), reduction="none").numpy()
    expected = (losses * np.array([1, 2, 3, 2])).mean()
    np.testing.assert_allclose(run(net, x=x, z=labels), expected, rtol=1e-5)


def test_mean_variance_normalization_has_a_gradient_also_if_a_channel_is_constant(tmp_path: Path) -> None:
    x = np.zeros((2, 3, 4, 4), np.float32)
    x[0, 1] = numbers(4, 4)
    layer, bottom = layer_net(tmp_path, 'type: "MVN"', x=x).layers["y"], torch.from_numpy(x).requires_grad_()
    (gradient,) = torch.autograd.grad(layer.forward(bottom), [bottom], [torch.from_numpy(numbers(*x.shape))])
    assert gradient.isfinite().all()


def test_batch_norm_takes_the_three_params_of_old_files(tmp_path: Path) -> None:
    net = layer_net(tmp_path, 'type: "BatchNorm" param { lr_mult: 1 } param {} param {}', x=numbers(2, 3))
    assert not list(net.learnt())
