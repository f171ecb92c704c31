"""Layers written in Python meet what Caffe promises them."""

from __future__ import annotations

import gc
import pickle
import traceback
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from blobfeed.trainer.layer_types import PythonLayer
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import Phase, PrototxtError

from tests.support.trainer_nets import make_net, with_inputs

RECORDER = """
class Recorder:
    def __init__(self, layer_param):
        self.calls = ["__init__"]
        assert layer_param.type == "Python"
        assert not hasattr(self, "param_str")

    def setup(self, bottom, top):
        self.calls.append(("setup", self.param_str, self.phase, str(self.base_dir), self.device, len(bottom), len(top)))

    def reshape(self, bottom, top):
        self.calls.append("reshape")
        top[0].reshape(3 + self.calls.count("reshape"), 2)

    def forward(self, bottom, top):
        self.calls.append(("forward", top[0].shape))
        top[0].data[...] = 1

    def backward(self, top, propagate_down, bottom):
        self.calls.append("backward")

    def close(self):
        self.calls.append("close")
"""


def python_layer(layer: str, more: str = "", wiring: str = 'top: "y"', name: str = "p") -> str:
    param = f'python_param {{ module: "mine" layer: "{layer}" {more} }}'
    return f'layer {{ name: "{name}" type: "Python" {wiring}\n{param} }}\n'


def user_layer(net: Net, name: str = "p") -> object:
    layer = net.layers[name]
    assert isinstance(layer, PythonLayer)
    return layer.user_layer


def test_the_layer_goes_with_its_net_at_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECORDER)
    net = make_net(tmp_path, python_layer("Recorder"))
    net.forward()
    layer = weakref.ref(user_layer(net))
    gc.disable()  # else a loader that it holds would run until some collection
    try:
        del net
        assert layer() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("phase", [Phase.TRAIN, Phase.TEST])
def test_a_layer_is_called_in_caffes_order(tmp_path: Path, phase: Phase) -> None:
    (tmp_path / "mine.py").write_text(RECORDER)
    net = make_net(tmp_path, python_layer("Recorder", 'param_str: "some: text"'), phase)
    calls = user_layer(net).calls  # type: ignore[attr-defined]
    assert calls == ["__init__", ("setup", "some: text", int(phase), str(tmp_path), "cpu", 0, 1), "reshape"]
    assert net.blobs["y"].shape == (4, 2)
    net.forward()
    net.forward()
    assert calls[3:] == ["reshape", ("forward", (5, 2)), "reshape", ("forward", (6, 2))]
    net.close()
    assert calls[-1] == "close"


def test_param_str_is_empty_where_none_is_given(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECORDER)
    assert user_layer(make_net(tmp_path, python_layer("Recorder"))).param_str == ""  # type: ignore[attr-defined]


def test_a_layer_with_slots_gets_what_its_slots_hold(tmp_path: Path) -> None:
    hooks = "setup = reshape = forward = backward = lambda self, *blobs: None"
    (tmp_path / "mine.py").write_text(
        "class Slim:\n    __slots__ = ('param_str', 'phase')\n    def __init__(self, layer_param): pass\n    " + hooks
    )
    net = make_net(tmp_path, python_layer("Slim", wiring=""))
    assert user_layer(net).phase == 0  # type: ignore[attr-defined]


def test_the_memory_of_a_top_stays_over_iterations(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECORDER.replace('3 + self.calls.count("reshape")', "4"))
    # A layer in place shows its result under the same name: the data layer must find its own memory again.
    text = python_layer("Recorder") + 'layer { name: "r" type: "Sigmoid" bottom: "y" top: "y" }'
    net = make_net(tmp_path, text)
    address = net.blobs["y"].data.data_ptr()
    for _ in range(3):
        net.forward()
        assert net.blobs["y"].data.tolist() == [[pytest.approx(0.7310586)] * 2] * 4
        net.blobs["y"].own()
        assert net.blobs["y"].data.data_ptr() == address


# The loss layer that Caffe's own examples have: half the mean of the squared distance, in NumPy.
DISTANCE = """
import numpy as np

class Distance:
    def __init__(self, layer_param): pass

    def setup(self, bottom, top):
        if len(bottom) != 2:
            raise ValueError("needs two bottoms")

    def reshape(self, bottom, top):
        self.difference = np.zeros(bottom[0].shape, np.float32)
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.difference[...] = bottom[0].data - bottom[1].data
        top[0].data[...] = np.sum(self.difference ** 2) / bottom[0].num / 2
        self.weight = None

    def backward(self, top, propagate_down, bottom):
        self.propagated = propagate_down
        self.weight = float(top[0].diff[0])
        for i, sign in enumerate((1, -1)):
            if propagate_down[i]:
                bottom[i].diff[...] = self.weight * sign * self.difference / bottom[0].num
"""

DOUBLE = """
class Double:
    def __init__(self, layer_param): pass
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top): top[0].data[...] = 2 * bottom[0].data
    def backward(self, top, propagate_down, bottom): bottom[0].diff[...] = 2 * top[0].diff
"""

