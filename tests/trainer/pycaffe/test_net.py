"""Nets run from Python as scripts for pycaffe do it."""

from __future__ import annotations

import itertools
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.trainer.pycaffe import Net
from numpy.typing import ArrayLike, NDArray

from tests.support.trainer_nets import with_inputs, write_project

TRAIN, TEST = 0, 1

# conv → relu in place → two takers, so that their gradients add up.
BRANCHES = with_inputs(
    """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "left" type: "InnerProduct" bottom: "conv" top: "left"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "right" type: "InnerProduct" bottom: "conv" top: "right"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "left" bottom: "right" top: "sum" }
layer { name: "prob" type: "Softmax" bottom: "sum" top: "prob" }
""",
    data=(2, 1, 6, 6),
)


def write(folder: Path, text: str = BRANCHES) -> str:
    (folder / "branches.prototxt").write_text("force_backward: true\n" + text)
    return str(folder / "branches.prototxt")


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(found: ArrayLike, expected: ArrayLike, name: str = "") -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.fixture(params=[False, True], ids=["the net's memory", "copies"])
def in_either_memory(request: pytest.FixtureRequest) -> None:
    if request.param:
        request.getfixturevalue("arrays_are_copies")


def test_a_net_lists_its_layers_and_blobs(tmp_path: Path) -> None:
    net = Net(write(tmp_path), TEST)
    assert (net.inputs, net.outputs) == (["data"], ["prob"])
    assert list(net.blobs) == ["data", "conv", "left", "right", "sum", "prob"]
    assert {name: [blob.shape for blob in blobs] for name, blobs in net.params.items()} == {
        "conv": [(4, 1, 3, 3), (4,)],
        "left": [(3, 64), (3,)],
        "right": [(3, 64), (3,)],
    }
    assert net._layer_names == ["data", "conv", "relu", "left", "right", "sum", "prob"]
    assert net.top_names["relu"] == net.bottom_names["relu"] == ["conv"]
    assert [layer.type for layer in net.layers][1:3] == ["Convolution", "ReLU"]
    assert net.layer_dict["conv"].blobs is net.params["conv"]
    weights = net.params["conv"][0]
    assert (weights.count, weights.num, weights.channels, weights.height, weights.width) == (36, 4, 1, 3, 3)


@pytest.mark.usefixtures("in_either_memory")
def test_what_is_written_to_a_blob_counts_when_the_rest_of_the_net_runs(tmp_path: Path) -> None:
    net = Net(write(tmp_path), TEST)
    whole = net.forward(data=drawn(2, 1, 6, 6))["prob"].copy()
    first = net.forward(end="relu")
    assert list(first) == ["conv"]
    close(net.forward(start="left")["prob"], whole)
    net.blobs["conv"].data[...] = 0
    for name in ("left", "right"):
        net.params[name][1].data[...] = [0, 1, 2]
    expected = np.exp([0, 2, 4]) / np.exp([0, 2, 4]).sum()
    close(net.forward(start="left", blobs=["sum"])["prob"], [expected, expected])
    close(net.forward(start="left", blobs=["sum"])["sum"], [[0, 2, 4]] * 2)


def test_what_is_written_to_a_constant_of_dummy_data_stays_there(tmp_path: Path) -> None:
    text = """layer { name: "d" type: "DummyData" top: "x" top: "noise" dummy_data_param {
                shape { dim: [2, 3] } shape { dim: 2 } data_filler { value: 4 } data_filler { type: "uniform" } } }
              layer { name: "y" type: "Power" bottom: "x" top: "y" power_param { scale: 10 } }"""
    net = Net(write(tmp_path, text), TEST)
    assert (net.forward()["y"] == 40).all()
    net.blobs["x"].data[...] = [[1, 2, 3], [4, 5, 6]]
    for _ in range(2):
        assert net.forward()["y"].tolist() == [[10, 20, 30], [40, 50, 60]]
    net.blobs["x"].reshape(1, 3)
    assert net.forward()["y"].tolist() == [[10, 20, 30]]


@pytest.mark.parametrize(
    "source",
    ['type: "Input" input_param { shape { dim: 2 } }', 'type: "DummyData" dummy_data_param { shape { dim: 2 } }'],
)
def test_what_is_written_to_an_input_counts_also_if_a_layer_works_in_place_there(tmp_path: Path, source: str) -> None:
    text = f"""layer {{ name: "x" top: "x" {source} }}
               layer {{ name: "scaled" type: "Power" bottom: "x" top: "x" power_param {{ scale: 10 }} }}
               layer {{ name: "y" type: "Power" bottom: "x" top: "y" }}"""
    net = Net(write(tmp_path, text), TEST)
    for number in (1, 2, 3):
        net.blobs["x"].data[...] = number
        assert net.forward()["y"].tolist() == [10 * number, 10 * number]


