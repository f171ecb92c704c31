"""Nets written into files, for the tests of the trainer, and a data layer as a user of Caffe would write it."""

from __future__ import annotations

from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import torch
from blobfeed.trainer.layer_types import Generators
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import NetParameter, NetState, Phase, read_prototxt

CPU = torch.device("cpu")

BATCHES = '''
import h5py
import numpy as np
import yaml


class Batches:
    """Batch after batch of an HDF5 file, from the start again at its end."""

    def __init__(self, layer_param):
        self.at = 0

    def setup(self, bottom, top):
        options = yaml.safe_load(self.param_str)
        self.rows = options["batch_size"]
        with h5py.File(self.base_dir / options["path"]) as file:
            self.data = file["data"][:]
            self.label = file["label"][:]

    def reshape(self, bottom, top):
        top[0].reshape(self.rows, *self.data.shape[1:])
        top[1].reshape(self.rows, *self.label.shape[1:])

    def forward(self, bottom, top):
        rows = (self.at + np.arange(self.rows)) % len(self.data)
        top[0].data[...] = self.data[rows]
        top[1].data[...] = self.label[rows]
        self.at += self.rows

    def backward(self, top, propagate_down, bottom):
        raise AssertionError("a layer without bottoms has no backward")

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
'''

DATA_LAYER = """
layer {
  name: "data" type: "Python" top: "data" top: "label"
  python_param { module: "batches" layer: "Batches" param_str: "{path: numbers.h5, batch_size: 8}" }
}
"""

SMALL_NET = (
    DATA_LAYER
    + """
layer {
  name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1" param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  inner_product_param { num_output: 12 weight_filler { type: "xavier" } }
}
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "drop1" type: "Dropout" bottom: "ip1" top: "ip1" dropout_param { dropout_ratio: 0.25 } }
layer {
  name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
layer {
  name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" include { phase: TEST }
}
"""
)

SMALL_SOLVER = """
net: "net.prototxt"
base_lr: 0.1 lr_policy: "step" gamma: 0.5 stepsize: 10 momentum: 0.9 weight_decay: 0.001
max_iter: 30 random_seed: 7 solver_mode: CPU
"""


def write_project(folder: Path, *, net: str = SMALL_NET, solver: str = SMALL_SOLVER) -> Path:
    """A folder with a net, a data layer beside it, three clouds of numbers to tell apart, and a solver: its path."""
    draw = np.random.default_rng(0)
    label = draw.integers(0, 3, 50)
    data = draw.normal(size=(50, 4)) + 2 * np.eye(3, 4)[label]
    with h5py.File(folder / "numbers.h5", "w") as file:
        file["data"], file["label"] = data.astype(np.float32), label
    (folder / "batches.py").write_text(BATCHES)
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(solver)
    return folder / "solver.prototxt"


def write_golden_solver(run: str, folder: Path) -> Path:
    """The solver, net and data of a run that real Caffe made; a Python layer stands for its HDF5Data."""
    golden = np.load(Path(__file__).parents[1] / "trainer" / "golden" / "solvers.npz")
    data = DATA_LAYER.replace('top: "data" top: "label"', 'top: "x" top: "y"').replace("batch_size: 8", "batch_size: 6")
    text = str(golden[f"{run}/prototxt"])
    write_project(folder, net=data + str(golden["data/net"]).partition("\n")[2], solver=text)
    with h5py.File(folder / "numbers.h5", "w") as file:
        file["data"], file["label"] = golden["data/x"], golden["data/y"]
    return (folder / "solver.prototxt").rename(folder / f"{run}.prototxt")


def make_net(folder: Path, text: str, phase: Phase = Phase.TRAIN, seed: int = 0, device: torch.device = CPU) -> Net:
    path = folder / "net.prototxt"
    path.write_text(text)
    return Net(read_prototxt(path, NetParameter), NetState(phase), device, Generators.seeded(seed, device))


def with_inputs(text: str, **shapes: tuple[int, ...]) -> str:
    """`text` with an Input layer above it for each of `shapes`."""
    inputs = [
        f'layer {{ name: "{name}" type: "Input" top: "{name}" '
        f"input_param {{ shape {{ {' '.join(f'dim: {extent}' for extent in shape)} }} }} }}\n"
        for name, shape in shapes.items()
    ]
    return "".join(inputs) + text
