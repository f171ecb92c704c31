"""The begin of a net: blobs that its user or a filler fills, and learnt blobs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...layers.torch_blob import Blob
from ..prototxt import FillerParameter, message_class
from .blobs import Shape
from .layer import ANY, Layer, Tensors, layer_type


class _Shaped(Layer):
    """Base: tops of given shapes, one for all or one for each, whose memory somebody else writes to, too."""

    bottoms = range(1)
    tops = ANY
    _tops: Sequence[Blob] = ()

    def _take_shapes(self, shapes: Sequence[Shape]) -> None:
        for nth, shape in enumerate(shapes):
            if any(extent < 0 for extent in shape):
                raise self.wrong("dim must not be negative", "shape", nth, "dim")
        self._shapes = list(shapes) * (len(self.param.top) if len(shapes) == 1 else 1)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob, shape in zip(top, self._shapes, strict=True):
            blob.reshape(*shape)
        self._tops = top

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [blob.shape for blob in self._tops]


@layer_type("Input")
class Input(_Shaped):
    """Tops that the user of the net fills."""

    def read_options(self) -> None:
        shapes, tops = [tuple(shape.dim) for shape in self.options.shape], len(self.param.top)
        if len(shapes) not in (1, tops):
            raise self.wrong(f"needs one shape, or one for each of its {tops} tops, got {len(shapes)}")
        self._take_shapes(shapes)

    def forward(self) -> Tensors:
        # Also what a layer in place has put there: into that memory its user has written since.
        return tuple(blob.tensor for blob in self._tops)


@layer_type("MemoryData")
class MemoryData(Layer):
    """Batch after batch of the arrays that `reset` was given, from the start again at their end.

    As in Caffe, transform_param does not count for arrays.
    """

    fields = ("transform_param",)
    bottoms = range(1)
    tops = range(2, 3)
    _arrays: Tensors = ()
    _at = 0

    def read_options(self) -> None:
        self._shape: Shape = (self.options.channels, self.options.height, self.options.width)

    def reset(self, data: Tensor, labels: Tensor) -> None:
        """Begin with the first batch of `data`, (samples, channels, height, width), and `labels`, (samples, …)."""
        rows = len(data)
        if data.shape[1:] != self._shape or labels.numel() != rows or not rows or rows % self.options.batch_size:
            raise self.context.misfit(
                f"needs data of shape (samples, {', '.join(map(str, self._shape))}), the number of samples a multiple "
                f"of batch_size {self.options.batch_size}, and one label for each; got data of shape "
                f"{tuple(data.shape)} and labels of shape {tuple(labels.shape)}"
            )
        self._arrays = tuple(each.to(self.context.device, torch.float32) for each in (data, labels.reshape(rows)))
        self._at = 0

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [(self.options.batch_size, *self._shape), (self.options.batch_size,)]

    def forward(self) -> Tensors:
        if not self._arrays:
            raise self.context.misfit("has no arrays yet: give it some by net.set_input_arrays(data, labels)")
        first, self._at = self._at, (self._at + self.options.batch_size) % len(self._arrays[0])
        rows = slice(first, first + self.options.batch_size)
        return tuple(each[rows].to(self.context.device) for each in self._arrays)


@layer_type("DummyData")
class DummyData(_Shaped):
    """Tops filled by fillers: constants once, so that a script may write over them; random numbers at every forward."""

    def read_options(self) -> None:
        options, tops = self.options, len(self.param.top)
        shapes = [tuple(shape.dim) for shape in options.shape]
        extents = options.num, options.channels, options.height, options.width
        if shapes and any(extents):
            raise self.wrong("give shape, or num, channels, height and width, not both", "shape")
        if not shapes and {len(each) for each in extents} <= {1, tops}:
            shapes = list(zip(*(list(each) * (tops // len(each)) for each in extents), strict=True))
        fillers = list(options.data_filler) or [message_class(FillerParameter)()]
        if len(shapes) not in (1, tops) or len(fillers) not in (1, tops):
            raise self.wrong(
                "needs one shape (or num, channels, height and width) and one data_filler, or one of each for each of "
                f"its {tops} tops, got {len(shapes)} and {len(fillers)}"
            )
        for nth, filler in enumerate(fillers):
            self.check_filler(filler, "data_filler", nth)
        self._take_shapes(shapes)
        self._fillers: list[FillerParameter] = fillers * (tops if len(fillers) == 1 else 1)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        for blob, filler in zip(top, self._fillers, strict=True):
            if filler.type == "constant":
                blob.tensor.fill_(filler.value)

    def forward(self) -> Tensors:
        tops = zip(self._tops, self._fillers, strict=True)
        return tuple(
            blob.tensor if filler.type == "constant" else self.filled(blob.shape, filler) for blob, filler in tops
        )


@layer_type("Parameter")
class Parameter(Layer):
    """A learnt blob, 0 at first, as a top."""

    bottoms = range(1)

    def make_weights(self, *bottom: Shape) -> None:
        self.add_weights(tuple(self.options.shape.dim))

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [tuple(self.blobs[0].shape)]

    def forward(self) -> Tensors:
        return (torch.clone(self.blobs[0]),)
