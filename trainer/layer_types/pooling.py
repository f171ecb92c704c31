"""Pooling as in Caffe: the size of the top is rounded up, and an average counts the padding in its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..prototxt import PoolMethod, RoundMode
from .blobs import Shape
from .convolution import read_sizes
from .functions import row
from .layer import Layer, Tensors, layer_type


def pooled_size(size: int, kernel: int, stride: int, pad: int, round_up: bool = True, clip: bool = True) -> int:
    """Number of windows along one axis; with `clip`, the last begins inside the image or the padding before it."""
    steps = size + 2 * pad - kernel
    pooled = (-(-steps // stride) if round_up else steps // stride) + 1
    return pooled - 1 if clip and (pooled - 1) * stride >= size + pad else pooled


@layer_type("Pooling")
class Pooling(Layer):
    """Bottom (batch, channels, height, width); the maximum or the mean of each window, or a number drawn from it.

    The second top of MAX has the position of each largest number in its channel.
    """

    tops = range(1, 3)

    def read_options(self) -> None:
        options = self.options
        self._global = options.global_pooling
        self._method = options.pool
        self._round_up = options.round_mode == RoundMode.CEIL
        self._kernel = (1, 1) if self._global else read_sizes(self, "kernel_size", "kernel", None, least=1)
        self._stride = read_sizes(self, "stride", "stride", 1, least=1)
        self._pad = read_sizes(self, "pad", "pad", 0)
        if any(pad >= kernel for pad, kernel in zip(self._pad, self._kernel, strict=True) if pad):
            raise self.wrong(
                f"pad {self._pad} must be smaller than the kernel {self._kernel}: a window could hold only padding"
            )

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        self.need_axes(4, bottom[0])
        sizes = bottom[0][2:]
        self._kernel = kernel = tuple(sizes) if self._global else self._kernel
        axes = list(zip(sizes, kernel, self._stride, self._pad, strict=True))
        # As in Caffe, a pad of one axis clips both.
        self._counts = tuple(pooled_size(*axis, self._round_up, any(self._pad)) for axis in axes)
        for (size, _, stride, pad), count in zip(axes, self._counts, strict=True):
            if count < 1:
                raise self.context.misfit(
                    f"the kernel {kernel} (pad {self._pad}) is larger than the bottom {bottom[0]}"
                )
            if (count - 1) * stride >= size + pad:
                raise self.context.misfit(
                    f"with stride {self._stride}, the last window begins behind the bottom {bottom[0]}, where Caffe's "
                    "result is undefined; round_mode: FLOOR avoids that"
                )
        return [(*bottom[0][:2], *self._counts)] * self.top_count

    def forward(self, bottom: Tensor) -> Tensors:
        windows = self._kernel, self._stride, self._pad, self._counts
        if self._method == PoolMethod.STOCHASTIC:
            generator = self.context.generators.dropout if self.training else None
            return (_draw(bottom, *windows, generator),)
        average, mask = self._method == PoolMethod.AVE, self.top_count > 1
        return pool(bottom, *windows, self._round_up, average=average, mask=mask)


def pool(
    bottom: Tensor,
    kernel: Shape,
    stride: Shape,
    pad: Shape,
    counts: Shape,
    round_up: bool = True,
    *,
    average: bool,
    mask: bool = False,
) -> Tensors:
    """`counts` windows of `bottom`, each reduced to one number; with `mask`, also the positions of the maxima."""
    if all(2 * before <= edge for before, edge in zip(pad, kernel, strict=True)):
        if average:
            return (functional.avg_pool2d(bottom, kernel, stride, pad, round_up),)
        if mask:
            tops, positions = functional.max_pool2d(bottom, kernel, stride, pad, 1, round_up, return_indices=True)
            return tops, positions.to(bottom.dtype)
        return (functional.max_pool2d(bottom, kernel, stride, pad, 1, round_up),)
    # torch pads by at most half the kernel, so this pads by itself.
    padding = _padding(bottom, kernel, stride, pad, counts)
    if not average:
        padded = functional.pad(bottom, padding, value=float("-inf"))
        tops, positions = functional.max_pool2d(padded, kernel, stride, return_indices=True)
        rows, columns = positions // padded.shape[3] - padding[2], positions % padded.shape[3] - padding[0]
        return (tops, (rows * bottom.shape[3] + columns).to(bottom.dtype))[: 1 + mask]
    sums = functional.avg_pool2d(functional.pad(bottom, padding), kernel, stride, divisor_override=1)
    divisors = [
        [min(nth * step + edge, size + 2 * before) - nth * step for nth in range(count)]
        for count, step, edge, size, before in zip(counts, stride, kernel, bottom.shape[2:], pad, strict=True)
    ]
    return (sums / torch.outer(*(torch.tensor(each, dtype=sums.dtype) for each in divisors)).to(sums.device),)


def _padding(bottom: Tensor, kernel: Shape, stride: Shape, pad: Shape, counts: Shape) -> Shape:
    """The pad that functional.pad adds to the left, right, top and bottom, so that `counts` windows are full."""
    (top, below), (left, right) = (
        (before, max((count - 1) * step + edge - size - before, 0))
        for count, step, edge, size, before in zip(counts, stride, kernel, bottom.shape[2:], pad, strict=True)
    )
    return left, right, top, below


def _draw(
    bottom: Tensor, kernel: Shape, stride: Shape, pad: Shape, counts: Shape, generator: torch.Generator | None
) -> Tensor:
    """A number of each window, drawn with itself as the weight; without `generator`, the mean with these weights."""
    padding = _padding(bottom, kernel, stride, pad, counts)
    columns = functional.unfold(functional.pad(bottom, padding), kernel, stride=stride)
    windows = columns.view(*bottom.shape[:2], -1, *counts)
    if generator is None:
        return windows.square().sum(2) / windows.sum(2).clamp(min=torch.finfo(bottom.dtype).tiny)
    sums = windows.detach().cumsum(2)
    limits = torch.rand(sums[:, :, -1:].shape, generator=generator, device=bottom.device) * sums[:, :, -1:]
    return windows.gather(2, (sums < limits).sum(2, keepdim=True)).squeeze(2)


def _pyramid(x: Tensor, options: Any) -> Tensor:
    """Spatial pyramid pooling: 1, 2, 4, ... windows along each axis, flattened and joined: (batch, numbers)."""
    if x.dim() != 4:
        raise ValueError("needs a bottom of 4 axes")
    sizes, levels = x.shape[2:], list[Tensor]()
    for level in range(options.pyramid_height):
        kernel = tuple(-(-size // 2**level) for size in sizes)
        pad = tuple((edge * 2**level - size + 1) // 2 for edge, size in zip(kernel, sizes, strict=True))
        if any(before >= edge for before, edge in zip(pad, kernel, strict=True) if before):
            raise ValueError(
                f"pyramid_height {options.pyramid_height} is too large: a window of its kernel {kernel} (pad {pad}) "
                "would hold only padding"
            )
        counts = tuple(pooled_size(*each) for each in zip(sizes, kernel, kernel, pad, strict=True))
        levels += pool(x, kernel, kernel, pad, counts, average=options.pool == PoolMethod.AVE)
    return levels[0] if len(levels) == 1 else torch.cat([top.flatten(1) for top in levels], 1)


row("SPP", _pyramid, "options")
