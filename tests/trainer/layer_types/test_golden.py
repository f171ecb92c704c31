"""The contract of every layer type, over what BVLC Caffe 1.0 computed from the same numbers.

The tops and the gradients are Caffe's, also in place; the shapes are known before a forward; small differences of each
input show the same gradients; and what the table refuses stands in the catalogue of errors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobfeed.trainer.layer_types import LAYER_TYPES, REFUSALS, Generators, Layer
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import NetParameter, NetState, Phase, read_prototxt
from numpy.typing import NDArray
from torch.func import functional_call

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

FORWARD_ONLY = {"Embed-1", "Embed-2"}
"""Caffe ran no backward in these nets, in which nothing but the layer itself is learnt: differences have to do."""

Case = dict[str, NDArray[Any]]
Named = dict[str, torch.Tensor]


def cases_of(family: str) -> list[str]:
    types = FAMILIES[family].split()
    return sorted({key.partition("/")[0] for key in GOLDEN.files if key.partition("-")[0] in types})


def load(case: str) -> Case:
    return {key.partition("/")[2]: GOLDEN[key] for key in GOLDEN.files if key.partition("/")[0] == case}


def numbered(name: str, tensors: Iterable[torch.Tensor]) -> Named:
    return {f"{name}_{nth}": tensor for nth, tensor in enumerate(tensors)}


def check_case(case: str, folder: Path, *, in_place: bool = False) -> tuple[Layer, Named]:
    """Run the layer "it" forward and back; return it and its bottoms."""
    arrays = load(case)
    path = folder / f"{case}.prototxt"
    text = str(arrays["prototxt"])
    path.write_text(text.replace("top_0", "bottom_0") if in_place else text)
    document = read_prototxt(path, NetParameter)
    net = Net(document, NetState(Phase.TEST).merged(document.message.state), CPU, Generators.seeded(0, CPU))
    layer = net.layers["it"]
    weights = numbered("weight", layer.blobs)
    assert weights.keys() == {name for name in arrays if name.startswith("weight_") and name[7:].isdigit()}
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(torch.from_numpy(arrays[name]))
        for nth, blob in enumerate(layer.param.bottom):
            for below in net.layers.values():
                if below.param.top == [blob] and below.param.type == "Parameter":
                    below.blobs[0].copy_(torch.from_numpy(arrays[f"bottom_{nth}"]))
            net.blobs[blob].data[...] = arrays[f"bottom_{nth}"]
    shapes = [net.blobs[name].shape for name in layer.param.top]
    seen: list[torch.Tensor] = []
    layer.register_forward_pre_hook(lambda layer, bottoms: seen.extend(bottoms))
    net.forward()
    bottoms, tops = numbered("bottom", seen), numbered("top", [net.values[name] for name in layer.param.top])
    assert_alike(case, {name: top.detach() for name, top in tops.items()}, arrays)
    if layer.param.type != "Filter":  # it learns from its data how many rows it keeps
        assert shapes == [tuple(top.shape) for top in tops.values()], f"{case}: the shapes before forward"
    for name in [name for name in arrays if name.startswith("weight_after_")]:
        assert_alike(case, {name: weights[name.replace("after_", "")].detach()}, arrays)
    if case not in FORWARD_ONLY:
        check_backward(case, arrays, tops, {**bottoms, **weights})
    return layer, bottoms


def check_backward(case: str, arrays: Case, tops: Named, inputs: Named) -> None:
    """The gradients of `inputs` are Caffe's."""
    outputs = {name: top for name, top in tops.items() if top.requires_grad}
    inputs = {name.replace("_", "_diff_", 1): each for name, each in inputs.items() if each.requires_grad}
    inputs = {name: each for name, each in inputs.items() if name in arrays}
    expected = {name for name in arrays if "_diff_" in name and not name.startswith("top") and np.any(arrays[name])}
    assert expected <= inputs.keys()
    if inputs:
        diffs = [torch.from_numpy(arrays[name.replace("_", "_diff_", 1)]) for name in outputs]
        gradients = torch.autograd.grad(list(outputs.values()), list(inputs.values()), diffs)
        assert_alike(case, dict(zip(inputs, gradients, strict=True)), arrays)


def check_differences(case: str, layer: Layer, bottoms: Named) -> None:
    """The gradients of a weighted sum of the tops are what small steps of each input show."""
    inputs = [each.detach().clone().requires_grad_(each.requires_grad) for each in (*bottoms.values(), *layer.blobs)]
    draw = torch.Generator().manual_seed(0)

    def run(*inputs: torch.Tensor) -> Any:
        blobs = {str(nth): blob for nth, blob in enumerate(inputs[len(bottoms) :])}
        return functional_call(copy.deepcopy(layer), blobs, inputs[: len(bottoms)])  # of a copy, whose state goes on

    # Positions of maxima, exposed states and the like have no gradient.
    counted = [nth for nth, top in enumerate(run(*inputs)) if top.requires_grad]

    def objective(*inputs: torch.Tensor) -> torch.Tensor:
        tops = run(*inputs)
        return torch.stack([((nth + tops[nth].double()) ** 2).sum() for nth in counted]).sum()

    moved = [each for each in inputs if each.requires_grad]
    gradients = torch.autograd.grad(objective(*inputs), moved, allow_unused=True) if counted else ()
    for each, gradient in zip(moved, gradients, strict=False):
        if gradient is not None:  # labels, indices and the like have none
            step = 1e-3 * torch.randn(each.shape, generator=draw)
            with torch.no_grad():
                above, below = (
                    objective(*(own + sign * step if own is each else own for own in inputs)) for sign in (1, -1)
                )
            assert float(above - below) / 2 == pytest.approx(float((gradient * step).sum()), rel=0.03, abs=2e-5), case


def assert_alike(case: str, found: Named, expected: Case) -> None:
    for name, tensor in found.items():
        assert tuple(tensor.shape) == expected[name].shape, f"{case}: {name}"
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=1e-4, atol=1e-5, err_msg=f"{case}: {name}")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_layers_computes_what_caffe_computes(family: str, tmp_path: Path) -> None:
    cases = cases_of(family)
    assert {case.partition("-")[0] for case in cases} == set(FAMILIES[family].split())
    for case in cases:
        layer, bottoms = check_case(case, tmp_path)
        check_differences(case, layer, bottoms)
        if layer.in_place:
            check_case(case, tmp_path, in_place=True)


def test_all_layer_types_but_those_of_data_are_in_a_family() -> None:
    families = {name for names in FAMILIES.values() for name in names.split()}
    of_data = {"Data", "HDF5Data", "HDF5Output", "ImageData", "Input", "MemoryData", "Python"}
    assert LAYER_TYPES.keys() - families == of_data
    assert sum(len(cases_of(family)) for family in FAMILIES) == 122


def test_every_refusal_of_the_table_stands_in_the_catalogue() -> None:
    assert REFUSALS.keys() <= LAYER_TYPES.keys()
    messages = (Path(__file__).parents[1] / "errors.txt").read_text()
    texts = {text.partition("{")[0] for rows in REFUSALS.values() for _, _, text in rows}
    assert [text for text in sorted(texts) if text not in messages] == []
