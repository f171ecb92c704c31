"""Nets written from the tables of their papers have the loss and the gradients of torch modules written by hand.

What each layer computes is held against Caffe itself in tests/trainer/layer_types/test_golden.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from blobfeed.trainer.prototxt import Phase
from torch.nn import functional

from tests.support.papers import Written, caffenet, cifar_full, lenet, loss
from tests.support.trainer_nets import make_net, with_inputs

NETS: dict[str, tuple[Callable[[], Written], tuple[int, ...], Phase]] = {
    "LeNet": (lenet, (4, 1, 28, 28), Phase.TRAIN),
    "CIFAR": (lambda: cifar_full(alpha=0.05), (4, 3, 32, 32), Phase.TRAIN),
    # Narrower than in the paper, and in TEST, where dropout does nothing: two generators draw differently.
    "CaffeNet": (lambda: caffenet(width=256), (1, 3, 227, 227), Phase.TEST),
}


@pytest.mark.parametrize("name", NETS)
def test_a_net_agrees_with_a_torch_module_in_its_loss_and_all_gradients(tmp_path: Path, name: str) -> None:
    written, shape, phase = NETS[name]
    text, model = written()
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=shape).astype(np.float32), draw.integers(0, 10, shape[:1])
    net = make_net(tmp_path, with_inputs(text + loss("scores y"), x=x.shape, y=y.shape), phase)
    weights, parameters = [each.weights for each in net.learnt()], list(model.train(phase is Phase.TRAIN).parameters())
    with torch.no_grad():
        for parameter, own in zip(parameters, weights, strict=True):
            parameter.copy_(own)

    net.blobs["x"].data[...], net.blobs["y"].data[...] = x, y
    found, expected = net.objective(), functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(found, weights), torch.autograd.grad(expected, parameters)
    for own, theirs in zip(*gradients, strict=True):
        assert float((own - theirs).norm()) <= 5e-3 * float(theirs.norm()) + 1e-6