OWN_DIFFS = """
class Stop:
    def __init__(self, layer_param): pass
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top): top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom): pass

class Minus(Stop):
    def forward(self, bottom, top): top[0].data[...] = bottom[0].data - 3 * bottom[1].data
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff
        bottom[1].diff[...] = -3 * top[0].diff
"""

# A factor for each number, learnt; its gradient is added to what is there, as Caffe's own layers do.
FACTOR = """
class Factor:
    def __init__(self, layer_param): pass

    def setup(self, bottom, top):
        self.blobs.add_blob(*bottom[0].shape[1:])
        self.blobs[0].data[...] = 1.5

    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        self.kept = bottom[0].data.clone()
        top[0].data[...] = bottom[0].data * self.blobs[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += (top[0].diff * self.kept).sum(0)
        bottom[0].diff[...] = top[0].diff * self.blobs[0].data
"""

ARRAYS = """
import numpy as np

class Clipped:
    takes_arrays = True

    def __init__(self, layer_param): pass
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        assert type(bottom[0].data) is type(top[0].data) is np.ndarray
        self.passed = np.abs(bottom[0].data) < 0.2
        top[0].data[...] = bottom[0].data.clip(-0.2, 0.2)

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff * self.passed

class FactorOfArrays(Factor):
    takes_arrays = True

    def forward(self, bottom, top):
        self.kept = bottom[0].data.copy()
        top[0].data[...] = bottom[0].data * self.blobs[0].data.astype("f4")
"""

TWO_LINEAR = with_inputs(
    """
    layer { name: "a" type: "InnerProduct" bottom: "x" top: "a"
            inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
    layer { name: "b" type: "InnerProduct" bottom: "x" top: "b"
            inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
    """,
    x=(4, 2),
)


def gradients(net: Net) -> dict[str, torch.Tensor]:
    """The gradients of a forward and backward, by layer and number, added to those of earlier ones."""
    net.blobs["x"].data[...] = np.random.default_rng(0).normal(size=(4, 2))
    torch.autograd.backward(net.objective())
    found = {f"{name}.{nth}": blob.grad for name in "abp" for nth, blob in enumerate(net.layers[name].blobs)}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def loss(bottom: str, weight: float = 1) -> str:
    wiring = f'bottom: "{bottom}" bottom: "b" top: "loss" loss_weight: {weight}'
    return f'layer {{ name: "loss" type: "EuclideanLoss" {wiring} }}'


def built_in(kind: str, options: str, wiring: str = 'bottom: "a" top: "y"') -> str:
    return f'layer {{ name: "p" type: "{kind}" {wiring} {options} }}'


LOSS = 'bottom: "a" bottom: "b" top: "l" loss_weight: 3'
IN_PLACE = python_layer("Double", wiring='bottom: "y" top: "y"', name="q")
FACTORS = 'bottom: "a" top: "{0}" param {{ lr_mult: 1 }}'.format

