"""Every layer type computes what BVLC Caffe 1.0 computed from the same numbers: forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobfeed.trainer.layer_types.layer import LAYER_TYPES, Generators
from blobfeed.trainer.net.graph import Net
from blobfeed.trainer.prototxt.phases import State
from blobfeed.trainer.prototxt.prototxt import read_prototxt
from blobfeed.trainer.prototxt.schema import NetParameter, Phase
from numpy.typing import NDArray

from tests.support.trainer_nets import CPU

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "layers.npz")

FAMILIES = {
    "activations": "AbsVal BNLL Clip Dropout ELU Exp Log PReLU Power ReLU Sigmoid Swish TanH Threshold",
    "convolution": "Convolution Deconvolution Im2col",
    "inner_product": "Embed InnerProduct",
    "inputs": "DummyData Parameter Silence",
    "losses": "Accuracy ContrastiveLoss EuclideanLoss HingeLoss InfogainLoss MultinomialLogisticLoss "
    "SigmoidCrossEntropyLoss SoftmaxWithLoss",
    "normalization": "BatchNorm Bias LRN MVN Scale Softmax",
    "pooling": "Pooling SPP",
    "recurrent": "LSTM LSTMUnit RNN",
    "shaping": "ArgMax BatchReindex Concat Crop Eltwise Filter Flatten Reduction Reshape Slice Split Tile",
}

# Caffe ran no backward in these nets, in which nothing but the layer itself is learnt: test_layers has their gradient.
FORWARD_ONLY = {"Embed-1", "Embed-2"}

Case = dict[str, NDArray[Any]]


def cases_of(family: str) -> list[str]:
    types = FAMILIES[family].split()
    return sorted({key.partition("/")[0] for key in GOLDEN.files if key.partition("-")[0] in types})


def load(case: str) -> Case:
    return {key.partition("/")[2]: GOLDEN[key] for key in GOLDEN.files if key.partition("/")[0] == case}


def check_case(case: str, folder: Path) -> None:
    arrays = load(case)
    path = folder / f"{case}.prototxt"
    path.write_text(str(arrays["prototxt"]))
    document = read_prototxt(path, NetParameter)
    net = Net(document, State(Phase.TEST).merged(document.message.state), CPU, Generators.seeded(0, CPU))
    layer = net.layers["it"]
    weights = {f"weight_{nth}": weights for nth, weights in enumerate(layer.blobs)}
    assert weights.keys() == {name for name in arrays if name.startswith("weight_") and name[7:].isdigit()}
    bottoms = {f"bottom_{nth}": name for nth, name in enumerate(layer.param.bottom)}
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(torch.from_numpy(arrays[name]))
        for name, blob in bottoms.items():
            for below in net.layers.values():
                if below.param.top == [blob] and below.param.type == "Parameter":
                    below.blobs[0].copy_(torch.from_numpy(arrays[name]))
            net.blobs[blob].data[...] = arrays[name]
    shapes = [net.blobs[name].shape for name in layer.param.top]
    net.forward()
    tops = {f"top_{nth}": net.values[name] for nth, name in enumerate(layer.param.top)}
    assert_alike(case, {name: top.detach() for name, top in tops.items()}, arrays)
    if layer.param.type != "Filter":  # it learns from its data how many rows it keeps
        assert shapes == [tuple(top.shape) for top in tops.values()], f"{case}: the shapes before forward"
    for name in [name for name in arrays if name.startswith("weight_after_")]:
        assert_alike(case, {name: weights[name.replace("after_", "")].detach()}, arrays)
    if case not in FORWARD_ONLY:
        check_backward(case, arrays, tops, {name: net.values[blob] for name, blob in bottoms.items()}, weights)


def check_backward(
    case: str,
    arrays: Case,
    tops: dict[str, torch.Tensor],
    bottoms: dict[str, torch.Tensor],
    weights: dict[str, torch.Tensor],
) -> None:
    outputs = {name: top for name, top in tops.items() if top.requires_grad}
    inputs = {
        name.replace("_", "_diff_", 1): tensor
        for name, tensor in {**bottoms, **weights}.items()
        if tensor.requires_grad and name.replace("_", "_diff_", 1) in arrays
    }
    expected = {name for name in arrays if "_diff_" in name and not name.startswith("top") and np.any(arrays[name])}
    assert expected <= inputs.keys()
    if inputs:
        diffs = [torch.from_numpy(arrays[name.replace("_", "_diff_", 1)]) for name in outputs]
        gradients = torch.autograd.grad(list(outputs.values()), list(inputs.values()), diffs)
        assert_alike(case, dict(zip(inputs, gradients, strict=True)), arrays)


def assert_alike(case: str, found: dict[str, torch.Tensor], expected: Case) -> None:
    for name, tensor in found.items():
        assert tuple(tensor.shape) == expected[name].shape, f"{case}: {name}"
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=1e-4, atol=1e-5, err_msg=f"{case}: {name}")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_layers_computes_what_caffe_computes(family: str, tmp_path: Path) -> None:
    cases = cases_of(family)
    assert {case.partition("-")[0] for case in cases} == set(FAMILIES[family].split())
    for case in cases:
        check_case(case, tmp_path)


def test_all_layer_types_but_those_of_data_are_in_a_family() -> None:
    families = {name for names in FAMILIES.values() for name in names.split()}
    of_data = {"Data", "HDF5Data", "HDF5Output", "ImageData", "Input", "MemoryData", "Python", "WindowData"}
    assert LAYER_TYPES.keys() - families == of_data
    assert sum(len(cases_of(family)) for family in FAMILIES) == 122
