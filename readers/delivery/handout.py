"""Batches as a program without blobs wants them: arrays or tensors by name, its own or on loan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...workers.base.errors import ParameterError
from ...workers.base.specs import AnyArray, IndexArray
from ...workers.pipeline.pipeline import Pipeline
from ...workers.plan.batch import Batch
from ...workers.plan.plan import State
from .array_pool import ArrayPool
from .tops import EvenTop, Top

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

    @abstractmethod
    def close(self) -> None:
        """The pipeline is about to be closed, and all loans with it."""


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
        self._pipeline.look_ahead()
        return NamedBatch.of(batch, arrays)

    def close(self) -> None:
        self._lent.clear()

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


def make_handout(pipeline: Pipeline, tops: Sequence[Top], *, copy: bool, loans: int = 1) -> Handout:
    """The handout for the pipeline's parameter `device`; raises ParameterError."""
    device = pipeline.parameters.device
    if not device:
        return NumpyHandout(pipeline, tops, copy=copy, loans=loans)
    if device == "cpu":
        return TorchHandout(pipeline, tops, copy=copy, loans=loans)
    from .handout_cuda import CudaHandout

    return CudaHandout(pipeline, tops, copy=copy, loans=loans)
