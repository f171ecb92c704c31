"""Batches as a program without blobs wants them: arrays or tensors by name, its own or on loan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..workers.batch import Batch
from ..workers.errors import ParameterError
from ..workers.pipeline import Pipeline
from ..workers.run_plan import State
from ..workers.specs import AnyArray, IndexArray
from .array_pool import ArrayPool
from .delivery_tops import EvenTop, Top

if TYPE_CHECKING:
    import torch


class NamedBatch(dict[str, Any]):
    """One batch: by the top's name an array, or a tensor, of shape (rows, *sample shape).

    `number`: counts the batches of the run.  `epoch`, `position`: where its first row stands.  `rows`: how many.
    `indices`: the sample of each row, shape (rows,) int64.
    """

    number: int
    epoch: int
    position: int
    rows: int

    @classmethod
    def of(cls, batch: Batch, arrays: Mapping[str, Any]) -> NamedBatch:
        named = cls(arrays)
        named.number, named.epoch, named.position, named.rows = batch.number, batch.epoch, batch.position, batch.rows
        # The batch without its arrays: who keeps a NamedBatch must not keep the whole ring of slots alive by it.
        named._batch = replace(batch, tops={})
        return named

    _batch: Batch

    @property
    def indices(self) -> IndexArray:
        return self._batch.indices


class Handout(ABC):
    """Takes batches of a pipeline and hands their arrays to the user.

    With `copy` they are the user's own; else on loan: valid until `loans` more batches have been asked for.
    """

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], *, copy: bool, loans: int = 1) -> None:
        self._pipeline = pipeline
        self._tops = tuple(tops)
        self._loans = 0 if copy else loans

    @abstractmethod
    def next(self) -> NamedBatch:
        """The next batch; waits for it, and raises what Pipeline.take raises."""

    def next_epoch(self) -> int:
        """The epoch of the next batch, which stays where it is; waits for it."""
        return self._pipeline.peek().epoch

    def state_dict(self) -> State:
        """Where the next batch stands that has not been handed out."""
        return self._pipeline.state_dict()

    @abstractmethod
    def take_back(self, keep: int = 0) -> None:
        """End the loans of all batches but the last `keep`."""

    def close(self) -> None:
        """Give back what is held of the pipeline; before the pipeline itself is closed."""
        self.take_back()


class NumpyHandout(Handout):
    """NumPy arrays. On loan, where nothing is to be converted, is the slot's own memory."""

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], *, copy: bool, loans: int = 1) -> None:
        super().__init__(pipeline, tops, copy=copy, loans=loans)
        self._pools = [ArrayPool() for _ in tops]
        self._lent: deque[Batch] = deque()

    def next(self) -> NamedBatch:
        # Before the wait for the next one: the slot may be just what the loaders are waiting for.
        self.take_back(max(0, self._loans - 1))
        batch = self._pipeline.take()
        self._lent.append(batch)
        arrays = {top.name: self._array(top, batch, pool) for top, pool in zip(self._tops, self._pools, strict=True)}
        self.take_back(self._loans)
        return NamedBatch.of(batch, arrays)

    def take_back(self, keep: int = 0) -> None:
        while len(self._lent) > keep:
            self._pipeline.release(self._lent.popleft())

    def _array(self, top: Top, batch: Batch, pool: ArrayPool) -> AnyArray:
        if self._loans and isinstance(top, EvenTop) and not top.conversion.changes_values:
            return top.rows(batch)
        out = pool.empty(top.shape(batch), top.dtype)
        top.put(batch, out)
        return out


class TorchHandout(NumpyHandout):
    """The same as torch tensors on the CPU, which share the arrays' memory."""

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], *, copy: bool, loans: int = 1) -> None:
        super().__init__(pipeline, tops, copy=copy, loans=loans)
        import torch

        self._from_numpy = torch.from_numpy
        for top in tops:
            check_torch_has(top)

    def next(self) -> NamedBatch:
        batch = super().next()
        for name, array in batch.items():
            batch[name] = self._from_numpy(array)
        return batch


class CudaHandout(Handout):
    """Tensors on a CUDA device, to which the next batches travel ahead of time; those on loan are filled again."""

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], *, copy: bool, loans: int = 1) -> None:
        super().__init__(pipeline, tops, copy=copy, loans=loans)
        self._device = check_cuda(pipeline.parameters.device)
        self._types = [check_torch_has(top) for top in tops]
        from .cuda import CudaLane
        from .cuda_delivery import CudaDelivery

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
        import torch

        return _Tensor(torch.empty(tuple(shape), dtype=dtype, device=self._device))


class _Tensor:
    """A blob for the delivery."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data


def check_torch_has(top: Top) -> torch.dtype:
    """The torch type of a top's values; raises ParameterError where torch has none."""
    import torch

    try:
        return torch.from_numpy(np.empty(0, top.dtype)).dtype
    except TypeError:
        raise ParameterError(
            f"top {top.name!r} has the type {top.dtype}, of which torch has no tensors: leave it out of 'tops', change "
            "it in decode, or read NumPy arrays, without 'device'"
        ) from None


def check_cuda(device: str) -> str:
    """The parameter `device` where there is such a device; raises ParameterError."""
    import torch

    count = torch.cuda.device_count()
    known = ["cuda", *(f"cuda:{number}" for number in range(count))] if count else []
    if device not in known:
        here = f"here are {', '.join(known)}" if known else "torch finds no CUDA device here"
        raise ParameterError(f"parameter 'device' is {device!r}: expected '' (NumPy), 'cpu' or a CUDA device; {here}")
    return device


def make_handout(pipeline: Pipeline, tops: Sequence[Top], *, copy: bool, loans: int = 1) -> Handout:
    """The handout for the pipeline's parameter `device`; raises ParameterError."""
    kinds: dict[str, type[Handout]] = {"": NumpyHandout, "cpu": TorchHandout}
    return kinds.get(pipeline.parameters.device, CudaHandout)(pipeline, tops, copy=copy, loans=loans)
