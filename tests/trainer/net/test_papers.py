"""Nets written from the tables of their papers agree with torch modules written by hand: loss and all gradients.

Some are narrower than in the paper, so that they run in a second; nothing else is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import Phase
from torch import Tensor, nn
from torch.nn import functional

from tests.support.papers import caffenet, cifar_full, conv, layer, lenet, loss, lrn, max_pool, pool, product
from tests.support.trainer_nets import make_net, with_inputs

Model = Callable[..., Tensor]


def deconv(name: str, bottom: str, kernel: int, stride: int) -> str:
    options = f"num_output: 21 kernel_size: {kernel} stride: {stride} bias_term: false"
    return layer(
        "Deconvolution", name, bottom, more=f'convolution_param {{ {options} weight_filler {{ type: "xavier" }} }}'
    )


def check_agreement(net: Net, model: nn.Module, call: Model, *, within: float = 5e-3, **inputs: Any) -> None:
    """The net and `call`, which uses the parameters of `model` in the net's order, have the same loss and gradients.

    `within`: how long the difference of two gradients may be, as a share of the gradient.
    """
    for name, array in inputs.items():
        net.blobs[name].data[...] = array
    weights = [each.weights for each in net.learnt()]
    parameters = list(model.parameters())
    assert [tuple(each.shape) for each in parameters] == [tuple(each.shape) for each in weights]
    with torch.no_grad():
        for parameter, own in zip(parameters, weights, strict=True):
            parameter.copy_(own)
    found = net.objective()
    expected = call(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(expected, parameters)
    for own, theirs in zip(torch.autograd.grad(found, weights), gradients, strict=True):
        assert float((own - theirs).norm()) <= within * float(theirs.norm()) + 1e-6


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def labels(classes: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, shape).astype(np.float32)


def check_classifier(
    folder: Path,
    text: str,
    model: nn.Module,
    x: np.ndarray,
    classes: int = 10,
    phase: Phase = Phase.TRAIN,
    within: float = 5e-3,
) -> None:
    """`text` takes x and gives scores, as `model` does."""
    y = labels(classes, len(x))
    net = make_net(folder, with_inputs(text + loss("scores y"), x=x.shape, y=y.shape), phase)
    check_agreement(net, model, lambda x, y: functional.cross_entropy(model(x), y.long()), within=within, x=x, y=y)


def test_lenet(tmp_path: Path) -> None:
    check_classifier(tmp_path, *lenet(), normal(4, 1, 28, 28))


def test_cifar_full(tmp_path: Path) -> None:
    check_classifier(tmp_path, *cifar_full(alpha=0.05), normal(4, 3, 32, 32))


def test_caffenet(tmp_path: Path) -> None:
    # In TEST the dropout does nothing, which is what two random generators can agree about.
    text, model = caffenet(width=256)
    check_classifier(tmp_path, text, model.eval(), normal(1, 3, 227, 227), 1000, Phase.TEST)


# The table of the paper: outputs of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool proj.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class Inception(nn.Module):
    def __init__(self, channels: int, one: int, three: int, threes: int, five: int, fives: int, pooled: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, one, 1)
        self.three = nn.Sequential(nn.Conv2d(channels, three, 1), nn.ReLU(), nn.Conv2d(three, threes, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(channels, five, 1), nn.ReLU(), nn.Conv2d(five, fives, 5, padding=2))
        self.pooled = nn.Sequential(max_pool(3, 1, 1), nn.Conv2d(channels, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in (self.one, self.three, self.five, self.pooled)], 1).relu()


class Auxiliary(nn.Sequential):
    """A classifier in the middle of GoogLeNet."""

    def __init__(self, channels: int) -> None:
        super().__init__(nn.AvgPool2d(5, 3, ceil_mode=True), nn.Conv2d(channels, 128, 1), nn.ReLU(), nn.Flatten())
        self.extend([nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 1000)])


class GoogLeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.LocalResponseNorm(5, 1e-4, 0.75, 1)
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), max_pool(), norm, nn.Conv2d(64, 64, 1))
        self.stem.extend([nn.ReLU(), nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(), norm, max_pool()])
        self.blocks, channels = nn.ModuleDict(), 192
        for name, outputs in INCEPTIONS.items():
            self.blocks[name] = Inception(channels, *outputs)
            channels = outputs[0] + outputs[2] + outputs[4] + outputs[5]
            if name in ("4a", "4d"):
                self.blocks[f"{name}/loss"] = Auxiliary(channels)
        self.last = nn.Linear(1024, 1000)

    def forward(self, x: Tensor) -> list[Tensor]:
        x, scores = self.stem(x), []
        for name, block in self.blocks.items():
            if name.endswith("loss"):
                scores.append(block(x))
            else:
                x = block(x)
                x = max_pool()(x) if name in ("3b", "4e") else x
        return [*scores, self.last(x.mean((2, 3)))]


def googlenet() -> str:
    norm = "local_size: 5 alpha: 0.0001 beta: 0.75"
    text = conv("conv1", "x", 64, 7, "pad: 3 stride: 2") + pool("pool1", "conv1") + lrn("norm1", "pool1", norm)
    text += conv("conv2r", "norm1", 64, 1) + conv("conv2", "conv2r", 192, 3, "pad: 1") + lrn("norm2", "conv2", norm)
    text, bottom = text + pool("pool2", "norm2"), "pool2"
    for name, (one, three, threes, five, fives, pooled) in INCEPTIONS.items():
        text += conv(f"{name}/1", bottom, one, 1) + conv(f"{name}/3r", bottom, three, 1)
        text += conv(f"{name}/3", f"{name}/3r", threes, 3, "pad: 1") + conv(f"{name}/5r", bottom, five, 1)
        text += conv(f"{name}/5", f"{name}/5r", fives, 5, "pad: 2") + pool(f"{name}/pool", bottom, "MAX", 3, 1, 1)
        text += conv(f"{name}/p", f"{name}/pool", pooled, 1)
        text += layer("Concat", name, f"{name}/1 {name}/3 {name}/5 {name}/p")
        bottom = name
        if name in ("3b", "4e"):
            text, bottom = text + pool(f"{name}/out", name), f"{name}/out"
        if name in ("4a", "4d"):
            text += pool(f"{name}/ave", name, "AVE", 5, 3) + conv(f"{name}/conv", f"{name}/ave", 128, 1)
            text += product(f"{name}/fc", f"{name}/conv", 1024, "ReLU") + product(f"{name}/scores", f"{name}/fc", 1000)
            text += loss(f"{name}/scores y", "loss_weight: 0.3", f"{name}/loss")
    text += layer("Pooling", "ave", "5b", more="pooling_param { pool: AVE global_pooling: true }")
    return text + product("scores", "ave", 1000) + loss("scores y")


def test_googlenet_with_its_three_losses(tmp_path: Path) -> None:
    x, y, model = normal(1, 3, 224, 224), labels(1000, 1), GoogLeNet()
    net = make_net(tmp_path, with_inputs(googlenet(), x=x.shape, y=y.shape))

    def objective(x: Tensor, y: Tensor) -> Tensor:
        first, second, last = (functional.cross_entropy(scores, y.long()) for scores in model(x))
        return 0.3 * first + 0.3 * second + last

    check_agreement(net, model, objective, x=x, y=y)


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        self.shortcut = nn.Sequential()
        if channels != 4 * inner:
            self.shortcut.extend([nn.Conv2d(channels, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner)])
        self.residual = nn.Sequential(nn.Conv2d(channels, inner, 1, stride, bias=False), nn.BatchNorm2d(inner))
        self.residual.extend([nn.ReLU(), nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)])
        self.residual.extend([nn.ReLU(), nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.shortcut(x) + self.residual(x)).relu()
        return out


def normalized(name: str, bottom: str, outputs: int, kernel: int, more: str = "", *, relu: bool = True) -> str:
    """A convolution without bias, BatchNorm, Scale, and a ReLU, in place."""
    text = conv(name, bottom, outputs, kernel, f"bias_term: false {more}", relu=False)
    text += layer("BatchNorm", f"{name}/bn", name, name)
    text += layer("Scale", f"{name}/scale", name, name, "scale_param { bias_term: true }")
    return text + (layer("ReLU", f"{name}/relu", name, name) if relu else "")


def test_resnet_50(tmp_path: Path) -> None:
    text, bottom = normalized("conv1", "x", 64, 7, "stride: 2 pad: 3") + pool("pool1", "conv1"), "pool1"
    model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), max_pool())
    channels = 64
    for stage, (inner, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            name, stride = f"res{stage}{block}", 2 if stage and not block else 1
            strided, first = f"stride: {stride}", bottom
            if not block:
                text += normalized(f"{name}/1", bottom, 4 * inner, 1, strided, relu=False)
                first = f"{name}/1"
            text += normalized(f"{name}/2a", bottom, inner, 1, strided)
            text += normalized(f"{name}/2b", f"{name}/2a", inner, 3, "pad: 1")
            text += normalized(f"{name}/2c", f"{name}/2b", 4 * inner, 1, relu=False)
            text += layer("Eltwise", name, f"{first} {name}/2c") + layer("ReLU", f"{name}/relu", name, name)
            model.append(Bottleneck(channels, inner, stride))
            channels, bottom = 4 * inner, name
    text += layer("Pooling", "ave", bottom, more="pooling_param { pool: AVE global_pooling: true }")
    text += product("scores", "ave", 100)
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 100)])
    # Through so many normalizations of small batches, torch's own gradients in 32 and in 64 bits differ by 2 %.
    check_classifier(tmp_path, text, model, normal(4, 3, 64, 64), 100, within=0.05)


WIDTHS = ((8, 2), (16, 2), (32, 3), (64, 3), (64, 3))


class FCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages, channels, pad = nn.ModuleList(), 3, 100
        for width, convolutions in WIDTHS:
            stage = nn.Sequential()
            for _ in range(convolutions):
                stage.extend([nn.Conv2d(channels, width, 3, padding=pad), nn.ReLU()])
                channels, pad = width, 1
            self.stages.append(stage.append(max_pool(2)))
        self.last = nn.Sequential(nn.Conv2d(64, 128, 7), nn.ReLU(), nn.Conv2d(128, 128, 1), nn.ReLU())
        self.last.append(nn.Conv2d(128, 21, 1))
        self.upscore2 = nn.ConvTranspose2d(21, 21, 4, 2, bias=False)
        self.score_pool4 = nn.Conv2d(64, 21, 1)
        self.upscore4 = nn.ConvTranspose2d(21, 21, 4, 2, bias=False)
        self.score_pool3 = nn.Conv2d(32, 21, 1)
        self.upscore8 = nn.ConvTranspose2d(21, 21, 16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        pools, now = [], x
        for stage in self.stages:
            now = stage(now)
            pools.append(now)
        up = self.upscore2(self.last(now))
        up = self.upscore4(up + cropped(self.score_pool4(pools[3]), up, 5))
        up = self.upscore8(up + cropped(self.score_pool3(pools[2]), up, 9))
        return cropped(up, x, 31)


def cropped(x: Tensor, reference: Tensor, offset: int) -> Tensor:
    height, width = reference.shape[2:]
    return x[:, :, offset : offset + height, offset : offset + width]


def crop(name: str, bottom: str, offset: int) -> str:
    return layer("Crop", name, bottom, more=f"crop_param {{ axis: 2 offset: {offset} }}")


def test_fcn_8s(tmp_path: Path) -> None:
    """An eighth of the channels of VGG-16."""
    text, bottom, pad = "", "x", 100
    for stage, (width, convolutions) in enumerate(WIDTHS, 1):
        for nth in range(1, convolutions + 1):
            name = f"conv{stage}_{nth}"
            text, bottom, pad = text + conv(name, bottom, width, 3, f"pad: {pad}"), name, 1
        text, bottom = text + pool(f"pool{stage}", bottom, size=2), f"pool{stage}"
    text += conv("fc6", "pool5", 128, 7) + conv("fc7", "fc6", 128, 1) + conv("score", "fc7", 21, 1, relu=False)
    text += deconv("upscore2", "score", 4, 2)
    text += conv("score_pool4", "pool4", 21, 1, relu=False) + crop("score_pool4c", "score_pool4 upscore2", 5)
    text += layer("Eltwise", "fuse_pool4", "upscore2 score_pool4c") + deconv("upscore4", "fuse_pool4", 4, 2)
    text += conv("score_pool3", "pool3", 21, 1, relu=False) + crop("score_pool3c", "score_pool3 upscore4", 9)
    text += layer("Eltwise", "fuse_pool3", "upscore4 score_pool3c") + deconv("upscore8", "fuse_pool3", 16, 8)
    text += crop("scores", "upscore8 x", 31)
    text += loss("scores y", "loss_param { ignore_label: 255 normalization: VALID }")
    x, y, model = normal(1, 3, 40, 56), labels(21, 1, 40, 56), FCN()
    y[:, :5] = 255
    net = make_net(tmp_path, with_inputs(text, x=x.shape, y=y.shape))
    check_agreement(net, model, lambda x, y: functional.cross_entropy(model(x), y.long(), ignore_index=255), x=x, y=y)


def test_siamese_nets_share_their_weights(tmp_path: Path) -> None:
    text = layer("Slice", "halves", "x", "a", 'top: "b" slice_param { slice_point: 1 }')
    for half in "ab":
        named = 'param { name: "%s_w" lr_mult: 1 } param { name: "%s_b" lr_mult: 2 }'
        for part in (
            conv(f"conv1{half}", half, 20, 5, relu=False) + pool(f"pool1{half}", f"conv1{half}", size=2),
            conv(f"conv2{half}", f"pool1{half}", 50, 5, relu=False) + pool(f"pool2{half}", f"conv2{half}", size=2),
            product(f"ip1{half}", f"pool2{half}", 500, "ReLU"),
            product(f"ip2{half}", f"ip1{half}", 10),
            product(f"feat{half}", f"ip2{half}", 2),
        ):
            shared = part.partition('name: "')[2].partition('"')[0][:-1]
            text += part.replace(" top:", f" {named % (shared, shared)} top:", 1)
    text += layer("ContrastiveLoss", "loss", "feata featb y", more="contrastive_loss_param { margin: 1 }")
    model = nn.Sequential(nn.Conv2d(1, 20, 5), max_pool(2), nn.Conv2d(20, 50, 5), max_pool(2), nn.Flatten())
    model.extend([nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10), nn.Linear(10, 2)])

    def objective(x: Tensor, y: Tensor) -> Tensor:
        distance = (model(x[:, :1]) - model(x[:, 1:])).square().sum(1).sqrt()
        losses: Tensor = y * distance**2 + (1 - y) * (1 - distance).relu() ** 2
        return losses.mean() / 2

    x, y = 0.3 * normal(6, 2, 28, 28), labels(2, 6)
    net = make_net(tmp_path, with_inputs(text, x=x.shape, y=y.shape))
    assert [each.lr_mult for each in net.learnt()] == [1.0, 2.0] * 5
    check_agreement(net, model, objective, x=x, y=y)


def test_an_autoencoder_with_two_losses(tmp_path: Path) -> None:
    text, sizes, model, bottom = "", (784, 1000, 500, 250, 30, 250, 500, 1000, 784), nn.Sequential(), "flat"
    text += layer("Flatten", "flat", "x")
    for nth, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        activation = "" if outputs in (30, 784) else "Sigmoid"
        text += product(f"ip{nth}", bottom, outputs, activation, filler='type: "gaussian" std: 1 sparse: 15')
        model.append(nn.Linear(inputs, outputs))
        if activation:
            model.append(nn.Sigmoid())
        bottom = f"ip{nth}"
    text += layer("SigmoidCrossEntropyLoss", "cross_entropy", f"{bottom} flat", more="loss_weight: 1")
    text += layer("Sigmoid", "decoded", bottom)
    text += layer("EuclideanLoss", "l2", "decoded flat", more="loss_weight: 0.5")
    x = np.random.default_rng(0).uniform(size=(5, 1, 28, 28)).astype(np.float32)

    def objective(x: Tensor) -> Tensor:
        flat, scores = x.flatten(1), model(x.flatten(1))
        entropy = functional.binary_cross_entropy_with_logits(scores, flat, reduction="sum")
        distance: Tensor = (scores.sigmoid() - flat).square().sum()
        return (entropy + 0.25 * distance) / len(x)

    check_agreement(make_net(tmp_path, with_inputs(text, x=x.shape)), model, objective, x=x)


class Captions(nn.Module):
    """LRCN: words, embedded, and what a net sees in the picture go into an LSTM that says the next word."""

    def __init__(self, words: int, width: int, features: int) -> None:
        super().__init__()
        # All as bare parameters, since torch lists those before the modules.
        self.embedding = nn.Parameter(torch.zeros(words, width))
        self.inputs = nn.Parameter(torch.zeros(4 * width, width))
        self.bias = nn.Parameter(torch.zeros(4 * width))
        self.static = nn.Parameter(torch.zeros(4 * width, features))
        self.hidden = nn.Parameter(torch.zeros(4 * width, width))
        self.scores = nn.Parameter(torch.zeros(words, width))
        self.scores_bias = nn.Parameter(torch.zeros(words))
        self._lstm = [nn.LSTM(width + features, width)]  # in a list: its own parameters are not the net's

    def forward(self, sentence: Tensor, image: Tensor) -> Tensor:
        lstm, width = self._lstm[0], self.hidden.shape[1]

        def reordered(gates: Tensor) -> Tensor:
            entry, forget, exit_, candidate = gates.chunk(4)
            return torch.cat([entry, forget, candidate, exit_])

        weights = {
            "weight_ih_l0": reordered(torch.cat([self.inputs, self.static], 1)),
            "weight_hh_l0": reordered(self.hidden),
            "bias_ih_l0": reordered(self.bias),
            "bias_hh_l0": torch.zeros(4 * width),
        }
        steps = torch.cat(
            [functional.embedding(sentence.long(), self.embedding), image.expand(len(sentence), -1, -1)], 2
        )
        outputs, _ = torch.func.functional_call(lstm, weights, (steps,))
        return functional.linear(outputs, self.scores, self.scores_bias)


def test_lrcn_says_captions(tmp_path: Path) -> None:
    steps, streams, words, width, features = 7, 3, 20, 8, 5
    filler = 'weight_filler { type: "uniform" min: -0.3 max: 0.3 }'
    embed = f"embed_param {{ bias_term: false input_dim: {words} num_output: {width} {filler} }}"
    text = layer("Embed", "embedded", "sentence", more=embed)
    text += layer("LSTM", "lstm", "embedded cont image", more=f"recurrent_param {{ num_output: {width} {filler} }}")
    text += product("scores", "lstm", words, more="axis: 2")
    text += loss("scores target", "softmax_param { axis: 2 } loss_param { ignore_label: -1 }")
    model = Captions(words, width, features)
    target = labels(words, steps, streams)
    target[5:, 1] = -1
    cont = np.ones((steps, streams), np.float32)
    cont[0] = 0
    arrays = {
        "sentence": labels(words, steps, streams),
        "cont": cont,
        "image": normal(streams, features),
        "target": target,
    }

    def objective(sentence: Tensor, cont: Tensor, image: Tensor, target: Tensor) -> Tensor:
        assert not cont[0].any()
        scores = model(sentence, image).flatten(0, 1)
        return functional.cross_entropy(scores, target.flatten().long(), ignore_index=-1)

    net = make_net(tmp_path, with_inputs(text, **{name: array.shape for name, array in arrays.items()}))
    check_agreement(net, model, objective, within=5e-3, **arrays)
