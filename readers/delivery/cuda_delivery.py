"""Batches on their way to a CUDA device, ahead of the trainer.

    slot ──► page-locked copy ──copy stream──► device buffer ──the trainer's stream: type, mean, scale──► blob
     │                                            │
     └ released when it is copied                 └ filled again when the trainer's stream is past the work that read it

The next batch that is ready is sent before `fill` returns, so that it travels while the net computes. Slots travel as
they are: uint8 images are a quarter of the bytes that the blobs hold.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ...workers.api import AnyArray, IndexArray
from ...workers.base import BlobfeedError, close_all
from ...workers.loading import CROPS, Conversion
from ...workers.pipeline import Pipeline
from ...workers.plan import Batch, Position
from .cuda_convert import DeviceConversion
from .cuda_device import CudaDevice
from .delivery import Blob, Delivery, Upcoming, require_shape
from .tops import EvenTop, Shape, Top
from .value_checks import check_range, check_types, check_whole_numbers


class _Sent(NamedTuple):
    """A batch that has been sent into a buffer."""

    upcoming: Upcoming
    values: dict[str, torch.Tensor]


class _Buffer:
    """Memory on the device for one batch, and page-locked memory for what is staged. `largest`: bytes of each.

    `done`: the event of the last copy into it. `used`: that of the caller's work that read it last. One that has not
    been recorded counts as done.
    """

    def __init__(self, device: CudaDevice, largest: Mapping[str, int]) -> None:
        self._device, self._largest = device, largest
        self._memory: dict[str, torch.Tensor] = {}
        self._staging: dict[str, NDArray[np.uint8]] = {}
        self.sent: _Sent | None = None
        self.done, self.used = device.event(), device.event()

    def stage(self, name: str, shape: Shape, dtype: np.dtype[Any]) -> AnyArray:
        """Page-locked memory of `shape`, the same one for each batch."""
        if name not in self._staging:
            self._staging[name] = self._device.host_memory(self._largest[name])
        out: AnyArray = self._staging[name][: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        return out

    def send(self, name: str, host: AnyArray) -> torch.Tensor:
        with torch.inference_mode(False):  # what is made in that mode cannot be written to outside of it
            if name not in self._memory:
                self._memory[name] = self._device.memory(self._largest[name])
            return self._device.send(host, self._memory[name])


class CudaDelivery(Delivery):
    """`device_prefetch` batches at most are on the device or on their way there, in buffers that are used in turn.

    Whatever raises at whatever step, such as a lack of memory on the device: the batch stays the next one, the next
    call tries again, and `close` gives everything back.
    """

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], device: CudaDevice) -> None:
        super().__init__(pipeline, tops)
        rows = pipeline.parameters.batch_size
        largest = {top.name: math.prod(top.largest_shape(rows)) * _sent_type(top).itemsize for top in self.tops}
        largest[CROPS] = rows * 3 * np.dtype(np.int64).itemsize
        self._device = device
        self._buffers = [_Buffer(device, largest) for _ in range(pipeline.parameters.device_prefetch)]
        self._sent = self._given = 0
        """Batches that have been sent, and those of them that blobs have got."""
        self._conversions = [DeviceConversion(_conversion_on_device(top), device.constant) for top in self.tops]

    @property
    def progress(self) -> Position:
        oldest = self._oldest()
        return oldest.upcoming.before if self.before is None and oldest is not None else super().progress

    def close(self) -> None:
        self.before = self.progress  # as of a step that will not end
        with self._device.current():  # the buffers' events are freed
            close_all(self._forget, self._buffers.clear)

    def _forget(self) -> None:
        super()._forget()
        # For the device as a whole: a step that was interrupted has left copies and kernels that no event follows. They
        # use the buffers, and torch gives freed memory to the next one who asks on the copy stream.
        self._device.wait()
        self._given = self._sent

    def _oldest(self) -> _Sent | None:
        """The batch that was sent first of those that no blob has got."""
        return self._turn(self._given).sent if self._given < self._sent else None

    def _turn(self, number: int) -> _Buffer:
        return self._buffers[number % len(self._buffers)]

    def _begin(self) -> None:
        self.pipeline.check_usable()  # in a fork CUDA would complain first, in other words
        self._device.refuse_capture()
        super()._begin()

    def _upcoming(self) -> Upcoming:
        if (oldest := self._oldest()) is not None:
            return oldest.upcoming
        return super()._upcoming()

    def _put(self, upcoming: Upcoming, blobs: Sequence[Blob]) -> None:
        tensors = _tensors(blobs)
        for top, shape, tensor in zip(self.tops, upcoming.shapes, tensors, strict=True):
            require_shape(top, shape, tuple(tensor.shape))
        if self._oldest() is None:
            self._send(upcoming, tensors)
        self._hand_over(self._turn(self._given), tensors)
        self._given += 1
        # An error in here belongs to a later batch. That one stays where it is, and it is tried again, and raises
        # again, when it is asked for. One of a signal's handler is none of these, and ends the step.
        with contextlib.suppress(BlobfeedError):
            self._send_ahead(tensors)

    def _pass_over(self) -> None:
        if self._oldest() is not None:
            self._given += 1
        else:
            self._device.wait()  # a part may be on its way: no event follows a sending that was broken off
            super()._pass_over()

    # ---- to the device

    def _send_ahead(self, like: Sequence[torch.Tensor]) -> None:
        while self._sent - self._given < len(self._buffers) and self.pipeline.is_ready():
            batch = self.pipeline.peek()
            try:
                self._send(Upcoming(batch, [top.shape(batch) for top in self.tops], self.pipeline.progress), like)
            except (RuntimeError, MemoryError):  # the device's
                return

    def _send(self, upcoming: Upcoming, like: Sequence[torch.Tensor]) -> None:
        """Start the copies of the pipeline's next batch into the next buffer, and take it; `like`: the blobs' data."""
        buffer = self._turn(self._sent)
        self._device.wait_for(buffer.done)  # long done; its host memory is about to be written to
        self._device.send_after(buffer.used)
        hosts: dict[str, AnyArray] = {}
        for top, shape, tensor in zip(self.tops, upcoming.shapes, like, strict=True):
            hosts[top.name] = self._host_array(top, shape, upcoming.batch, buffer)
            corners = top.corners(upcoming.batch) if isinstance(top, EvenTop) else None
            _check_values(top, hosts[top.name], tensor.dtype, corners)
            if corners is not None:
                hosts[CROPS] = buffer.stage(CROPS, corners.shape, corners.dtype)
                np.copyto(hosts[CROPS], corners)
        values = {name: buffer.send(name, host) for name, host in hosts.items()}
        self._device.sent(buffer.done)
        batch = self.pipeline.take()
        buffer.sent = _Sent(upcoming, values)
        self._sent += 1
        self.pipeline.release(batch)

    def _host_array(self, top: Top, shape: Shape, batch: Batch, buffer: _Buffer) -> AnyArray:
        """Return the array that is sent: a copy in page-locked memory."""
        out = buffer.stage(top.name, shape, _sent_type(top))
        if isinstance(top, EvenTop):
            np.copyto(out, top.rows(batch))
        else:
            top.put(batch, out)
        return out

    # ---- on the device

    def _hand_over(self, buffer: _Buffer, tensors: Sequence[torch.Tensor]) -> None:
        assert buffer.sent is not None
        values = buffer.sent.values
        self._device.use_after(buffer.done)
        try:
            for top, conversion, out in zip(self.tops, self._conversions, tensors, strict=True):
                conversion.put(values[top.name], out, values.get(CROPS))
        finally:
            self._device.used(buffer.used)


def _tensors(blobs: Sequence[Blob]) -> list[torch.Tensor]:
    return [cast("torch.Tensor", blob.data) for blob in blobs]


def _conversion_on_device(top: Top) -> Conversion:
    """A top of samples of varying size is converted when it is staged."""
    return top.conversion if isinstance(top, EvenTop) else Conversion()


def _sent_type(top: Top) -> np.dtype[Any]:
    return top.spec.dtype if isinstance(top, EvenTop) else top.dtype


def _check_values(top: Top, host: AnyArray, into: torch.dtype, corners: IndexArray | None) -> None:
    """The device would cut and round without a word."""
    name = str(into).removeprefix("torch.")
    if hasattr(np, name):  # NumPy has no bfloat16
        conversion, dtype = _conversion_on_device(top), np.dtype(name)
        check_types(host.dtype, dtype, conversion, top.name)
        check_whole_numbers(host, conversion.computed_in(dtype), top.name)
        check_range(host, dtype, conversion, top.name, corners)
