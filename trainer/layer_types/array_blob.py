"""Blobs as NumPy arrays that can be read and written, wherever the net computes: so pycaffe shows them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..prototxt.errors import BlobError
from .blobs import Blob, Shape

Array = NDArray[np.float32]


class ArrayBlob:
    """A blob between layers, or one of the weights of a layer.

    On the CPU the arrays are the net's own memory. On CUDA each is a copy that `upload` brings back to the
    device, so that what was written to it counts.
    """

    def __init__(self, source: Blob | Tensor) -> None:
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
        self._copies.clear()
        self._source.reshape(*shape)

    def upload(self) -> None:
        """Bring to the device what was written to arrays on the CPU."""
        for tensor, array in self._copies.values():
            # By `data`, as autograd would not allow it: a blob that was only read, and may be needed by a backward,
            # goes back too.
            tensor.data.copy_(torch.from_numpy(array))
        self._copies.clear()

    def _as_blob(self) -> Blob:
        if not isinstance(self._source, Tensor):
            return self._source
        shaped = Blob(self._source.device)
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