STOPPED = BRANCHES.replace('name: "relu"', 'name: "relu" propagate_down: false')
PARTS = {
    "with force_backward": ("force_backward: true\n" + BRANCHES, "conv"),
    "without": (BRANCHES, "conv"),
    "before a layer that passes no gradient": (STOPPED, "relu"),
    "behind it": (STOPPED, "left"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_net_goes_back_as_the_whole_does(tmp_path: Path, name: str) -> None:
    text, start = PARTS[name]
    (tmp_path / "net.prototxt").write_text(text)
    whole, part = nets = [Net(tmp_path / "net.prototxt", TEST) for _ in range(2)]
    part.share_with(whole)
    whole.forward(data=drawn(2, 1, 6, 6))
    for blob, array in part.blobs.items():
        array.data[...] = whole.blobs[blob].data
    part.forward(start=start)
    for net in nets:
        net.clear_param_diffs()
        net.blobs["prob"].diff[...] = drawn(2, 3)
        net.backward(end=start)
    assert whole.blobs["left"].diff.any()
    for blob, array in part.blobs.items():
        np.testing.assert_array_equal(array.diff, whole.blobs[blob].diff, err_msg=blob)
    for layer, weights in part.params.items():
        np.testing.assert_array_equal(weights[0].diff, whole.params[layer][0].diff)


def test_weights_are_written_through_a_flat_view_of_them(tmp_path: Path) -> None:
    net = Net(write(tmp_path, BRANCHES.replace("dim: 2 dim: 1", "dim: 2 dim: 3")), TEST)
    weights = net.params["conv"][0].data
    assert weights.shape == (4, 3, 3, 3)
    weights.reshape(-1)[:] = np.arange(108)
    close(net.params["conv"][0].data.ravel(), np.arange(108))


def test_a_bottom_gets_a_gradient_if_its_layer_says_propagate_down(tmp_path: Path) -> None:
    text = """layer { name: "twice" type: "Power" bottom: "x" top: "twice" power_param { scale: 2 } DOWN }
        layer { name: "sum" type: "Reduction" bottom: "twice" top: "sum" loss_weight: 1 }"""
    for down, expected in (("propagate_down: true", 2), ("propagate_down: false", 0), ("", 0)):
        path = tmp_path / "down.prototxt"
        path.write_text(with_inputs(text.replace("DOWN", down), x=(2, 3)))
        net = Net(path, TEST)
        net.forward(x=drawn(2, 3))
        net.backward()
        close(net.blobs["x"].diff, np.full((2, 3), expected))


@pytest.mark.usefixtures("in_either_memory")
def test_a_gradient_written_to_a_blob_goes_back_from_there(tmp_path: Path) -> None:
    net = Net(write(tmp_path), TEST)
    net.forward(data=drawn(2, 1, 6, 6))
    diff = drawn(2, 3, seed=1)
    net.blobs["sum"].diff[...] = diff
    found = net.backward(start="sum", end="relu", diffs=["left"])
    close(found["left"], diff)
    after_relu = (diff @ (net.params["left"][0].data + net.params["right"][0].data)).reshape(2, 4, 4, 4)
    close(found["conv"], after_relu * (net.blobs["conv"].data > 0))
    through = net.backward(start="sum")["data"].copy()
    assert np.any(through)
    net.blobs["conv"].diff[...] = found["conv"]
    close(net.backward(start="conv")["data"], through)


@pytest.mark.usefixtures("in_either_memory")
def test_gradients_of_weights_add_up_until_they_are_cleared(tmp_path: Path) -> None:
    net = Net(write(tmp_path), TEST)
    net.forward(data=drawn(2, 1, 6, 6))
    net.backward(prob=drawn(2, 3))
    once = net.params["left"][0].diff.copy()
    assert np.any(once)
    net.backward(prob=drawn(2, 3))
    close(net.params["left"][0].diff, 2 * once)
    net.clear_param_diffs()
    assert not np.any(net.params["left"][0].diff)


def test_a_loss_begins_with_its_weight_also_if_a_layer_takes_it(tmp_path: Path) -> None:
    text = (
        BRANCHES
        + 'layer { name: "loss" type: "EuclideanLoss" bottom: "sum" bottom: "left" top: "loss" loss_weight: 3 }'
        + 'layer { name: "twice" type: "Power" bottom: "loss" top: "twice" power_param { scale: 2 } loss_weight: 1 }'
    )
    net = Net(write(tmp_path, text), TRAIN)
    net.forward(data=drawn(2, 1, 6, 6))
    assert net.blobs["loss"].diff == 3
    net.backward()
    assert net.blobs["loss"].diff == 3 + 2
    close(net.blobs["right"].diff, 5 * (net.blobs["sum"].data - net.blobs["left"].data) / 2)


def test_pooling_of_the_whole_follows_every_reshape(tmp_path: Path) -> None:
    pool = 'layer { name: "p" type: "Pooling" bottom: "data" top: "p" pooling_param { global_pooling: true } }'
    net = Net(write(tmp_path, with_inputs(pool, data=(2, 1, 6, 6))), TEST)
    rows = drawn(2, 1, 6, 6)
    net.forward(data=rows)
    net.blobs["data"].reshape(2, 1, 3, 3)
    net.reshape()
    net.blobs["data"].reshape(2, 1, 6, 6)
    close(net.forward(data=rows)["p"], rows.max((2, 3), keepdims=True))


def test_all_rows_go_forward_and_back_in_batches_of_the_net(tmp_path: Path) -> None:
    net = Net(write(tmp_path), TEST)
    rows, diffs = drawn(5, 1, 6, 6), drawn(5, 3, seed=1)
    outputs, gradients = net.forward_backward_all(blobs=["sum"], diffs=["conv"], data=rows, prob=diffs)
    assert {name: array.shape for name, array in outputs.items()} == {"prob": (5, 3), "sum": (5, 3)}
    assert {name: array.shape for name, array in gradients.items()} == {"data": rows.shape, "conv": (5, 4, 4, 4)}
    close(outputs["prob"], net.forward_all(data=rows)["prob"])
    net.forward(data=rows[2:4])
    close(gradients["data"][2:4], net.backward(prob=diffs[2:4])["data"])
    assert net.forward_all(data=rows, blobs=["left"])["left"].shape == (5, 3)
    net.blobs["data"].reshape(5, 1, 6, 6)
    net.reshape()
    assert net.blobs["prob"].shape == (5, 3)
    close(net.forward(data=rows)["prob"], outputs["prob"])


@pytest.mark.parametrize(
    "layer", ['type: "Slice" top: "b"', 'type: "Crop" bottom: "z" crop_param { axis: 1 }', 'type: "Dropout"']
)
def test_what_is_written_to_a_top_does_not_reach_the_bottom(tmp_path: Path, layer: str) -> None:
    text = f'layer {{ name: "l" bottom: "x" top: "a" {layer} }}'
    net = Net(write(tmp_path, with_inputs(text, x=(1, 4), z=(1, 2))), TEST)
    net.forward(x=np.ones((1, 4)), z=np.ones((1, 2)))
    net.blobs["a"].data[...] = 0
    assert np.all(net.blobs["x"].data == 1)


def test_a_net_that_feeds_itself_takes_no_arrays_and_tells_its_loss_weights(tmp_path: Path) -> None:
    write_project(tmp_path)
    net = Net(tmp_path / "net.prototxt", TRAIN)
    weights = {name: weight for name, weight in net.blob_loss_weights.items() if weight}
    assert (list(net.blob_loss_weights), weights) == (list(net.blobs), {"loss": 1.0})


def test_weights_are_saved_copied_and_shared(tmp_path: Path) -> None:
    net = Net(write(tmp_path), TEST)
    forms = (
        (net.save, "w.caffemodel"),
        (net.save, "w.caffemodel.h5"),
        (net.save_hdf5, "w.hdf5"),
        (net.save_hdf5, "w.pt"),
    )
    for save, name in forms:
        save(str(tmp_path / name))
        assert h5py.is_hdf5(tmp_path / name) == ("h" in Path(name).suffix or save == net.save_hdf5)
        for other in (
            Net(write(tmp_path), str(tmp_path / name), TEST),
            Net(write(tmp_path), TEST, weights=tmp_path / name),
        ):
            np.testing.assert_array_equal(other.params["conv"][0].data, net.params["conv"][0].data)
    other = Net(write(tmp_path), phase=TEST)
    other.share_with(net)
    net.params["conv"][0].data[...] = 5
    assert np.all(other.params["conv"][0].data == 5)
    other.forward(data=drawn(2, 1, 6, 6))
    close(other.blobs["prob"].data, net.forward(data=drawn(2, 1, 6, 6))["prob"])


@pytest.mark.usefixtures("arrays_are_copies")
def test_what_was_written_by_way_of_one_net_is_seen_by_all_that_share_the_weights(tmp_path: Path) -> None:
    first, second, third = nets = [Net(write(tmp_path), TEST) for _ in range(3)]
    second.params["left"][0].data[...] = 4
    first.share_with(second)
    assert np.all(first.params["left"][0].data == 4)
    third.share_with(second)
    for value, (net, other) in enumerate(itertools.permutations(nets, 2)):
        net.params["left"][0].data[...] = value
        other.forward()
        assert all(np.all(each.params["left"][0].data == value) for each in nets)


@pytest.mark.usefixtures("arrays_are_copies")
def test_a_reshape_of_the_net_gives_the_arrays_their_new_shapes(tmp_path: Path) -> None:
    net = Net(write(tmp_path), TEST)
    net.blobs["prob"].data[...] = 0
    net.blobs["data"].reshape(5, 1, 6, 6)
    net.reshape()
    assert net.blobs["prob"].data.shape == (5, 3)


def test_python_layers_are_the_very_objects(tmp_path: Path) -> None:
    write_project(tmp_path)
    net = Net(tmp_path / "net.prototxt", TEST)
    assert set(net.forward()) == {"accuracy", "loss"}
    assert type(net.layer_dict["data"]).__name__ == "Batches"
    assert net.layers[0].at == 8
    net.reshape()
    net.close()


SIAMESE = with_inputs(
    """
layer { name: "first" type: "InnerProduct" bottom: "x" top: "first" param { name: "w" }
        inner_product_param { num_output: 3 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "second" type: "InnerProduct" bottom: "first" top: "second" param { name: "w" }
        inner_product_param { num_output: 3 bias_term: false } }
layer { name: "third" type: "Power" bottom: "second" top: "third" power_param { power: 2 } }
""",
    x=(2, 3),
)


def test_gradients_end_where_backward_ends_and_cross_to_layers_of_an_earlier_forward(tmp_path: Path) -> None:
    net = Net(write(tmp_path, SIAMESE), TEST)
    weights, x, y = net.params["first"][0], drawn(2, 3), drawn(2, 3, seed=1)
    net.forward(x=x)
    net.backward(third=np.ones((2, 3)), end="second")  # ends at "first", which has the same weights
    second_diff = 2 * net.blobs["second"].data
    close(weights.diff, second_diff.T @ net.blobs["first"].data)
    net.blobs["first"].data[...] = y
    net.forward(start="second")  # these layers have seen another "first" than that layer has made
    net.clear_param_diffs()
    net.backward(third=np.ones((2, 3)))
    second_diff = 2 * y @ weights.data.T
    first_diff = second_diff @ weights.data
    close(weights.diff, second_diff.T @ y + first_diff.T @ x)
    close(net.blobs["x"].diff, first_diff @ weights.data)


def test_backward_before_any_forward_goes_over_the_blobs_as_they_are(tmp_path: Path) -> None:
    nets = [Net(write(tmp_path), TEST) for _ in range(2)]
    nets[1].share_with(nets[0])
    for net, runs in zip(nets, (True, False), strict=True):
        net.blobs["data"].data[...] = drawn(2, 1, 6, 6)
        if runs:
            net.forward()
        net.blobs["prob"].diff[...] = drawn(2, 3, seed=1)
        net.backward()
    assert np.any(nets[0].blobs["data"].diff)
    np.testing.assert_array_equal(nets[1].blobs["data"].diff, nets[0].blobs["data"].diff)


MEMORY = """
layer { name: "m" type: "MemoryData" top: "data" top: "label"
  memory_data_param { batch_size: 2 channels: 1 height: 2 width: 3 } }
layer { name: "double" type: "Power" bottom: "data" top: "twice" power_param { scale: 2 } }
"""


def test_memory_data_gives_the_arrays_batch_by_batch_and_begins_again(tmp_path: Path) -> None:
    net = Net(write(tmp_path, MEMORY), TEST)
    data = np.arange(24, dtype=np.float32).reshape(4, 1, 2, 3)
    for labels in (np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)):
        net.set_input_arrays(data, labels)
        for first in (0, 2, 0):
            found = net.forward()
            np.testing.assert_array_equal(found["twice"], 2 * data[first : first + 2])
            np.testing.assert_array_equal(found["label"], [first, first + 1])
