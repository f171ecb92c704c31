"""Batches for programs without blobs: arrays or tensors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...workers.api import AnyArray, IndexArray, nothing_there
from ...workers.base import ParameterError, close_all, need
from ...workers.pipeline import Pipeline
from ...workers.plan import Batch, Plan
from .delivery import Delivery, HostDelivery, is_as_stored
from .loans import LentBlocks
from .own_arrays import OwnArrays
from .tops import Shape, Top, as_in_slots, loaders_conversions

if TYPE_CHECKING:
    import torch

    from .cuda_device import CudaDevice


class NamedBatch(dict[str, Any]):
    """One batch, a mapping: by the top's name an array, or a tensor, of shape (rows, *sample shape).

    `number`: counts the batches of the run.  `epoch`, `position`: those of its first row.  `rows`: the number of rows.
    `indices`: the sample of each row, shape (rows,) int64.  If a framework makes a new one of a batch's arrays, its
    number, epoch and position are -1, and `indices` raises AttributeError.
    """

    number: int = -1
    epoch: int = -1
    position: int = -1
    _batch: Batch | None = None

    @classmethod
    def of(cls, batch: Batch, arrays: Mapping[str, Any]) -> NamedBatch:
        named = cls(arrays)
        named.number, named.epoch, named.position = batch.number, batch.epoch, batch.position
        # The batch without its arrays: a NamedBatch that is kept must not keep the whole ring of slots alive.
        named._batch = msgspec.structs.replace(batch, tops={})
        return named

    def __missing__(self, name: object) -> Any:
        __tracebackhide__ = True
        raise nothing_there(name, self, "batch")

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {tuple(array.shape)} {array.dtype}" for name, array in self.items())
        known = f"number={self.number}, epoch={self.epoch}, " if self._batch else ""
        return f"NamedBatch({known}rows={self.rows}, {{{arrays}}})"

    @property
    def rows(self) -> int:
        return self._batch.rows if self._batch else len(next(iter(self.values()), ()))

    @property
    def indices(self) -> IndexArray:
        if self._batch is None:
            raise AttributeError(
                "this NamedBatch was made anew of a batch's arrays and does not know their samples: ask the batch that "
                "the reader gave for its `indices`"
            )
        return self._batch.indices


class TupleBatch(tuple[Any, ...]):
    """The arrays of a batch in the order of the tops."""

    __slots__ = ()


class _Array(msgspec.Struct, dict=True):
    """A blob over an array or a tensor that `memory` makes when it is needed, or over a slot's memory."""

    memory: Callable[[Shape], Any]
    shape: Shape

    @cached_property
    def data(self) -> Any:
        return self.memory(self.shape)

    def adopt(self, memory: AnyArray) -> None:
        self.data = memory


class NamedBatches:
    """A pipeline's batches, each delivered into arrays that are made for it.

    The parameter `device` chooses their kind: "" NumPy arrays, "cpu" or a CUDA device torch tensors. They are the
    user's own for as long as anything refers to them: in main memory those of the slot itself, into which the loaders
    have converted what is to be converted, of at most `pipeline.plan.loans` batches at a time; else of memory that is
    used again. Raises ParameterError.
    """

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top]) -> None:
        self.pipeline = pipeline
        self.on: CudaDevice | None = None
        self._tops = tuple(tops)
        self._as_output: Callable[[Any], Any] | None = None
        """Makes the user's tensor of a blob's array."""
        device = pipeline.parameters.device
        if device:
            need("torch", f"parameter 'device' ({device!r})")
        types = [check_torch_has(top) for top in tops] if device else []
        self._memory: list[Callable[[Shape], Any]]
        if device in ("", "cpu"):
            self._memory = [partial(LentBlocks().empty, dtype=top.dtype) for top in tops]
            if device:
                import torch

                self._as_output = torch.from_numpy
        else:
            import torch

            from . import cuda_device

            cuda_device.check_cuda(device)
            self.on = cuda_device.CudaDevice(device)
            # The caller's own tensors; torch reuses memory that was freed.
            self._memory = [partial(torch.empty, dtype=dtype, device=self.on.device) for dtype in types]
        self._conversions = loaders_conversions(tops, [top.dtype for top in tops]) if self.on is None else {}
        if self._conversions:
            self.pipeline.go_to(self.pipeline.plan.converted(self._conversions).begin())
        self.delivery = self._new_delivery(pipeline.plan)

    def _new_delivery(self, plan: Plan) -> Delivery:
        if self.on is None:
            tops = as_in_slots(self._tops, plan.conversions)
            return HostDelivery(self.pipeline, tops, loans=plan.loans, shows=[is_as_stored(top) for top in tops])
        from . import cuda_delivery

        return cuda_delivery.CudaDelivery(self.pipeline, self._tops, self.on)

    def next(self, into: OwnArrays | None = None) -> NamedBatch:
        """Return the next batch, received when `delivery.before` is None; waits, and raises as Pipeline.peek does.

        It lies in `into`, or else in arrays that are made for it.
        """
        blobs: Sequence[Any]
        batch, blobs = self.delivery.fill(self._new_arrays if into is None else into.blobs)
        if into is not None:
            arrays = [blob.given for blob in blobs]
        elif self._as_output is None:
            arrays = [blob.data for blob in blobs]
        else:
            arrays = [self._as_output(blob.data) for blob in blobs]
        return NamedBatch.of(batch, {top.name: array for top, array in zip(self._tops, arrays, strict=True)})

    def _new_arrays(self, shapes: list[Shape]) -> Sequence[Any]:
        return list(map(_Array, self._memory, shapes))

    def own(self, arrays: Mapping[str, Any]) -> OwnArrays:
        """Return `arrays`, into which the batches of a loop are put; raises ParameterError if one does not fit."""
        device = None if self.on is None else self.on.device
        return OwnArrays(arrays, self._tops, self.pipeline.parameters.batch_size, device)

    def begin(self, *, own: bool) -> None:
        """Prepare a loop; with `own` its batches are put into the user's arrays, and converted on the way there.

        Slots have other types then, so the processes start anew if the last loop was of the other kind.
        """
        progress = self.delivery.progress
        plan = progress.plan.converted({} if own else self._conversions)
        if plan.conversions != progress.plan.conversions:
            delivery = self._new_delivery(plan)
            delivery.before = progress.rest.converted(plan.conversions).begin()  # its first step restarts there
            self.delivery = delivery

    def close(self) -> None:
        if self.pipeline.is_ours:
            close_all(self.delivery.close, self.pipeline.close)


def check_torch_has(top: Top) -> torch.dtype:
    """Return the torch type of a top's values; raises ParameterError if torch has none."""
    import torch

    try:
        return torch.from_numpy(np.empty(0, top.dtype)).dtype
    except TypeError:
        raise ParameterError(
            f"top {top.name!r} has the type {top.dtype}, of which torch has no tensors: leave it out of 'tops', change "
            "it in decode, or read NumPy arrays, without 'device'"
        ) from None
