"""Batches on their way to a CUDA device, ahead of the trainer.

    slot ──copy stream──► device buffer ──the trainer's stream: type, mean, scale──► blob
     │                        │
     └ released when the      └ filled again when the trainer's stream
       copy's event is done     is past the work that read it

The next batch that is ready is sent before `deliver` returns, so that it travels while the net computes. Slots travel
as they are: uint8 images are a quarter of the bytes that the blobs hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...workers.base.specs import AnyArray, IndexArray
from ...workers.loading.transform import CROPS
from ...workers.pipeline.pipeline import Pipeline
from ...workers.plan.batch import Batch
from ...workers.plan.plan import State
from .conversion import Conversion, check_exact
from .cuda_convert import DeviceConversion
from .cuda_lane import Event, Lane
from .delivery import Blob, Delivery, require_shape
from .rotation import Rotation
from .tops import EvenTop, Shape, Top


class _Buffer:
    """Room on the device for one batch, and which batch is or was there."""

    def __init__(self) -> None:
        self.device_rooms: dict[str, torch.Tensor] = {}
        self.host_rooms: dict[str, NDArray[np.uint8]] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.shapes: list[Shape] = []
        self.corners: IndexArray | None = None
        self.batch: Batch | None = None
        self.state: State = {}
        self.sent: Event | None = None
        self.used: Event | None = None


class CudaDelivery(Delivery):
    """`device_prefetch` batches at most are on the device or on their way there."""

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], lane: Lane) -> None:
        super().__init__(pipeline, tops)
        self._lane = lane
        self._rotation = Rotation(pipeline.parameters.device_prefetch)
        self._buffers = [_Buffer() for _ in range(pipeline.parameters.device_prefetch)]
        self._conversions = [_on_device(top, lane.device) for top in self.tops]
        self._locked: bool | None = None
        self._in_flight: list[tuple[Event, Batch]] = []
        self._state: State | None = None
        self._failure: Exception | None = None

    def next_shapes(self) -> list[Shape]:
        number = self._rotation.next_filled
        if number is not None:
            return self._buffers[number].shapes
        self._raise_failure()
        self._release_slots(wait=not self.pipeline.is_ready())
        return super().next_shapes()

    def deliver(self, blobs: Sequence[Blob]) -> Batch:
        tensors = [_tensor(blob) for blob in blobs]
        types = [_numpy_type(tensor) for tensor in tensors]
        if self._rotation.next_filled is None:
            self._raise_failure()
            self._send_next(types)
        for top, shape, tensor in zip(self.tops, self.next_shapes(), tensors, strict=True):
            require_shape(top, shape, tuple(tensor.shape))
        number = self._rotation.lend()
        buffer = self._buffers[number]
        batch = buffer.batch  # the buffer may hold a later one when this returns
        assert batch is not None
        self._hand_over(buffer, tensors)
        self._rotation.give_back(number)
        self._send_ahead(types)
        return batch

    def state_dict(self) -> State:
        """After what has been delivered: what is on its way to the device does not count."""
        return self.pipeline.state_dict() if self._state is None else self._state

    def close(self) -> None:
        for buffer in self._buffers:
            # torch gives freed memory to whoever asks next on the stream that it was taken on, the copy stream:
            # kernels on the caller's stream may still be reading there.
            if buffer.used is not None:
                self._lane.send_after(buffer.used)
        self._lane.unlock()
        self._release_slots(wait=True)
        self._buffers.clear()

    # ---- to the device

    def _send_ahead(self, types: Sequence[np.dtype[np.generic] | None]) -> None:
        """Send what is ready; an error waits until the batch that it belongs to is asked for."""
        try:
            while self._failure is None and self._rotation.can_fill and self.pipeline.is_ready():
                self._send_next(types)
        except Exception as error:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None

    def _send_next(self, types: Sequence[np.dtype[np.generic] | None]) -> None:
        """Take the next batch and start its copies; waits where no batch is ready."""
        # A slot that is in flight is one that the loaders lack: never wait for them with slots that could be released.
        self._release_slots(wait=not self.pipeline.is_ready())
        batch = self.pipeline.take()
        try:
            shapes = [top.shape(batch) for top in self.tops]
            for top, dtype in zip(self.tops, types, strict=True):
                _check(top, batch, dtype)
        except BaseException:
            self.pipeline.release(batch)
            raise
        buffer = self._buffers[self._rotation.fill()]
        buffer.batch, buffer.shapes, buffer.state = batch, shapes, self.pipeline.state_dict()
        self._send(batch, buffer)

    def _send(self, batch: Batch, buffer: _Buffer) -> None:
        if buffer.used is not None:
            self._lane.send_after(buffer.used)
        if buffer.sent is not None:
            buffer.sent.synchronize()  # long done; its host room is about to be written to
        for top, shape in zip(self.tops, buffer.shapes, strict=True):
            host = self._host_array(top, batch, shape, buffer)
            self._send_array(top.name, host, self._largest_bytes(top, host.dtype), buffer)
            self._send_corners(top, batch, buffer)
        buffer.sent = self._lane.sent()
        self._in_flight.append((buffer.sent, batch))

    def _send_array(self, name: str, host: AnyArray, largest_bytes: int, buffer: _Buffer) -> None:
        if name not in buffer.device_rooms:
            buffer.device_rooms[name] = self._lane.device_room(largest_bytes)
        buffer.values[name] = self._lane.send(host, buffer.device_rooms[name])

    def _send_corners(self, top: Top, batch: Batch, buffer: _Buffer) -> None:
        """Where each row's part of the mean image lies, for the top that has one."""
        if isinstance(top, EvenTop) and (corners := top.corners(batch)) is not None:
            buffer.corners = corners  # kept until it has been copied
            self._send_array(CROPS, corners, self.pipeline.parameters.batch_size * corners[0].nbytes, buffer)

    def _host_array(self, top: Top, batch: Batch, shape: Shape, buffer: _Buffer) -> AnyArray:
        """What is sent: the slot's own memory where that is page-locked, else a staged copy of it."""
        if isinstance(top, EvenTop) and self._is_locked(top.rows(batch)):
            return top.rows(batch)
        staged = top.spec.dtype if isinstance(top, EvenTop) else top.dtype
        if top.name not in buffer.host_rooms:
            buffer.host_rooms[top.name] = self._lane.host_room(self._largest_bytes(top, staged))
        room = buffer.host_rooms[top.name]
        out: AnyArray = room[: int(np.prod(shape)) * staged.itemsize].view(staged).reshape(shape)
        if isinstance(top, EvenTop):
            np.copyto(out, top.rows(batch))
        else:
            top.put(batch, out)
        return out

    def _is_locked(self, rows: AnyArray) -> bool:
        if self._locked is None:
            self._locked = self._lane.lock(_whole_memory(rows))
        return self._locked

    def _largest_bytes(self, top: Top, dtype: np.dtype[np.generic]) -> int:
        return int(np.prod(top.largest_shape(self.pipeline.parameters.batch_size))) * dtype.itemsize

    def _release_slots(self, *, wait: bool) -> None:
        """Release the slots whose copies are done; with `wait` all of them."""
        still: list[tuple[Event, Batch]] = []
        for event, batch in self._in_flight:
            if wait:
                event.synchronize()
            if wait or event.query():
                self.pipeline.release(batch)
            else:
                still.append((event, batch))
        self._in_flight = still

    # ---- on the device

    def _hand_over(self, buffer: _Buffer, tensors: Sequence[torch.Tensor]) -> None:
        assert buffer.sent is not None
        self._lane.use_after(buffer.sent)
        corners = buffer.values.get(CROPS)
        for top, conversion, out in zip(self.tops, self._conversions, tensors, strict=True):
            conversion.put(buffer.values[top.name], out, corners)
        buffer.used = self._lane.used()
        self._state = buffer.state


def _on_device(top: Top, device: torch.device) -> DeviceConversion:
    """A top of samples of varying size is converted when it is staged."""
    return DeviceConversion(top.conversion if isinstance(top, EvenTop) else Conversion(), device)


def _tensor(blob: Blob) -> torch.Tensor:
    if not isinstance(data := blob.data, torch.Tensor):
        raise TypeError(f"expected a blob whose data is a torch tensor, got {type(data).__name__}")
    return data


def _numpy_type(tensor: torch.Tensor) -> np.dtype[np.generic] | None:
    """None for the types that NumPy has not, such as bfloat16."""
    name = str(tensor.dtype).removeprefix("torch.")
    return np.dtype(name) if hasattr(np, name) else None


def _check(top: Top, batch: Batch, dtype: np.dtype[np.generic] | None) -> None:
    if isinstance(top, EvenTop) and dtype is not None:
        check_exact(top.rows(batch), dtype, top.name)


def _whole_memory(rows: AnyArray) -> NDArray[np.uint8]:
    """The whole ring, of which `rows` is a part: NumPy keeps for every view the array that it was first cut from."""
    if not isinstance(rows.base, np.ndarray):
        raise TypeError("expected rows that are a view on the ring's memory")
    return rows.base
