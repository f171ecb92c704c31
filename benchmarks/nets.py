"""Whole training steps beside plain torch modules: `python -P -m benchmarks.nets`, for docs/trainer.md.

LeNet, CIFAR-10 full and CaffeNet, of a prototxt by the trainer and of torch's own modules by torch's own SGD, with the
weights channels last and without. Each in one process, one thread, turn by turn; medians of the rounds, in CPU time,
which others on the machine disturb less. Real Caffe is in no registry; in its place stands "Caffe at most": its
matrix products and some of what no build of it for a CPU can leave out beside them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from blobfeed.trainer.solving import Solver
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional

from tests.support.papers import caffenet, cifar_full, lenet, loss
from tests.support.trainer_nets import with_inputs

Step = Callable[[], object]
Part = Callable[[], tuple[float, float]]
"""One step; the seconds of its forward, and of its backward and update."""


NETS = {
    "LeNet, 28×28": (lenet, (64, 1, 28, 28), 10, 60),
    "CIFAR-10 full": (cifar_full, (100, 3, 32, 32), 10, 12),
    "CaffeNet, 227×227": (caffenet, (16, 3, 227, 227), 1000, 1),
}
"""By name: what makes it, the shape of a batch, the classes, and the steps of a round."""


def by_trainer(folder: Path, text: str, shape: tuple[int, ...], classes: int) -> Part:
    (folder / "net.prototxt").write_text(with_inputs(text + loss("scores y"), x=shape, y=shape[:1]))
    solver = folder / "solver.prototxt"
    solver.write_text(
        'net: "net.prototxt" base_lr: 0.001 momentum: 0.9 lr_policy: "fixed" max_iter: 1000000 random_seed: 1'
    )
    made = Solver.from_file(solver, device="cpu")
    images, labels = batch(shape, classes)
    forward = made.train_net.objective
    spent = [0.0]

    def timed() -> Tensor:
        begun = time.process_time()
        objective = forward()
        spent[0] = time.process_time() - begun
        return objective

    made.train_net.objective = timed  # type: ignore[method-assign, assignment]

    def step() -> tuple[float, float]:
        begun = time.process_time()
        # As a data layer does: the batch is copied into the blobs.
        made.train_net.blobs["x"].own()
        made.train_net.blobs["x"].tensor.copy_(images)
        made.train_net.blobs["y"].tensor.copy_(labels)
        made.step()
        return spent[0], time.process_time() - begun - spent[0]

    return step


def by_torch(model: nn.Module, shape: tuple[int, ...], classes: int, *, channels_last: bool) -> Part:
    for weights in model.parameters():
        if channels_last and weights.dim() == 4:
            weights.data = weights.data.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.001, 0.9, foreach=True)
    images, labels = batch(shape, classes)
    mine = images.clone()

    def step() -> tuple[float, float]:
        begun = time.process_time()
        mine.copy_(images)
        optimizer.zero_grad()
        start = time.process_time()
        loss = functional.cross_entropy(model(mine), labels.long())
        forward = time.process_time() - start
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return forward, time.process_time() - begun - forward

    return step


def by_caffes_least(model: nn.Module, shape: tuple[int, ...]) -> Part:
    """Do what every Caffe on a CPU has to do, each part as fast as it can be at all.

    For each image its convolution (base_conv_layer.cpp) writes columns, here by a fill, and multiplies them, here by
    OpenBLAS; on the way back it writes the columns anew, multiplies twice, and reads the columns that come out, here
    for a sum; the data need no gradient. ReLU passes over its blob forward and back, the update (sgd_solver.cpp,
    blob.cpp) three times over all weights. Not done: what the columns are read from and added to, pooling, LRN, bias,
    dropout and loss.
    """
    layers: list[tuple[nn.Module, torch.Size, torch.Size]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        layers.append((module, inputs[0].shape, output.shape))

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.ReLU):
            module.register_forward_hook(note)
    with torch.no_grad():
        model(torch.zeros(shape))
    ways = [_least(module, below, above, is_first=nth == 0) for nth, (module, below, above) in enumerate(layers)]
    update = _update_of(sum(weights.numel() for weights in model.parameters()))

    def step() -> tuple[float, float]:
        begun = time.process_time()
        for forward, _ in ways:
            forward()
        between = time.process_time()
        for _, backward in reversed(ways):
            backward()
        update()
        return between - begun, time.process_time() - between

    return step


def _least(module: nn.Module, below: torch.Size, above: torch.Size, *, is_first: bool) -> tuple[Step, Step]:
    if isinstance(module, nn.Conv2d):
        return _convolved(module, above, is_first=is_first)
    return _rectified(above) if isinstance(module, nn.ReLU) else _product_of(below, above)


def _convolved(conv: nn.Conv2d, above: torch.Size, *, is_first: bool) -> tuple[Step, Step]:
    outputs, inputs, pixels = above[1] // conv.groups, conv.weight[0].numel(), above[2] * above[3]
    weight, error, column = (
        np.zeros(shape, np.float32) for shape in ((outputs, inputs), (outputs, pixels), (inputs, pixels))
    )
    made, gradient, below = np.empty_like(error), np.empty_like(weight), np.empty_like(column)
    times = above[0] * conv.groups

    def forward() -> None:
        for _ in range(times):
            column.fill(0)
            np.dot(weight, column, out=made)

    def backward() -> None:
        for _ in range(times):
            column.fill(0)
            np.dot(error, column.T, out=gradient)
            if not is_first:
                np.dot(weight.T, error, out=below)
                below.sum()

    return forward, backward


def _rectified(shape: torch.Size) -> tuple[Step, Step]:
    data, error = torch.zeros(2, *shape)
    backward = torch.ops.aten.threshold_backward.grad_input
    return lambda: data.clamp_(min=0), lambda: backward(error, data, 0, grad_input=error)


def _update_of(weights: int) -> Step:
    data, diff, history = torch.zeros(3, weights)

    def update() -> None:
        history.add_(diff, alpha=0.001)
        diff.copy_(history)
        data.sub_(diff)

    return update


def _product_of(below: torch.Size, above: torch.Size) -> tuple[Step, Step]:
    data, weights = np.zeros(below, np.float32), np.zeros((above[1], below[1]), np.float32)
    errors = np.zeros(above, np.float32)
    return lambda: np.dot(data, weights.T), lambda: (np.dot(errors.T, data), np.dot(errors, weights))


def batch(shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator), torch.randint(classes, shape[:1], generator=generator).float()


def measure(name: str, rounds: int) -> dict[str, tuple[float, float, float]]:
    """By contestant: samples/s of the whole step, milliseconds of its forward, and of its backward and update."""
    make, shape, classes, steps = NETS[name]
    with tempfile.TemporaryDirectory() as folder:
        text, _ = make()
        entrants = {
            "blobfeed": by_trainer(Path(folder), text, shape, classes),
            "torch, channels last": by_torch(make()[1], shape, classes, channels_last=True),
            "torch": by_torch(make()[1], shape, classes, channels_last=False),
            "Caffe at most": by_caffes_least(make()[1], shape),
        }
    found: dict[str, list[tuple[float, float]]] = {each: [] for each in entrants}
    for step in entrants.values():
        step()
    for nth in range(rounds):
        order = list(entrants)[nth % 4 :] + list(entrants)[: nth % 4]
        for each in order:
            parts = [entrants[each]() for _ in range(steps)]
            found[each].append((sum(part[0] for part in parts) / steps, sum(part[1] for part in parts) / steps))
    figures = {}
    for each, times in found.items():
        forward, backward = (statistics.median(part) for part in zip(*times, strict=True))
        figures[each] = (shape[0] / (forward + backward), 1000 * forward, 1000 * backward)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -P -m benchmarks.nets", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS), metavar="NAME")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)  # of NumPy's OpenBLAS
    print("| net | by | samples/s | forward ms | backward and update ms |\n|---|---|---|---|---|")
    for name in arguments.nets:
        for each, (speed, forward, backward) in measure(name, arguments.rounds).items():
            digits = 1 if speed < 100 else 0
            print(f"| {name} | {each} | {speed:,.{digits}f} | {forward:.2f} | {backward:.2f} |", flush=True)


if __name__ == "__main__":
    main()
