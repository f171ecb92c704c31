"""Pooling as in Caffe: the size of the top is rounded up, and an average counts the padding in its window."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from ..prototxt.schema import PoolMethod
from .blobs import Shape
from .layer import Layer, LayerContext, Tensors, layer_type
from .spatial import Pair, need_positive, read_pair

_FIELD = "pooling_param"


def pooled_size(size: int, kernel: int, stride: int, pad: int) -> int:
    """Number of windows along one axis, rounded up; the last must begin inside the image or the padding before it."""
    pooled = -((kernel - 2 * pad - size) // stride) + 1
    return pooled - 1 if pad and (pooled - 1) * stride >= size + pad else pooled


@layer_type("Pooling")
class Pooling(Layer):
    """Bottom (batch, channels, height, width); the largest or the mean number of each window."""

    fields = (_FIELD,)

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        options = self.param.pooling_param
        self._global = options.global_pooling
        self._average = options.pool == PoolMethod.AVE
        self._kernel = (1, 1) if self._global else read_pair(context, _FIELD, "kernel_size", "kernel", None)
        self._stride = read_pair(context, _FIELD, "stride", "stride", 1)
        self._pad = read_pair(context, _FIELD, "pad", "pad", 0)
        self._check()

    def _check(self) -> None:
        if self._global and any(
            name.startswith(("kernel", "stride", "pad"))
            for name in (field.name for field, _ in self.param.pooling_param.ListFields())
        ):
            raise self.context.unsupported("global_pooling takes no kernel, stride or pad", _FIELD)
        need_positive(self.context, _FIELD, "kernel_size", self._kernel)
        need_positive(self.context, _FIELD, "stride", self._stride)
        if any(2 * pad > kernel for pad, kernel in zip(self._pad, self._kernel, strict=True)):
            raise self.context.unsupported(
                f"pad {self._pad} is more than half the kernel {self._kernel}: a window could see only padding", _FIELD
            )
        if any(stride > kernel for stride, kernel in zip(self._stride, self._kernel, strict=True)) and not self._global:
            # Sizes are rounded up, so the last window can begin behind the image. Caffe gives -FLT_MAX there.
            raise self.context.unsupported(
                f"stride {self._stride} is larger than the kernel {self._kernel}, which is not supported", _FIELD
            )

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        self.need_axes(4, bottom[0])
        kernel = self._window(bottom[0])
        spatial = [pooled_size(*sizes) for sizes in zip(bottom[0][2:], kernel, self._stride, self._pad, strict=True)]
        if any(size + 2 * pad < edge for size, pad, edge in zip(bottom[0][2:], self._pad, kernel, strict=True)):
            raise self.context.misfit(f"the kernel {kernel} (pad {self._pad}) is larger than the bottom {bottom[0]}")
        return [(*bottom[0][:2], *spatial)]

    def _window(self, shape: Sequence[int]) -> Pair:
        return (shape[2], shape[3]) if self._global else self._kernel

    def forward(self, bottom: Tensor) -> Tensors:
        pool = functional.avg_pool2d if self._average else functional.max_pool2d
        return (pool(bottom, self._window(bottom.shape), self._stride, self._pad, ceil_mode=True),)
