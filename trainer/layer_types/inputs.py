"""The ends of a net: blobs that its user fills, and blobs that nobody needs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .blobs import Blob, Shape
from .layer import ANY, Layer, LayerContext, Tensors, layer_type


@layer_type("Input")
class Input(Layer):
    """Tops of the given shapes (one for all, or one for each); the user of the net fills them."""

    fields = ("input_param",)
    bottoms = range(1)
    tops = ANY

    def __init__(self, context: LayerContext) -> None:
        super().__init__(context)
        self._tops: Sequence[Blob] = ()
        shapes, tops = len(self.param.input_param.shape), len(self.param.top)
        if shapes not in (1, tops):
            raise context.unsupported(
                f"needs one shape, or one for each of its {tops} tops, got {shapes}", "input_param"
            )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = self.param.input_param.shape
        for position, blob in enumerate(top):
            blob.reshape(*shapes[position if len(shapes) > 1 else 0].dim)
        self._tops = top

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return [blob.shape for blob in self._tops]

    def forward(self) -> Tensors:
        for blob in self._tops:
            blob.own()
        return tuple(blob.tensor for blob in self._tops)


@layer_type("Silence")
class Silence(Layer):
    """Keeps its bottoms out of the net's outputs."""

    bottoms = ANY
    tops = range(1)

    def top_shapes(self, *bottom: Shape) -> Sequence[Shape]:
        return []

    def forward(self, *bottom: Tensor) -> Tensors:
        return ()
