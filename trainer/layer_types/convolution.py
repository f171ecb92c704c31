"""Kernels that slide over the spatial axes: Convolution, Deconvolution, Im2col."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from .blobs import Shape
from .layer import ANY, Layer, Tensors, layer_type


def read_sizes(layer: Layer, both: str, single: str, default: int | None, axes: int = 2, least: int = 0) -> Shape:
    """One size per spatial axis, from the option `both`, or from `single`_h and `single`_w.

    Raises PrototxtError if a size is below `least`, or missing without `default`.
    """
    options: Any = layer.options
    singles = [name for name in (f"{single}_h", f"{single}_w") if name in options.DESCRIPTOR.fields_by_name]
    given = [name for name in singles if options.HasField(name)]
    value = getattr(options, both)
    sizes = ([value] if options.HasField(both) else []) if isinstance(value, int) else list(value)
    if given:
        if sizes:
            raise layer.wrong(f"give {both} or {given[0]}, not both", given[0])
        if axes != 2:
            raise layer.wrong(f"{given[0]} is for two spatial axes; the bottom has {axes}", given[0])
        if default is None and len(given) < 2:
            (missing,) = set(singles) - set(given)
            raise layer.wrong(f"{missing} is needed as well")
        sizes = [getattr(options, name) if name in given else default for name in singles]
    elif len(sizes) not in (0, 1, axes):
        raise layer.wrong(f"{both} is given {len(sizes)} times for {axes} spatial axes", both)
    elif not sizes and default is None:
        raise layer.wrong(f"{both} is needed")
    result = tuple(sizes * (axes if len(sizes) == 1 else 1)) or (default or 0,) * axes
    if any(size < least for size in result):
        raise layer.wrong(f"{both} must be at least {least}, got {result}")
    return result


class _Sliding(Layer):
    fields = ("convolution_param",)

    def _read_sizes(self, axes: int) -> None:
        self._kernel = read_sizes(self, "kernel_size", "kernel", None, axes, least=1)
        self._stride = read_sizes(self, "stride", "stride", 1, axes, least=1)
        self._pad = read_sizes(self, "pad", "pad", 0, axes)
        self._dilation = read_sizes(self, "dilation", "dilation", 1, axes, least=1)
        self._reach = [step * (edge - 1) + 1 for step, edge in zip(self._dilation, self._kernel, strict=True)]

    def _axes(self, spatial: Shape) -> Iterator[tuple[int, ...]]:
        """The size, the kernel's reach, stride and pad of each axis."""
        return zip(spatial, self._reach, self._stride, self._pad, strict=True)

    def _slid(self, shape: Shape, spatial: Shape) -> Shape:
        """The number of positions of the kernel along each of the axes `spatial` of a bottom of `shape`."""
        counts = [(size + 2 * pad - reach) // stride + 1 for size, reach, stride, pad in self._axes(spatial)]
        if min(counts) < 1:
            raise self.context.misfit(
                f"the kernel {self._kernel} (dilation {self._dilation}, pad {self._pad}) is larger than the bottom, "
                f"which has the shape {shape}"
            )
        return tuple(counts)


@layer_type("Convolution")
class Convolution(_Sliding):
    """Bottoms (..., channels, spatial...); weights (num_output, channels / group, kernel...), bias.

    `axis` is the axis of the channels; one, two or three spatial axes follow it. Several bottoms give as many tops.
    """

    bottoms = ANY
    tops = ANY
    functions: ClassVar[Sequence[Callable[..., Tensor]]] = (
        functional.conv1d,
        functional.conv2d,
        functional.conv3d,
    )

    def make_weights(self, *bottom: Shape) -> None:
        self._axis = self.axis(bottom[0])
        spatial = len(bottom[0]) - self._axis - 1
        if not 1 <= spatial <= 3:
            raise self.context.misfit(f"needs 1 to 3 spatial axes after axis {self._axis}, got shape {bottom[0]}")
        self._read_sizes(spatial)
        self._function = self.functions[spatial - 1]
        self._channels = channels = bottom[0][self._axis]
        outputs, group = self.options.num_output, self.options.group
        if not group or channels % group or outputs % group:
            raise self.wrong(
                f"group: {group} does not divide both the {channels} channels of the bottom and num_output: {outputs}",
                "group",
            )
        shape = (*self._weight_channels(channels, outputs, group), *self._kernel)
        self.add_weights_and_bias(shape)
        if spatial == 2 and self.context.device.type == "cpu":
            # The result has the memory format of the weights, and the layers after it keep that format. On the CPU
            # torch is faster with channels last: by a third for LeNet and the CIFAR nets.
            self.blobs[0].data = self.blobs[0].data.to(memory_format=torch.channels_last)
        self._arguments = self._call_arguments()

    def _weight_channels(self, channels: int, outputs: int, group: int) -> Shape:
        return outputs, channels // group

    def _call_arguments(self) -> tuple[object, ...]:
        return self._stride, self._pad, self._dilation, self.options.group

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        axes = self._axis + 1 + len(self._kernel)
        for shape in bottom:
            if len(shape) != axes or shape[self._axis] != self._channels:
                raise self.context.misfit(
                    f"its weights are for bottoms of {axes} axes with {self._channels} channels on axis {self._axis}, "
                    f"got shape {shape}"
                )
        return [
            (*shape[: self._axis], self.options.num_output, *self._slid(shape, shape[self._axis + 1 :]))
            for shape in bottom
        ]

    def forward(self, *bottom: Tensor) -> Tensors:
        return tuple(self._slide(each) for each in bottom)

    def _slide(self, bottom: Tensor) -> Tensor:
        if self._axis == 1:
            return self._function(bottom, *self._weight_and_bias(), *self._arguments)
        top = self._function(
            bottom.reshape(-1, *bottom.shape[self._axis :]), *self._weight_and_bias(), *self._arguments
        )
        return top.reshape(*bottom.shape[: self._axis], *top.shape[1:])

    def _weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        weights, *bias = self.blobs
        return weights, bias[0] if bias else None


@layer_type("Deconvolution")
class Deconvolution(Convolution):
    """The backward of a Convolution, as a forward. Weights (channels, num_output / group, kernel...)."""

    functions = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)

    def _weight_channels(self, channels: int, outputs: int, group: int) -> Shape:
        return channels, outputs // group

    def _call_arguments(self) -> tuple[object, ...]:
        return self._stride, self._pad, 0, self.options.group, self._dilation

    def _slid(self, shape: Shape, spatial: Shape) -> Shape:
        sizes = tuple(stride * (size - 1) + reach - 2 * pad for size, reach, stride, pad in self._axes(spatial))
        if min(sizes) < 1:
            raise self.context.misfit(f"pad {self._pad} leaves nothing of a bottom of shape {shape}")
        return sizes


@layer_type("Im2col")
class Im2col(_Sliding):
    """Bottom (batch, channels, height, width) → (batch, channels · kernel, height', width')."""

    def make_weights(self, *bottom: Shape) -> None:
        self._read_sizes(2)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        self.need_axes(4, bottom[0])
        kernel = self._kernel[0] * self._kernel[1]
        return [(bottom[0][0], bottom[0][1] * kernel, *self._slid(bottom[0], bottom[0][2:]))]

    def forward(self, bottom: Tensor) -> Tensors:
        columns = functional.unfold(bottom, self._kernel, self._dilation, self._pad, self._stride)
        return (columns.view(*columns.shape[:2], *self._slid(tuple(bottom.shape), tuple(bottom.shape[2:]))),)
