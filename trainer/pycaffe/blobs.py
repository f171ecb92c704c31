"""Blobs as pycaffe shows them: NumPy arrays that can be read and written, wherever the net computes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..layer_types.blobs import Blob as NetBlob
from ..layer_types.blobs import Shape
from ..prototxt.errors import BlobError

Array = NDArray[np.float32]


class Blob:
    """A blob between layers, or one of the weights of a layer.

    On the CPU the arrays are the net's own memory. On CUDA each is a copy that goes back to the device before the net
    runs again, so that what was written to it counts.
    """

    def __init__(self, source: NetBlob | Tensor) -> None:
        self._source = source
        self._copies: dict[str, tuple[Tensor, Array]] = {}

    @property
    def data(self) -> Array:
        return self._array("data")

    @property
    def diff(self) -> Array:
        return self._array("diff")

    @property
    def shape(self) -> Shape:
        return tuple(self._source.shape)

    @property
    def count(self) -> int:
        return self._as_blob().count

    @property
    def num(self) -> int:
        return self._as_blob().num

    @property
    def channels(self) -> int:
        return self._as_blob().channels

    @property
    def height(self) -> int:
        return self._as_blob().height

    @property
    def width(self) -> int:
        return self._as_blob().width

    def reshape(self, *shape: int) -> None:
        if isinstance(self._source, Tensor):
            raise BlobError(f"weights cannot be reshaped: they have the shape {self.shape}, and {shape} was asked for")
        if shape != self.shape:
            self._source.reshape(*shape)
            self._copies.clear()

    def upload(self) -> None:
        """Bring to the device what was written to arrays on the CPU."""
        for tensor, array in self._copies.values():
            tensor.copy_(torch.from_numpy(array))
        self._copies.clear()

    def _as_blob(self) -> NetBlob:
        if not isinstance(self._source, Tensor):
            return self._source
        shaped = NetBlob(self._source.device)
        shaped.reshape(*self.shape)
        return shaped

    def _array(self, which: str) -> Array:
        if which not in self._copies:
            tensor = self._tensor(which)
            array: Array = tensor.cpu().numpy()
            if tensor.device.type == "cpu":
                return array
            self._copies[which] = tensor, array
        return self._copies[which][1]

    def _tensor(self, which: str) -> Tensor:
        if isinstance(self._source, Tensor):
            return self._source.detach() if which == "data" else _gradient(self._source)
        return self._source.tensor.detach() if which == "data" else self._source.diff.as_subclass(Tensor)


def _gradient(weights: Tensor) -> Tensor:
    # Weights shared in another shape are a view; the gradient is that of what they are a view of.
    owner = weights if weights.is_leaf or weights._base is None else weights._base
    if owner.grad is None:
        owner.grad = torch.zeros_like(owner, requires_grad=False)
    return owner.grad.view(weights.shape)
