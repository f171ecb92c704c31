"""Blobs over torch tensors on one device, with Caffe's interface for Python layers; for the trainer and the harness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..workers.base import BlobfeedError
from .standin import legacy_extents

Shape = tuple[int, ...]


class BlobError(BlobfeedError, ValueError):
    """A blob was used in a way at which real Caffe aborts the process."""


class BlobTensor(Tensor):
    """A tensor that works with NumPy, since layers written for Caffe compute with NumPy.

    Arrays (and lists) can be assigned to it (`top[0].data[...] = array`), it can be read as one, on CUDA as well, and
    NumPy's element-wise operations take it and give arrays. Operations of torch give plain tensors.
    """

    __array_priority__ = -1  # NumPy computes `array - blob.data`
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> BlobTensor:
        return super().__getitem__(key).as_subclass(BlobTensor)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, (Tensor, float, int)):
            super().__setitem__(key, value)
        elif self.device.type == "cpu":
            self.numpy()[key] = value
        else:
            super().__setitem__(key, torch.as_tensor(np.array(value), device=self.device))

    def __format__(self, spec: str) -> str:
        return format(self.as_subclass(Tensor), spec)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.detach().cpu().numpy()
        array = array if dtype is None else array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __array_wrap__(self, array: NDArray[Any], context: object = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else array


class BlobShape:
    """A blob's shape and the properties that follow from it."""

    @property
    def shape(self) -> Shape:
        raise NotImplementedError

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    num, channels, height, width = legacy_extents(BlobError)


class Blob(BlobShape):
    """The numbers that one layer passes to the next, and their gradient.

    A blob that shrinks keeps its memory; one that grows allocates new memory. Layers of torch do not write here: the
    net `adopt`s the tensor that such a layer returns, without a copy.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._shape: Shape | None = None
        self._data: Tensor | None = None
        self._diff: Tensor | None = None
        self._adopted: Tensor | None = None

    @property
    def shape(self) -> Shape:
        if self._shape is None:
            raise BlobError(
                "a blob was read before it had a shape: call its reshape(...) first, in the layer's reshape"
            )
        return self._shape

    @property
    def data(self) -> BlobTensor:
        return self.tensor.as_subclass(BlobTensor)

    @property
    def diff(self) -> BlobTensor:
        self._diff = self._memory(self._diff)
        return self._diff[: self.count].view(self.shape).as_subclass(BlobTensor)

    def reshape(self, *shape: int) -> None:
        """Set the shape; takes only plain Python integers, as Caffe does. `reshape()` gives a blob without axes."""
        if not all(isinstance(extent, int) for extent in shape):
            raise TypeError(f"reshape takes plain Python integers, one per axis, got {shape!r}")
        if any(extent < 0 for extent in shape):
            raise BlobError(f"reshape{shape!r}: an axis is negative")
        self._shape = shape
        self._adopted = None

    @property
    def tensor(self) -> Tensor:
        """The data as a plain, contiguous tensor."""
        if self._adopted is not None:
            self._adopted = self._adopted.detach().contiguous()
            return self._adopted
        self._data = self._memory(self._data)
        return self._data[: self.count].view(self.shape)

    def adopt(self, tensor: Tensor) -> None:
        """Use `tensor` as this blob's data, in its own shape, without its graph."""
        self._shape = tuple(tensor.shape)
        self._adopted = tensor

    def move(self, device: torch.device) -> None:
        """Have the numbers on `device` from now on, those of today included."""
        self._device = device
        self._data, self._diff, self._adopted = (
            None if each is None else each.detach().to(device) for each in (self._data, self._diff, self._adopted)
        )

    def __getstate__(self) -> dict[str, Any]:
        """For a copy: without autograd's graph, which cannot be copied."""
        return {**self.__dict__, "_adopted": None if self._adopted is None else self._adopted.detach()}

    def own(self) -> None:
        """Use the blob's own memory again: a layer is about to write there."""
        self._adopted = None

    def renew(self, tensor: Tensor) -> None:
        """Own a copy of `tensor`, in its shape, in new memory: an earlier adopter may still need the old memory."""
        self._shape, self._adopted = tuple(tensor.shape), None
        self._data = tensor.detach().flatten().clone()

    def _memory(self, memory: Tensor | None) -> Tensor:
        if memory is not None and memory.numel() >= self.count:
            return memory
        return torch.zeros(self.count, device=self._device)
