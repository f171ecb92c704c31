"""Blobs of a net as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...layers.torch_blob import Blob, BlobError, BlobShape

Shape = tuple[int, ...]
Array = NDArray[np.float32]


class ArrayBlob(BlobShape):
    """A blob between layers, or one of the weights of a layer, as NumPy arrays: so pycaffe shows them.

    On the CPU the arrays are the net's own memory. On CUDA each is a copy. If it was written to, `upload` brings it
    back to the device.
    """

    def __init__(self, source: Blob | Callable[[], Tensor]) -> None:
        self._source = source  # weights are asked for anew: they may have other memory, or none of their own
        self._copies: dict[str, tuple[Tensor, Array, Array]] = {}
        """The tensor, the array, and what the array was when it was made."""

    @property
    def data(self) -> Array:
        return self._array("data")

    @property
    def diff(self) -> Array:
        return self._array("diff")

    @property
    def shape(self) -> Shape:
        return tuple(self._source.shape if isinstance(self._source, Blob) else self._source().shape)

    def reshape(self, *shape: int) -> None:
        if not isinstance(self._source, Blob):
            raise BlobError(f"weights cannot be reshaped: they have the shape {self.shape}, and {shape} was asked for")
        self.upload()
        self._source.reshape(*shape)

    def upload(self) -> None:
        """Bring to the device what was written to arrays on the CPU."""
        for tensor, array, before in self._copies.values():
            # An array that was only read stays: the net, or another array of shared weights, may have newer numbers.
            if not np.array_equal(array, before, equal_nan=True):
                # By `data`, as autograd would not allow it for a blob that a backward may need.
                tensor.data.copy_(torch.from_numpy(array))
        self._copies.clear()

    @staticmethod
    def is_on_host(tensor: Tensor) -> bool:
        """Return true if reading the tensor's numbers waits for no device."""
        return tensor.device.type == "cpu"

    def _array(self, which: str) -> Array:
        if which not in self._copies:
            tensor = self._tensor(which)
            if self.is_on_host(tensor):
                return tensor.numpy()
            array: Array = tensor.to("cpu", copy=True).numpy()
            self._copies[which] = tensor, array, array.copy()
        return self._copies[which][1]

    def _tensor(self, which: str) -> Tensor:
        if isinstance(self._source, Blob):
            return self._source.tensor.detach() if which == "data" else self._source.diff.as_subclass(Tensor)
        return self._source().detach() if which == "data" else gradient_of(self._source())


def gradient_of(weights: Tensor) -> Tensor:
    """The memory of their gradient, with zeros if they have none."""
    # Weights shared in another shape are a view; the gradient is that of what they are a view of.
    owner = weights if weights._base is None else weights._base
    if owner.grad is None:
        owner.grad = torch.zeros_like(owner, requires_grad=False)
    return owner.grad.view(weights.shape)
