"""The net is a torch module: parameters, state_dict, hooks, optimizers, DDP, compile and export work with it."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from blobfeed.tools.convert import convert
from blobfeed.trainer import Net
from blobfeed.trainer.layer_types import gradient_of
from blobfeed.trainer.net import write_weights
from blobfeed.trainer.solving import Solver
from torch import Tensor, nn

from blobfeed import BatchReader
from tests.support.papers import caffenet, lenet
from tests.support.trainer_nets import SMALL_NET, with_inputs, write_project

CLASSIFIER = with_inputs(
    """
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } }
}
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "drop" type: "Dropout" bottom: "bn" top: "bn" }
layer {
  name: "ip" type: "InnerProduct" bottom: "bn" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" exclude { stage: "deploy" } }
""",
    data=(2, 1, 5, 5),
    label=(2,),
)

SHARED = with_inputs(
    """
layer {
  name: "a" type: "InnerProduct" bottom: "data" top: "a" param { name: "w" }
  inner_product_param { num_output: 4 bias_term: false weight_filler { type: "xavier" } }
}
layer {
  name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" }
  inner_product_param { num_output: 4 bias_term: false }
}
layer {
  name: "c" type: "Scale" bottom: "b" top: "c" param { name: "w" share_mode: PERMISSIVE }
  scale_param { axis: 0 num_axes: 1 }
}
layer { name: "sum" type: "Reduction" bottom: "c" top: "sum" loss_weight: 1 }
""",
    data=(16, 4),
)


def write(folder: Path, text: str = CLASSIFIER) -> Path:
    path = folder / "net.prototxt"
    path.write_text(text)
    return path


def batch(rows: int = 2) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(rows)
    return {"data": torch.randn(rows, 1, 5, 5, generator=draw), "label": torch.arange(rows) % 4}


def test_a_name_with_dots_or_one_that_torch_uses_is_a_name_like_others(tmp_path: Path) -> None:
    text = CLASSIFIER.replace('name: "ip"', 'name: "fc.8"').replace('name: "conv"', 'name: "type"')
    net = Net(write(tmp_path, text), "TRAIN")
    assert [name for name, _ in net.named_parameters()] == ["type.0", "type.1", "fc.8.0", "fc.8.1"]
    other = Net(write(tmp_path, text), "TRAIN")
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.layers["fc.8"].blobs[0], net.layers["fc.8"].blobs[0])


def test_a_name_may_be_the_beginning_of_an_earlier_one(tmp_path: Path) -> None:
    text = CLASSIFIER.replace('name: "ip"', 'name: "b.ip"')
    text += 'layer { name: "b" type: "PReLU" bottom: "ip" top: "b" }'
    net = Net(write(tmp_path, text), "TRAIN")
    assert {"b.ip.0", "b.ip.1", "b.0"} <= net.state_dict().keys()
    write_weights(tmp_path / "x.caffemodel", net.weights())
    other = Net(tmp_path / "net.prototxt", "TRAIN", weights=tmp_path / "x.caffemodel")
    for own, theirs in zip(other.all_weights(), net.all_weights(), strict=True):
        assert torch.equal(own, theirs)


def test_the_net_gives_its_outputs_by_name_for_batches_of_any_size(tmp_path: Path) -> None:
    net = Net(write(tmp_path), "TEST")
    for rows in (2, 5):
        inputs = batch(rows)
        tops = net(**inputs)
        assert list(tops) == ["loss"]
        scores = net.values["ip"]
        torch.testing.assert_close(tops["loss"], nn.functional.cross_entropy(scores, inputs["label"]))
        assert net.blobs["data"].shape == (rows, 1, 5, 5)


def test_tops_with_a_loss_weight_are_given_too_and_the_objective_is_their_weighted_sum(tmp_path: Path) -> None:
    more = """layer { name: "power" type: "Power" bottom: "loss" top: "power" }
              layer { name: "relu" type: "ReLU" bottom: "ip" top: "relu" loss_weight: 2 }
              layer { name: "l" type: "EuclideanLoss" bottom: "ip" bottom: "relu" }"""
    text = CLASSIFIER.replace('top: "loss" exclude', 'top: "loss" loss_weight: 0.5 exclude')
    net = Net(write(tmp_path, text + more), "TEST")
    tops = net(**batch())
    assert list(tops) == ["l", "loss", "power", "relu"]
    assert net.loss_weights["loss"] == 0.5
    torch.testing.assert_close(net.objective(**batch()), 0.5 * tops["loss"] + 2 * tops["relu"].sum() + tops["l"])


def test_a_gradient_reaches_the_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)  # with some weights each ReLU gives zero for these inputs
    inputs = batch()
    inputs["data"].requires_grad_()
    torch.autograd.backward(Net(write(tmp_path), "TEST")(**inputs)["loss"])
    assert inputs["data"].grad is not None
    assert inputs["data"].grad.abs().sum() > 0


def test_tensors_can_stand_for_what_a_data_layer_reads(tmp_path: Path) -> None:
    write_project(tmp_path)
    net = Net(tmp_path / "net.prototxt", "TEST")
    tops = net(data=torch.ones(3, 4), label=torch.tensor([0, 1, 2]))
    assert set(tops) == {"accuracy", "loss"}
    assert net.user_layers()["data"].at == 0
    net()
    assert net.user_layers()["data"].at == 8


def test_stages_choose_layers_and_torchs_seed_the_first_weights(tmp_path: Path) -> None:
    nets = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        nets.append(Net(write(tmp_path), "TEST", stages=["deploy"]))
    first, again, other = (net.layers["ip"].blobs[0] for net in nets)
    assert list(nets[0](**batch())) == ["ip", "label"]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_state_dict_that_convert_writes_loads(tmp_path: Path) -> None:
    net = Net(write(tmp_path), "TRAIN")
    net(**batch())
    write_weights(tmp_path / "x.caffemodel", net.weights())
    convert(tmp_path / "x.caffemodel", tmp_path / "x.pt")
    by_torch, by_name = (
        Net(tmp_path / "net.prototxt", "TEST"),
        Net(tmp_path / "net.prototxt", "TEST", weights=tmp_path / "x.caffemodel"),
    )
    by_torch.load_state_dict(torch.load(tmp_path / "x.pt"))
    for name, tensor in net.state_dict().items():
        assert torch.equal(by_torch.state_dict()[name], tensor)
        assert torch.equal(by_name.state_dict()[name], tensor)
    torch.save(net.state_dict(), tmp_path / "saved.pt")
    convert(tmp_path / "saved.pt", tmp_path / "back.caffemodel")
    back = Net(tmp_path / "net.prototxt", "TEST", weights=tmp_path / "back.caffemodel")
    assert torch.equal(back.layers["bn"].blobs[0], net.layers["bn"].blobs[0])


def test_a_state_dict_of_another_net_is_refused_and_weights_with_four_axes_are_not(tmp_path: Path) -> None:
    net = Net(write(tmp_path), "TRAIN")
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state["ip.0"] = state["ip.0"].reshape(1, 1, *state["ip.0"].shape) + 1
    net.load_state_dict(state)
    assert torch.equal(net.layers["ip"].blobs[0], state["ip.0"][0, 0])
    state["ip.0"] = state["ip.0"][0, 0].t()
    with pytest.raises(RuntimeError, match=r"ip\.0"):
        net.load_state_dict(state)


def test_shared_weights_are_one_parameter_whose_gradients_add_up(tmp_path: Path) -> None:
    net = Net(write(tmp_path, SHARED), "TRAIN")
    ((name, weights),) = net.named_parameters()
    assert name == "a.0"
    data = torch.randn(16, 4)
    torch.autograd.backward(net(data=data)["sum"])
    own = weights.detach().clone().requires_grad_()
    torch.autograd.backward((data @ own.t() @ own.t() * own.reshape(16, 1)).sum())
    torch.testing.assert_close(weights.grad, own.grad)
    for layer in net.layers.values():
        for blob in layer.blobs:
            torch.testing.assert_close(gradient_of(blob).reshape(4, 4), own.grad)
    assert list(net.state_dict()) == ["a.0", "b.0"]
    write_weights(tmp_path / "x.caffemodel", {name: [each + 1 for each in w] for name, w in net.weights().items()})
    convert(tmp_path / "x.caffemodel", tmp_path / "x.pt")
    net.load_state_dict(torch.load(tmp_path / "x.pt"))
    for layer in net.layers.values():
        for blob in layer.blobs:
            torch.testing.assert_close(blob.reshape(4, 4), own + 1)
    other = copy.deepcopy(net).float()
    with torch.no_grad():
        weights.fill_(3)
    assert bool((net.layers["c"].blobs[0] == 3).all())
    torch.testing.assert_close(other.layers["c"].blobs[0].reshape(4, 4), own + 1)


def test_a_saved_state_dict_may_lack_weights_that_a_layer_has_in_another_shape(tmp_path: Path) -> None:
    learnt = """layer {{ name: "{0}" type: "InnerProduct" bottom: "{1}" top: "{0}"
        param {{ name: "w" share_mode: PERMISSIVE }}
        inner_product_param {{ num_output: {2} weight_filler {{ type: "xavier" }} bias_filler {{ type: "xavier" }} }} }}
    """
    text = with_inputs(learnt.format("a", "data", 2) + learnt.format("b", "a", 4), data=(16, 4))
    net = Net(write(tmp_path, text), "TRAIN")
    assert list(net.state_dict()) == ["a.0", "a.1", "b.1"]
    torch.save(net.state_dict(), tmp_path / "x.pt")
    convert(tmp_path / "x.pt", tmp_path / "x.caffemodel")
    for name in ("x.pt", "x.caffemodel"):
        other = Net(tmp_path / "net.prototxt", "TRAIN", weights=tmp_path / name)
        for own, theirs in zip(other.all_weights(), net.all_weights(), strict=True):
            assert torch.equal(own, theirs)


def test_sums_of_batch_norm_that_layers_share_stay_shared_where_the_net_is_converted(tmp_path: Path) -> None:
    names = [f'param {{ name: "{each}" lr_mult: 0 }}' for each in ("mean", "variance", "count")]
    layers = [
        f'layer {{ name: "{name}" type: "BatchNorm" bottom: "data" top: "{name}" {" ".join(names)} }}' for name in "ab"
    ]
    net = Net(write(tmp_path, with_inputs("".join(layers), data=(4, 2))), "TRAIN").double()
    assert net.layers["a"].blobs[0].dtype == torch.float64
    for first, second in zip(net.layers["a"].blobs, net.layers["b"].blobs, strict=True):
        assert first is second


def test_eval_ends_dropout_and_the_counting_of_batch_norm(tmp_path: Path) -> None:
    net = Net(write(tmp_path), "TRAIN")
    assert net.training
    net(**batch())
    sums = net.layers["bn"].blobs[0].clone()
    net.eval()
    first, second = (net(**batch())["loss"] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(net.layers["bn"].blobs[0], sums)
    net.train()
    assert not torch.equal(net(**batch())["loss"], first)
    assert not torch.equal(net.layers["bn"].blobs[0], sums)
    assert not Net(tmp_path / "net.prototxt", "TEST").training


def test_a_copy_of_a_net_that_has_run_is_a_net_of_its_own(tmp_path: Path) -> None:
    net = Net(write(tmp_path), "TEST")
    before = net(**batch())["loss"]
    other = copy.deepcopy(net)
    with torch.no_grad():
        for weights in net.parameters():
            weights.zero_()
    assert torch.equal(other(**batch())["loss"], before)
    assert not torch.equal(net(**batch())["loss"], before)


@pytest.mark.cuda
def test_a_net_moves_to_cuda_and_back(tmp_path: Path) -> None:
    net = Net(write(tmp_path), "TEST")
    expected = net(**batch())["loss"]
    net.to("cuda")
    assert net.device.type == "cuda"
    moved = net(**{name: tensor.cuda() for name, tensor in batch().items()})["loss"]
    torch.testing.assert_close(moved.cpu(), expected)
    assert all(each.device.type == "cuda" for each in net.all_weights())
    assert net.blobs["data"].diff.device.type == "cuda"
    torch.testing.assert_close(net.cpu()(**batch())["loss"], expected)


def test_sgd_of_torch_trains_as_the_solver_does(tmp_path: Path) -> None:
    text = SMALL_NET.replace("param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }", "")
    solver = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001 random_seed: 7'
    lines = [line for line in text.splitlines() if "Dropout" not in line]
    with Solver.from_file(write_project(tmp_path, net="\n".join(lines), solver=solver), device="cpu") as by_solver:
        net = Net(tmp_path / "net.prototxt", "TRAIN")
        net.load_state_dict(by_solver.train_net.state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.001)
        for _ in range(5):
            loss = net()["loss"]
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            assert float(loss.detach()) == pytest.approx(float(by_solver.step()), abs=1e-6)


RANKS = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from blobfeed import BatchReader
from blobfeed.trainer import Net

child = os.fork()  # of what has imported torch
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=int(not child), world_size=2)
torch.set_num_threads(1)
torch.manual_seed(1)
net = DistributedDataParallel(Net("net.prototxt", "TRAIN"))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
seen = []
source = {"hdf5": {"path": "numbers.h5"}}
with BatchReader(source, batch_size=8, shuffle=True, seed=1, epochs=1, device="cpu", num_loaders=1) as reader:
    for batch in reader:
        loss = net(data=batch["data"], label=batch["label"])["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(batch.indices.tolist())
parts = [None, None]
dist.all_gather_object(parts, seen)
dist.barrier()
dist.destroy_process_group()
if child:
    torch.save({"state": net.module.state_dict(), "rounds": [sorted(sum(each, [])) for each in zip(*parts)]}, "two.pt")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_two_ranks_train_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    with h5py.File(tmp_path / "numbers.h5", "w") as file:
        file["data"] = draw.normal(size=(64, 1, 8, 8)).astype(np.float32)
        file["label"] = draw.integers(0, 10, 64)
    text = (Path(__file__).parents[3] / "prototxt_examples" / "digits" / "net.prototxt").read_text()
    layers = text[text.index('layer {\n  name: "conv1"') :]
    lenet = "\n".join(line for line in layers.splitlines() if "Dropout" not in line)
    write(tmp_path, with_inputs(lenet, data=(8, 1, 8, 8), label=(8,)))
    (tmp_path / "ranks.py").write_text(RANKS)
    command = [sys.executable, "-P", "ranks.py"]
    run = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    two = torch.load(tmp_path / "two.pt")

    torch.manual_seed(1)
    one, rounds = Net(tmp_path / "net.prototxt", "TRAIN"), []
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 1, "epochs": 1, "num_loaders": 0}
    with BatchReader({"hdf5": {"path": str(tmp_path / "numbers.h5")}}, device="cpu", **settings) as reader:
        for batch in reader:
            optimizer.zero_grad()
            one(data=batch["data"], label=batch["label"])["loss"].backward()
            optimizer.step()
            rounds.append(sorted(batch.indices.tolist()))
    assert len(rounds) == 4
    assert two["rounds"] == rounds
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(two["state"][name], tensor, rtol=0, atol=1e-6)


def deploy_net(folder: Path, text: str, *shape: int) -> tuple[Net, Tensor]:
    prob = 'layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" }'
    return Net(write(folder, with_inputs(text + prob, x=shape)), "TEST"), torch.randn(shape)


def test_a_net_is_exported(tmp_path: Path) -> None:
    net, x = deploy_net(tmp_path, lenet()[0], 2, 1, 28, 28)
    for weights in net.parameters():
        weights.data = weights.data.contiguous()
    torch.export.save(torch.export.export(net, (), {"x": x}), tmp_path / "net.pt2")
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    torch.testing.assert_close(loaded(x=x)["prob"], net(x=x)["prob"], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler warns of what torch itself does
@torch.no_grad()
def test_caffenet_is_compiled_whole(tmp_path: Path) -> None:
    net, x = deploy_net(tmp_path, caffenet()[0], 2, 3, 227, 227)
    compiled = torch.compile(net, fullgraph=True)
    torch.testing.assert_close(compiled(x=x)["prob"], net(x=x)["prob"], rtol=0, atol=1e-5)
    for name, call in (("eager", net), ("compiled", compiled)):
        begun = time.perf_counter()
        for _ in range(5):
            call(x=x)
        print(f"{name}: {(time.perf_counter() - begun) / 5:.3f} s for a batch of 2")
