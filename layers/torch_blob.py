"""A blob over a torch tensor, for the harness: on any device, with the few things that a layer asks of a blob."""

from __future__ import annotations

import math

import torch


class TorchBlob:
    """Float32 on `device`. The memory is kept when the blob shrinks; growing takes new memory."""

    def __init__(self, device: str) -> None:
        self._memory = torch.zeros(0, device=device)
        self._data = self._memory

    @property
    def data(self) -> torch.Tensor:
        return self._data

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._data.shape)

    def reshape(self, *shape: int) -> None:
        if not all(isinstance(extent, int) for extent in shape):
            raise TypeError(f"reshape takes plain Python integers, got {shape!r}")
        count = math.prod(shape)
        if count > self._memory.numel():
            self._memory = torch.zeros(count, device=self._memory.device)
        self._data = self._memory[:count].view(shape)

    def adopt(self, tensor: torch.Tensor) -> None:
        """Show `tensor` as this blob's data, until the next reshape."""
        self._data = tensor
