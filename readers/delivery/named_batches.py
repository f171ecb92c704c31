"""Batches as a program without blobs wants them: arrays or tensors by name, its own or on loan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...workers.base.checks import nothing_there
from ...workers.base.errors import ParameterError
from ...workers.base.extras import need
from ...workers.base.specs import AnyArray, IndexArray
from ...workers.pipeline.pipeline import Pipeline
from ...workers.plan.batch import Batch
from .array_pool import ArrayPool
from .delivery import Delivery, HostDelivery, is_as_stored
from .own_arrays import OwnArray, OwnArrays
from .tops import Shape, Top

if TYPE_CHECKING:
    import torch

    from .cuda_device import CudaDevice


class NamedBatch(dict[str, Any]):
    """One batch: by the top's name an array, or a tensor, of shape (rows, *sample shape).

    `number`: counts the batches of the run.  `epoch`, `position`: where its first row stands.  `rows`: how many.
    `indices`: the sample of each row, shape (rows,) int64.  One that a framework has made anew of a batch's arrays
    knows its rows alone: its number, epoch and position are -1.
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
    """A blob over an array or a tensor of its own, made by `memory` when it is needed; or shown a slot's memory."""

    memory: Callable[[Shape], Any]
    shape: Shape

    @cached_property
    def data(self) -> Any:
        return self.memory(self.shape)

    def adopt(self, memory: AnyArray) -> None:
        self.data = memory


class NamedBatches:
    """A pipeline's batches, each delivered into arrays that are made for it.

    The parameter `device` says what they are: "" NumPy arrays, "cpu" or a CUDA device torch tensors. With `copy` they
    are the user's own; else on loan: valid until `loans` more batches have been asked for, and in main memory, if
    nothing is to be converted, the slot's own memory. `on`: that of the batches before a jump, whose delivery is closed
    before the first batch after it. Raises ParameterError.
    """

    def __init__(
        self, pipeline: Pipeline, tops: Sequence[Top], *, copy: bool, loans: int = 1, on: CudaDevice | None = None
    ) -> None:
        self.on = on
        self._tops = tuple(tops)
        self._given: Callable[[Any], Any] | None = None
        """What makes the user's of a blob's data."""
        self.delivery: Delivery
        device = pipeline.parameters.device
        if device:
            need("torch", f"parameter 'device' ({device!r})")
        types = [check_torch_has(top) for top in tops] if device else []
        if device in ("", "cpu"):
            shows = [is_as_stored(top) for top in tops]
            self.delivery = HostDelivery(pipeline, tops, loans=0 if copy else loans, shows=shows)
            self._memory: list[Callable[[Shape], Any]] = [partial(ArrayPool().empty, dtype=top.dtype) for top in tops]
            if device:
                import torch

                self._given = torch.from_numpy
        else:
            import torch

            from . import cuda_delivery, cuda_device

            cuda_device.check_cuda(device)
            self.on = on = on or cuda_device.CudaDevice(device)
            self.delivery = cuda_delivery.CudaDelivery(pipeline, tops, on)
            # The caller's own tensors; torch gives memory that was let go again.
            self._memory = [partial(torch.empty, dtype=dtype, device=on.device) for dtype in types]

    def next(self, into: OwnArrays | None = None) -> NamedBatch:
        """The next batch, the same one until `delivery.filled` is None; waits, and raises what Pipeline.peek raises.

        It lies in `into`, or else in arrays that are made for it.
        """
        blobs = self._blobs() if into is None else into.blobs(self.delivery.next_shapes())
        batch = self.delivery.fill(blobs)
        names = [top.name for top in self._tops]
        if into is not None:
            return NamedBatch.of(batch, {name: blob.given for name, blob in zip(names, blobs, strict=True)})
        named = {name: blob.data for name, blob in zip(names, blobs, strict=True)}
        if self._given is not None:
            named = {name: self._given(data) for name, data in named.items()}
        return NamedBatch.of(batch, named)

    def own(self, arrays: Mapping[str, Any]) -> OwnArrays:
        """`arrays`, which the batches of a loop are put into; raises ParameterError where one does not fit."""
        device = None if self.on is None else self.on.device
        return OwnArrays(arrays, self._tops, self.delivery.pipeline.parameters.batch_size, device)

    def _blobs(self) -> Sequence[Any]:
        filled = self.delivery.filled
        # After Ctrl-C the batch may lie in a user's arrays: the loop that goes on here gets a copy.
        if filled is not None and not any(isinstance(blob, OwnArray) for blob in filled.blobs):
            return filled.blobs
        return list(map(_Array, self._memory, self.delivery.next_shapes()))

    @property
    def count(self) -> int:
        """Batches that have been received."""
        return self.delivery.progress.taken


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
