"""Batches as tensors on a CUDA device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from ...workers.base.errors import ParameterError
from ...workers.pipeline.pipeline import Pipeline
from ...workers.plan.plan import State
from .cuda_delivery import CudaDelivery
from .cuda_lane import CudaLane
from .handout import Handout, NamedBatch, check_torch_has
from .tops import Top


class CudaHandout(Handout):
    """Tensors on a CUDA device, to which the next batches travel ahead of time; those on loan are filled again."""

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], *, copy: bool, loans: int = 1) -> None:
        super().__init__(pipeline, tops, copy=copy, loans=loans)
        self._device = check_cuda(pipeline.parameters.device)
        self._types = [check_torch_has(top) for top in tops]
        self._delivery = CudaDelivery(pipeline, tops, CudaLane(self._device))
        self._lent: deque[list[_Tensor]] = deque()
        self._ahead: tuple[State, NamedBatch] | None = None

    def next(self) -> NamedBatch:
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead else self._deliver()

    def next_epoch(self) -> int:
        if self._ahead is None:
            self._ahead = self._delivery.state_dict(), self._deliver()
        return self._ahead[1].epoch

    def _deliver(self) -> NamedBatch:
        shapes = self._delivery.next_shapes()
        tensors = self._lent.popleft() if self._loans and len(self._lent) == self._loans else []
        if [tuple(tensor.data.shape) for tensor in tensors] != shapes:
            tensors = [self._empty(shape, dtype) for shape, dtype in zip(shapes, self._types, strict=True)]
        batch = self._delivery.deliver(tensors)
        if self._loans:
            self._lent.append(tensors)
        return NamedBatch.of(batch, {top.name: blob.data for top, blob in zip(self._tops, tensors, strict=True)})

    def state_dict(self) -> State:
        return self._ahead[0] if self._ahead else self._delivery.state_dict()

    def take_back(self, keep: int = 0) -> None:
        """The slots are released by the delivery; the tensors stay, to be used again."""

    def close(self) -> None:
        self._delivery.close()

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> _Tensor:
        return _Tensor(torch.empty(tuple(shape), dtype=dtype, device=self._device))


class _Tensor:
    """A blob for the delivery."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data


def check_cuda(device: str) -> str:
    """The parameter `device` where there is such a device; raises ParameterError."""
    count = torch.cuda.device_count()
    known = ["cuda", *(f"cuda:{number}" for number in range(count))] if count else []
    if device not in known:
        here = f"here are {', '.join(known)}" if known else "torch finds no CUDA device here"
        raise ParameterError(f"parameter 'device' is {device!r}: expected '' (NumPy), 'cpu' or a CUDA device; {here}")
    return device
