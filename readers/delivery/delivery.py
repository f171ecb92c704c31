"""From a slot of the ring into the trainer's own blobs: one copy, nothing allocated.

NumPy blobs (Caffe's own) and torch tensors on the CPU go the same way: a CPU tensor lends its memory to NumPy, so that
torch starts no second thread against the loaders, and its number of threads stays what the user set. Blobs on a CUDA
device are served by cuda.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import numpy as np

from ...workers.base.errors import BlobfeedError, ParameterError
from ...workers.base.specs import AnyArray
from ...workers.pipeline.pipeline import Pipeline
from ...workers.plan.batch import Batch
from ...workers.plan.plan import State
from .tops import EvenTop, Shape, Top

if TYPE_CHECKING:
    import torch

    Memory = AnyArray | torch.Tensor


class Blob(Protocol):
    """What a batch is delivered into: `data` is fetched anew each time, as Caffe's blobs want it."""

    @property
    def data(self) -> Memory: ...


@runtime_checkable
class AdoptingBlob(Protocol):
    """A blob that can show another tensor as its data, until its next `reshape`."""

    def adopt(self, tensor: torch.Tensor) -> None: ...


class Delivery(ABC):
    """Takes batches of a pipeline and brings each into blobs. `tops`: one for each blob, in order."""

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top]) -> None:
        self.pipeline = pipeline
        self.tops = tuple(tops)

    def next_shapes(self) -> list[Shape]:
        """The shapes of the batch that comes next, (rows, ...); waits until it is known."""
        batch = self.pipeline.peek()
        return [top.shape(batch) for top in self.tops]

    @abstractmethod
    def deliver(self, blobs: Sequence[Blob]) -> Batch:
        """Put the next batch into `blobs`, which have `next_shapes()`.

        What is returned says which batch it was; its arrays may be gone.
        """

    def pass_over(self) -> None:
        """The next batch has something that would be wrong with it for ever."""
        self.pipeline.release(self.pipeline.take())

    def state_dict(self) -> State:
        """Where to go on after what has been delivered."""
        return self.pipeline.state_dict()

    def close(self) -> None:  # noqa: B027 - most hold nothing between two batches
        """Give back what is held of the pipeline; before the pipeline itself is closed."""


class CopyDelivery(Delivery):
    """One copy into memory that NumPy can see; the slot is released at once."""

    def deliver(self, blobs: Sequence[Blob]) -> Batch:
        batch = self.pipeline.peek()
        outs = [as_numpy(blob.data) for blob in blobs]
        for top, out in zip(self.tops, outs, strict=True):
            require_shape(top, top.shape(batch), out.shape)
        try:
            for top, out in zip(self.tops, outs, strict=True):
                top.put(batch, out)
        except BlobfeedError:
            self.pass_over()
            raise
        # Taken only now: where Ctrl-C breaks off the copy, the next forward has the same batch.
        self.pipeline.release(self.pipeline.take())
        self.pipeline.look_ahead()
        return batch


class ViewDelivery(Delivery):
    """No copy: each blob shows the slot's own memory. It stays valid until the next batch is delivered, and no longer.

    A top whose values or types are converted, or that is padded, is copied all the same: its blob is written to.
    `blobs`: ones like those that will be delivered to. Raises ParameterError where one cannot be shown other memory.
    """

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], blobs: Sequence[Blob]) -> None:
        import torch

        super().__init__(pipeline, tops)
        self._from_numpy = torch.from_numpy
        self._viewed: list[tuple[int, Top]] = []
        self._copied: list[tuple[int, Top]] = []
        for i, (top, blob) in enumerate(zip(tops, blobs, strict=True)):
            if _is_as_stored(top, as_numpy(blob.data).dtype):
                _require_adopting(blob, top.name)
                self._viewed.append((i, top))
            else:
                self._copied.append((i, top))
        self._shown: Batch | None = None

    def deliver(self, blobs: Sequence[Blob]) -> Batch:
        self.close()
        batch = self.pipeline.peek()
        for i, top in self._copied:
            require_shape(top, top.shape(batch), tuple(blobs[i].data.shape))
        try:
            for i, top in self._copied:
                top.put(batch, as_numpy(blobs[i].data))
        except BlobfeedError:
            self.pass_over()
            raise
        for i, top in self._viewed:
            cast(AdoptingBlob, blobs[i]).adopt(self._from_numpy(batch.tops[top.name]))
        self._shown = self.pipeline.take()
        self.pipeline.look_ahead()
        return batch

    def close(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            self.pipeline.release(shown)


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
        from .cuda_lane import CudaLane

        return CudaDelivery(pipeline, tops, CudaLane(device))
    if view:
        return ViewDelivery(pipeline, tops, blobs)
    return CopyDelivery(pipeline, tops)


def _is_as_stored(top: Top, dtype: np.dtype[np.generic]) -> bool:
    """Whether a batch in its slot is already what a blob of `dtype` shall get."""
    return isinstance(top, EvenTop) and not top.conversion.changes_values and top.spec.dtype == dtype


def require_shape(top: Top, expected: Shape, given: Shape) -> None:
    """Raises ValueError; to be asked before the batch is taken, so that it is still there after a reshape."""
    if given != expected:
        raise ValueError(
            f"top {top.name!r} has the shape {given} and the next batch {expected}: call reshape before each forward"
        )


def as_numpy(data: Memory) -> AnyArray:
    """`data` as NumPy sees it: the same memory."""
    return data if isinstance(data, np.ndarray) else data.detach().numpy()


def device_of(data: Memory) -> str:
    """`""` for a NumPy array, else torch's name for the device: "cpu", "cuda:1"."""
    return "" if isinstance(data, np.ndarray) else str(data.device)


def _named(devices: set[str]) -> str:
    return " and ".join(sorted(f"tensors on {device}" if device else "NumPy arrays" for device in devices))


def _require_adopting(blob: Blob, name: str) -> None:
    if not isinstance(blob, AdoptingBlob):
        raise ParameterError(
            f"parameter 'delivery' is 'view', and the blob of top {name!r} ({type(blob).__name__}) has no "
            "adopt(tensor) to be shown other memory with: use delivery: copy"
        )
