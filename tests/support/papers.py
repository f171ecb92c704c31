"""Nets as prototxt and as torch modules written by hand, for the tests and the benchmarks of the trainer.

The text of each takes the blob x and gives the blob scores.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

Written = tuple[str, nn.Sequential]


def layer(kind: str, name: str, bottom: str, top: str = "", more: str = "") -> str:
    bottoms = "".join(f' bottom: "{each}"' for each in bottom.split())
    return f'layer {{ name: "{name}" type: "{kind}"{bottoms} top: "{top or name}" {more} }}\n'


def conv(name: str, bottom: str, outputs: int, kernel: int, more: str = "", *, relu: bool = True) -> str:
    filler = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" max: 0.1 }'
    options = f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} {more} {filler} }}"
    text = layer("Convolution", name, bottom, more=options)
    return text + (layer("ReLU", f"{name}/relu", name, name) if relu else "")


def pool(name: str, bottom: str, kind: str = "MAX", size: int = 3, stride: int = 2, pad: int = 0) -> str:
    options = f"pool: {kind} kernel_size: {size} stride: {stride} pad: {pad}"
    return layer("Pooling", name, bottom, more=f"pooling_param {{ {options} }}")


def lrn(name: str, bottom: str, options: str) -> str:
    return layer("LRN", name, bottom, more=f"lrn_param {{ {options} }}")


def product(
    name: str, bottom: str, outputs: int, activation: str = "", more: str = "", filler: str = 'type: "xavier"'
) -> str:
    options = f"inner_product_param {{ num_output: {outputs} weight_filler {{ {filler} }} {more} }}"
    text = layer("InnerProduct", name, bottom, more=options)
    return text + (layer(activation, f"{name}/{activation}", name, name) if activation else "")


def loss(bottom: str, more: str = "", name: str = "loss") -> str:
    return layer("SoftmaxWithLoss", name, bottom, more=more)


def max_pool(size: int = 3, stride: int = 2, pad: int = 0) -> nn.Module:
    return nn.MaxPool2d(size, stride, pad, ceil_mode=True)


def lenet() -> Written:
    text = conv("conv1", "x", 20, 5, relu=False) + pool("pool1", "conv1", size=2)
    text += conv("conv2", "pool1", 50, 5, relu=False) + pool("pool2", "conv2", size=2)
    text += product("ip1", "pool2", 500, "ReLU") + product("scores", "ip1", 10)
    model = nn.Sequential(nn.Conv2d(1, 20, 5), max_pool(2), nn.Conv2d(20, 50, 5), max_pool(2), nn.Flatten())
    return text, model.extend([nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)])


class WithinChannel(nn.Module):
    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return x / (1 + self.alpha * functional.avg_pool2d(x.square(), 3, 1, 1)) ** 0.75


def cifar_full(alpha: float = 5e-5) -> Written:
    """`alpha`: of the normalizations."""
    norm, mean = WithinChannel(alpha), nn.AvgPool2d(3, 2, ceil_mode=True)
    within = f"local_size: 3 alpha: {alpha} beta: 0.75 norm_region: WITHIN_CHANNEL"
    text = conv("conv1", "x", 32, 5, "pad: 2", relu=False) + pool("pool1", "conv1")
    text += layer("ReLU", "relu1", "pool1", "pool1") + lrn("norm1", "pool1", within)
    text += conv("conv2", "norm1", 32, 5, "pad: 2") + pool("pool2", "conv2", "AVE") + lrn("norm2", "pool2", within)
    text += conv("conv3", "norm2", 64, 5, "pad: 2") + pool("pool3", "conv3", "AVE") + product("scores", "pool3", 10)
    model = nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), max_pool(), nn.ReLU(), norm)
    model.extend([nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), mean, norm])
    model.extend([nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), mean, nn.Flatten()])
    return text, model.append(nn.Linear(1024, 10))


def caffenet(width: int = 4096) -> Written:
    """`width`: the outputs of the fully connected layers."""
    norm, normal = "local_size: 5 alpha: 0.0001 beta: 0.75", nn.LocalResponseNorm(5, 1e-4, 0.75)
    text = conv("conv1", "x", 96, 11, "stride: 4") + pool("pool1", "conv1") + lrn("norm1", "pool1", norm)
    text += conv("conv2", "norm1", 256, 5, "pad: 2 group: 2") + pool("pool2", "conv2") + lrn("norm2", "pool2", norm)
    text += conv("conv3", "norm2", 384, 3, "pad: 1") + conv("conv4", "conv3", 384, 3, "pad: 1 group: 2")
    text += conv("conv5", "conv4", 256, 3, "pad: 1 group: 2") + pool("pool5", "conv5")
    for bottom, name in (("pool5", "fc6"), ("fc6", "fc7")):
        text += product(name, bottom, width, "ReLU") + layer("Dropout", f"{name}/drop", name, name)
    model = nn.Sequential(nn.Conv2d(3, 96, 11, 4), nn.ReLU(), max_pool(), normal)
    model.extend([nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(), max_pool(), normal])
    model.extend([nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU()])
    model.extend([nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(), max_pool(), nn.Flatten()])
    model.extend([nn.Linear(9216, width), nn.ReLU(), nn.Dropout(), nn.Linear(width, width), nn.ReLU(), nn.Dropout()])
    return text + product("scores", "fc7", 1000), model.append(nn.Linear(width, 1000))
