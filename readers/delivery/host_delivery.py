"""From a slot into memory that NumPy can see: one copy, nothing allocated; or none, by showing the slot itself.

NumPy blobs (Caffe's own) and torch tensors on the CPU go the same way: a CPU tensor lends its memory to NumPy, so that
torch starts no second thread against the loaders, and its number of threads stays what the user set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

from ...workers.base.errors import ParameterError
from ...workers.base.specs import AnyArray
from ...workers.pipeline.pipeline import Pipeline
from ...workers.plan.batch import Batch
from .delivery import Blob, Delivery, Upcoming, as_numpy, require_shape
from .tops import EvenTop, Top

if TYPE_CHECKING:
    from .delivery import Memory


@runtime_checkable
class AdoptingBlob(Protocol):
    """A blob that can show other memory as its data, until its next `reshape`."""

    def adopt(self, memory: Any, /) -> None: ...


class HostDelivery(Delivery):
    """One copy, and the slot is released at once.

    With `loans` a slot is released when so many more batches have been asked for, and the blobs of the tops for which
    `shows` is true are shown the slot's own memory, as `shown_as` gives it. What is converted or padded is copied all
    the same.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tops: Sequence[Top],
        *,
        loans: int = 0,
        shows: Sequence[bool] = (),
        shown_as: Callable[[AnyArray], Any] = np.asarray,
    ) -> None:
        super().__init__(pipeline, tops)
        self._loans = loans
        self._shown = [(i, top) for i, top in enumerate(tops) if loans and shows[i]]
        self._copied = [(i, top) for i, top in enumerate(tops) if not (loans and shows[i])]
        self._shown_as = shown_as
        self._as_stored = [(i, top) for i, top in self._copied if _is_as_stored(top)]
        is_even = all(isinstance(top, EvenTop) for top in tops)  # else the rows say which shape a batch has
        pipeline.deliver_into_host(promises=is_even and bool(self._as_stored))
        self._lent: deque[Batch] = deque()

    def end_loans(self) -> None:
        self._release_all_but(0)

    def _upcoming(self) -> Upcoming:
        # Before the wait for the next batch: the slot may be just what the loaders are waiting for.
        if self._loans:
            self._release_all_but(self._loans - 1)
        return super()._upcoming()

    def _copy(self, upcoming: Upcoming, blobs: Sequence[Blob]) -> Sequence[Any]:
        copies: list[Any] = [None] * len(blobs)
        for i, top in self._copied:
            copies[i] = data = blobs[i].data
            require_shape(top, upcoming.shapes[i], tuple(data.shape))
        made = self._make_in(upcoming.batch, copies) if self.pipeline.is_promised(upcoming.batch) else ()
        for i, top in self._copied:
            if top.name not in made:
                top.put(upcoming.batch, as_numpy(copies[i]))
        return copies

    def _make_in(self, batch: Batch, copies: Sequence[Any]) -> Collection[str]:
        """Make the batch right in the blobs that can have its rows as they are stored; returns the names of these."""
        arrays = {top.name: as_numpy(copies[i]) for i, top in self._as_stored}
        straight = {top.name: a for _, top in self._as_stored if _can_be_read_into(top, a := arrays[top.name])}
        self.pipeline.make_in(batch, straight)
        return straight

    def _take(self, batch: Batch, blobs: Sequence[Blob]) -> None:
        if blobs:
            for i, top in self._shown:
                cast(AdoptingBlob, blobs[i]).adopt(self._shown_as(cast(AnyArray, batch.tops[top.name])))
        if self.pipeline.is_next(batch):
            self.pipeline.take()
        if self._loans and blobs:
            if not self._lent or self._lent[-1] is not batch:
                self._lent.append(batch)
        elif self.pipeline.holds(batch):
            self.pipeline.release(batch)
        self.pipeline.look_ahead()

    def _release_all_but(self, keep: int) -> None:
        while len(self._lent) > keep:
            if self.pipeline.holds(self._lent[0]):
                self.pipeline.release(self._lent[0])
            self._lent.popleft()


def make_delivery(pipeline: Pipeline, tops: Sequence[Top], blobs: Sequence[Blob]) -> Delivery:
    """The delivery for blobs like these, which must have been reshaped before: their `data` says where they live."""
    devices = {device_of(blob.data) for blob in blobs}
    view = pipeline.parameters.delivery == "view"
    if view and devices != {"cpu"}:
        raise ParameterError(
            f"parameter 'delivery' is 'view': expected tops that are torch tensors on the CPU, got {_named(devices)}; "
            "use delivery: copy"
        )
    if len(devices) == 1 and (device := next(iter(devices))).startswith("cuda"):
        from .cuda_delivery import CudaDelivery
        from .cuda_device import CudaDevice

        return CudaDelivery(pipeline, tops, CudaDevice(device))
    if not view:
        return HostDelivery(pipeline, tops)
    import torch

    shows = [_can_be_shown(top, blob) for top, blob in zip(tops, blobs, strict=True)]
    return HostDelivery(pipeline, tops, loans=1, shows=shows, shown_as=torch.from_numpy)


def _can_be_shown(top: Top, blob: Blob) -> bool:
    """Whether a batch in its slot is already what `blob` shall get; raises ParameterError."""
    if not _is_as_stored(top) or top.dtype != as_numpy(blob.data).dtype:
        return False
    if not isinstance(blob, AdoptingBlob):
        raise ParameterError(
            f"parameter 'delivery' is 'view', and the blob of top {top.name!r} ({type(blob).__name__}) has no "
            "adopt(tensor) to be shown other memory with: use delivery: copy"
        )
    return True


def _is_as_stored(top: Top) -> bool:
    return isinstance(top, EvenTop) and not top.conversion.changes_values


def _can_be_read_into(top: Top, array: AnyArray) -> bool:
    return array.dtype == top.dtype and array.flags.c_contiguous and array.flags.writeable


def device_of(data: Memory) -> str:
    """`""` for a NumPy array, else torch's name for the device: "cpu", "cuda:1"."""
    return "" if isinstance(data, np.ndarray) else str(data.device)


def _named(devices: set[str]) -> str:
    return " and ".join(sorted(f"tensors on {device}" if device else "NumPy arrays" for device in devices))