# Layers in Python, and built-in ones that do the same.
ALIKE = {
    "a loss": (python_layer("Distance", wiring=LOSS), built_in("EuclideanLoss", "", LOSS)),
    "in the middle": (
        python_layer("Double", wiring='bottom: "a" top: "y"') + loss("y"),
        built_in("Eltwise", 'bottom: "a"') + loss("y"),
    ),
    "two with one bottom": (
        python_layer("Distance", wiring=LOSS.replace("3", "1"))
        + python_layer("Distance", wiring=LOSS.replace("3", "2").replace('"l"', '"m"'), name="q"),
        built_in("EuclideanLoss", "", LOSS),
    ),
    # Its `diff` of `a` is not the one that the loss has written.
    "a backward that writes nothing": (
        python_layer("Distance", wiring=LOSS)
        + python_layer("Stop", wiring='bottom: "a" top: "y" loss_weight: 1', name="q"),
        built_in("EuclideanLoss", "", LOSS),
    ),
    "one blob as two bottoms": (
        python_layer("Minus", wiring='bottom: "a" bottom: "a" top: "y" loss_weight: 1'),
        built_in("Power", "power_param { scale: -2 } loss_weight: 1"),
    ),
    # The first layer's backward needs what it has made.
    "in place": (
        python_layer("Double", wiring='bottom: "a" top: "y"') + IN_PLACE + loss("y"),
        built_in("Power", "power_param { scale: 4 }") + loss("y"),
    ),
    "in place behind Scale": (
        python_layer("Double", wiring='bottom: "a" top: "y"')
        + 'layer { name: "s" type: "Scale" bottom: "y" top: "y" }'
        + IN_PLACE
        + loss("y"),
        built_in("Power", "power_param { scale: 4 }") + loss("y"),
    ),
    **{
        f"with learnt blobs, {name}, {top}": (
            python_layer(name, wiring=FACTORS(top)) + loss(top),
            built_in("Scale", "scale_param { filler { value: 1.5 } }", FACTORS(top)) + loss(top),
        )
        for name in ("Factor", "FactorOfArrays")
        for top in "ya"
    },
    **{
        f"of arrays, {top}": (
            python_layer("Clipped", wiring=f'bottom: "a" top: "{top}"') + loss(top),
            built_in("Clip", "clip_param { min: -0.2 max: 0.2 }", f'bottom: "a" top: "{top}"') + loss(top),
        )
        for top in "ya"
    },
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_layer_in_python_trains_as_the_built_in_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.py").write_text(DISTANCE + DOUBLE + OWN_DIFFS + FACTOR + ARRAYS)
    own, other = (make_net(tmp_path, TWO_LINEAR + layers) for layers in ALIKE[name])
    for _ in range(2):  # a second time: the memory is written over by then
        found, expected = gradients(own), gradients(other)
        assert found.keys() == expected.keys() >= {"a.0", "a.1"}
        for each, gradient in expected.items():
            torch.testing.assert_close(found[each], gradient)


def test_backward_is_asked_only_for_bottoms_that_depend_on_weights(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DISTANCE)
    text = with_inputs("", z=(4, 3)) + TWO_LINEAR
    net = make_net(
        tmp_path, text + python_layer("Distance", wiring='bottom: "z" bottom: "b" top: "loss" loss_weight: 1')
    )
    assert gradients(net).keys() == {"b.0", "b.1"}
    layer = user_layer(net)
    assert (layer.weight, layer.propagated) == (1, [False, True])  # type: ignore[attr-defined]
    difference = net.values["z"] - net.values["b"]
    torch.testing.assert_close(net.values["loss"], difference.square().sum().reshape(1) / 8)


@pytest.mark.parametrize("hook", ["__init__", "setup", "reshape", "forward", "backward"])
def test_an_exception_of_a_layer_arrives_as_it_is_with_a_note_of_the_layer(tmp_path: Path, hook: str) -> None:
    text = DISTANCE.replace(f"def {hook}(self", f"def {hook}(self, *rest):\n        return 1 / 0\n    def spare(self")
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ZeroDivisionError) as caught:
        gradients(
            make_net(
                tmp_path,
                TWO_LINEAR + python_layer("Distance", wiring='bottom: "a" bottom: "b" top: "l" loss_weight: 1'),
            )
        )
    assert caught.value.__notes__ == [f"in {hook}, {tmp_path / 'net.prototxt'}:7:5: layer 'p'"]
    assert "mine.py" in "".join(traceback.format_exception(caught.value))


def test_a_module_that_fails_says_for_which_layer(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError) as caught:
        make_net(tmp_path, python_layer("Recorder"))
    assert caught.value.__notes__ == [f"in the import of 'mine', {tmp_path / 'net.prototxt'}:1:1: layer 'p'"]


def test_a_module_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "mine.py").write_text(RECORDER)
    monkeypatch.chdir(tmp_path)
    assert user_layer(make_net(tmp_path / "nets", python_layer("Recorder"))).phase == 0  # type: ignore[attr-defined]


def test_what_is_already_running_is_closed_when_a_later_layer_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECORDER + "        closed.append(self)\nclosed = []\n")
    with pytest.raises(PrototxtError):
        make_net(tmp_path, python_layer("Recorder") + 'layer { name: "i" type: "InnerProduct" bottom: "y" top: "z" }')
    import mine  # type: ignore[import-not-found]

    assert len(mine.closed) == 1


def test_a_layer_may_send_its_blobs_to_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FACTOR)
    net = make_net(tmp_path, TWO_LINEAR + python_layer("Factor", wiring='bottom: "a" top: "y"'))
    blobs = pickle.loads(pickle.dumps(user_layer(net).blobs))  # type: ignore[attr-defined]
    assert [tuple(blob.shape) for blob in blobs] == [net.layers["p"].blobs[0].shape]
    assert (blobs[0].data == 1.5).all()


def test_a_test_net_uses_the_learnt_blobs_of_the_train_net(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FACTOR)
    text = TWO_LINEAR + python_layer("Factor", wiring='bottom: "a" top: "y"')
    train, test = make_net(tmp_path, text), make_net(tmp_path, text, Phase.TEST)
    test.share_weights(train)
    with torch.no_grad():
        train.layers["p"].blobs[0].fill_(0)
    test.blobs["x"].data[...] = 1
    test.forward()
    assert not test.blobs["y"].data.any()


def test_a_layer_of_ours_may_ask_for_arrays_too(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.uint8).reshape(2, 3))
    (tmp_path / "mine.py").write_text("""
from blobfeed.layers import MultiProcessInputLayer

class Reversed(MultiProcessInputLayer):
    takes_arrays = True

    def forward(self, bottom, top):
        super().forward(bottom, top)
        top[0].data[...] = top[0].data[:, ::-1].copy()
""")
    net = make_net(
        tmp_path,
        python_layer("Reversed", 'param_str: "{source: {npy: {y: x.npy}}, tops: y, batch_size: 2, num_loaders: 0}"'),
    )
    net.forward()
    assert net.blobs["y"].data.tolist() == [[2, 1, 0], [5, 4, 3]]
    net.close()
