"""Batches on their way to a CUDA device, ahead of the trainer.

    slot ──► page-locked copy ──copy stream──► device buffer ──the trainer's stream: type, mean, scale──► blob
     │                                            │
     └ released when it is copied                 └ filled again when the trainer's stream is past the work that read it

With `page_lock: ring` the slots themselves are page-locked, and are sent without a copy: a slot is then released when
it has arrived.

The next batch that is ready is sent before `fill` returns, so that it travels while the net computes. Slots travel as
they are: uint8 images are a quarter of the bytes that the blobs hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ...workers.base.closing import close_all
from ...workers.base.specs import AnyArray, IndexArray
from ...workers.loading.transform import CROPS
from ...workers.pipeline.pipeline import Pipeline
from ...workers.plan.batch import Batch
from ...workers.plan.plan import Progress
from ...workers.processes.process import interrupts_deferred
from .conversion import Conversion, check_range, check_types, check_whole_numbers
from .cuda_convert import DeviceConversion
from .cuda_device import CudaDevice
from .delivery import Blob, Delivery, Upcoming, require_shape
from .tops import EvenTop, Shape, Top

_Types = Sequence[np.dtype[np.generic] | None]


class _Sent(NamedTuple):
    """A batch that has been sent into a buffer. `done`: the event of its last copy."""

    upcoming: Upcoming
    values: dict[str, torch.Tensor]
    done: torch.cuda.Event


class _Buffer:
    """Memory on the device for one batch, and page-locked memory for what is staged."""

    def __init__(self) -> None:
        self.device: dict[str, torch.Tensor] = {}
        self.host: dict[str, NDArray[np.uint8]] = {}
        self.sent: _Sent | None = None
        self.used: torch.cuda.Event | None = None


class _Turns(NamedTuple):
    """Buffers are used in turn. Replaced as a whole, so that Ctrl-C finds a buffer in one of the two."""

    sent: tuple[_Buffer, ...]
    """With batches that no blob has got yet, the oldest first."""
    free: tuple[_Buffer, ...]
    """To be filled again, behind the work that still reads them."""


class CudaDelivery(Delivery):
    """`device_prefetch` batches at most are on the device or on their way there.

    Whatever raises at whatever step, such as a lack of memory on the device: the batch stays the next one, the next
    call tries again, and `close` gives everything back.
    """

    def __init__(self, pipeline: Pipeline, tops: Sequence[Top], device: CudaDevice) -> None:
        super().__init__(pipeline, tops)
        self._device = device
        self._buffers = [_Buffer() for _ in range(pipeline.parameters.device_prefetch)]
        self._turns = _Turns((), tuple(self._buffers))
        self._conversions = [DeviceConversion(_conversion_on_device(top), device.constant) for top in self.tops]
        self._locked: bool | None = None if pipeline.parameters.page_lock == "ring" else False
        self._at_end: Progress | None = None

    @property
    def progress(self) -> Progress:
        if self._at_end is not None:
            return self._at_end
        if self.filled is None and self._turns.sent:
            return _sent(self._turns.sent[0]).upcoming.before
        return super().progress

    def close(self) -> None:
        self._at_end, self._looked_at = self.progress, None
        # torch gives freed memory to whoever asks next on the stream that it was taken on, the copy stream: kernels on
        # the caller's stream may still be reading there.
        waits = [partial(self._device.send_after, buffer.used) for buffer in self._buffers if buffer.used is not None]
        releases = [partial(self._release_slot, buffer) for buffer in self._buffers]
        close_all(*waits, self._device.unlock, self._take_sent, *releases, self._forget)

    def _forget(self) -> None:
        self._buffers.clear()
        self._turns = _Turns((), ())

    def _upcoming(self) -> Upcoming:
        self.pipeline.check_usable()  # in a fork CUDA would complain first, in other words
        self._device.refuse_capture()
        if self._turns.sent:
            return _sent(self._turns.sent[0]).upcoming
        self._release_slots()
        return super()._upcoming()

    def _copy(self, upcoming: Upcoming, blobs: Sequence[Blob]) -> Sequence[torch.Tensor]:
        tensors = [cast("torch.Tensor", blob.data) for blob in blobs]
        for top, shape, tensor in zip(self.tops, upcoming.shapes, tensors, strict=True):
            require_shape(top, shape, tuple(tensor.shape))
        if not self._turns.sent:
            self._send(upcoming, _numpy_types(tensors))
        self._hand_over(self._turns.sent[0], tensors)
        return tensors

    def _take(self, batch: Batch, blobs: Sequence[Blob]) -> None:
        sent, free = self._turns
        if sent and _sent(sent[0]).upcoming.batch is batch:
            self._take_sent()
            self._turns = _Turns(sent[1:], (*free, sent[0]))
        elif not blobs:  # it is passed over, and has not been sent
            if self.pipeline.is_next(batch):
                self.pipeline.take()
            if self.pipeline.holds(batch):
                self.pipeline.release(batch)
        if blobs:
            # What raises here belongs to a later batch. That one stays where it is, and it is tried again, and raises
            # again, when it is asked for.
            with contextlib.suppress(Exception):
                self._send_ahead(_numpy_types([cast("torch.Tensor", blob.data) for blob in blobs]))

    # ---- to the device

    def _send_ahead(self, types: _Types) -> None:
        self._take_sent()
        while self._turns.free and self.pipeline.is_ready():
            batch = self.pipeline.peek()
            shapes = [top.shape(batch) for top in self.tops]
            self._send(Upcoming(batch, shapes, self.pipeline.progress), types)

    def _send(self, upcoming: Upcoming, types: _Types) -> None:
        """Start the copies of the pipeline's next batch into a free buffer, and take it."""
        self._release_slots()
        batch = upcoming.batch
        buffer = self._turns.free[0]
        if buffer.used is not None:
            self._device.send_after(buffer.used)
        if buffer.sent is not None:
            buffer.sent.done.synchronize()  # long done; its host memory is about to be written to
            self._release_slot(buffer)
        hosts = [self._host_array(*each, batch, buffer) for each in zip(self.tops, upcoming.shapes, strict=True)]
        all_corners = [top.corners(batch) if isinstance(top, EvenTop) else None for top in self.tops]
        for each in zip(self.tops, hosts, types, all_corners, strict=True):
            _check_values(*each)
        values: dict[str, torch.Tensor] = {}
        for top, host, corners in zip(self.tops, hosts, all_corners, strict=True):
            values[top.name] = self._send_array(top.name, host, self._largest_bytes(top, host.dtype), buffer)
            if corners is not None:
                largest = self.pipeline.parameters.batch_size * corners[0].nbytes
                staged = self._staging(CROPS, corners.shape, corners.dtype, largest, buffer)
                np.copyto(staged, corners)
                values[CROPS] = self._send_array(CROPS, staged, largest, buffer)
        buffer.sent = _Sent(upcoming, values, self._device.sent())
        sent, free = self._turns
        self._turns = _Turns((*sent, buffer), free[1:])
        self._take_sent()
        if not self._locked:
            self._release_slot(buffer)

    def _take_sent(self) -> None:
        """Take the batch that was sent last, unless that has been done."""
        if self._turns.sent and self.pipeline.is_next(_sent(self._turns.sent[-1]).upcoming.batch):
            self.pipeline.take()

    def _send_array(self, name: str, host: AnyArray, largest_bytes: int, buffer: _Buffer) -> torch.Tensor:
        with torch.inference_mode(False):  # what is made in that mode cannot be written to outside of it
            if name not in buffer.device:
                buffer.device[name] = self._device.memory(largest_bytes)
            return self._device.send(host, buffer.device[name])

    def _host_array(self, top: Top, shape: Shape, batch: Batch, buffer: _Buffer) -> AnyArray:
        """What is sent: the slot's own memory where that is page-locked, else a staged copy of it."""
        if isinstance(top, EvenTop) and self._is_locked(top.rows(batch)):
            return top.rows(batch)
        dtype = top.spec.dtype if isinstance(top, EvenTop) else top.dtype
        out = self._staging(top.name, shape, dtype, self._largest_bytes(top, dtype), buffer)
        if isinstance(top, EvenTop):
            np.copyto(out, top.rows(batch))
        else:
            top.put(batch, out)
        return out

    def _staging(self, name: str, shape: Shape, dtype: np.dtype[Any], largest_bytes: int, buffer: _Buffer) -> AnyArray:
        """Page-locked memory of `shape`, the same one for each batch that goes into `buffer`."""
        if name not in buffer.host:
            buffer.host[name] = self._device.host_memory(largest_bytes)
        out: AnyArray = buffer.host[name][: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
        return out

    def _is_locked(self, rows: AnyArray) -> bool:
        if self._locked is None:
            self.pipeline.use_huge_pages()  # a page that is locked cannot be moved into a huge one any more
            self._locked = self._device.lock(_whole_memory(rows))
        return self._locked

    def _largest_bytes(self, top: Top, dtype: np.dtype[np.generic]) -> int:
        return int(np.prod(top.largest_shape(self.pipeline.parameters.batch_size))) * dtype.itemsize

    def _release_slots(self) -> None:
        """Release the slots that have been copied.

        A page-locked slot that is in flight is one that the loaders lack. So if no batch is ready, its copy is waited
        for: never wait for the loaders with slots that could be released.
        """
        self._take_sent()
        wait = not self.pipeline.is_ready()
        for buffer in self._buffers:
            if buffer.sent is not None and self.pipeline.holds(buffer.sent.upcoming.batch):
                if wait and self._locked:
                    buffer.sent.done.synchronize()
                if wait or not self._locked or _is_done(buffer.sent.done):
                    self._release_slot(buffer)

    def _release_slot(self, buffer: _Buffer) -> None:
        if buffer.sent is not None:
            batch = buffer.sent.upcoming.batch
            # The next batch is not released: its sending was interrupted before it was taken.
            if self.pipeline.holds(batch) and not self.pipeline.is_next(batch):
                self.pipeline.release(batch)

    # ---- on the device

    def _hand_over(self, buffer: _Buffer, tensors: Sequence[torch.Tensor]) -> None:
        sent = _sent(buffer)
        # Ctrl-C waits: behind kernels that no event follows, `close` would free memory that they still read.
        with interrupts_deferred():
            self._device.use_after(sent.done)
            try:
                for top, conversion, out in zip(self.tops, self._conversions, tensors, strict=True):
                    conversion.put(sent.values[top.name], out, sent.values.get(CROPS))
            finally:
                buffer.used = self._device.used()


def _conversion_on_device(top: Top) -> Conversion:
    """A top of samples of varying size is converted when it is staged."""
    return top.conversion if isinstance(top, EvenTop) else Conversion()


def _check_values(top: Top, host: AnyArray, into: np.dtype[np.generic] | None, corners: IndexArray | None) -> None:
    """The device would cut and round without a word. `into`: None if NumPy has no such type, as bfloat16."""
    if into is not None:
        conversion = _conversion_on_device(top)
        check_types(host.dtype, into, conversion, top.name)
        check_whole_numbers(host, conversion.computed_in(into), top.name)
        check_range(host, into, conversion, top.name, corners)


def _sent(buffer: _Buffer) -> _Sent:
    assert buffer.sent is not None
    return buffer.sent


def _is_done(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


def _numpy_types(tensors: Sequence[torch.Tensor]) -> _Types:
    """None for a type that NumPy does not have, such as bfloat16."""
    names = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    return [np.dtype(name) if hasattr(np, name) else None for name in names]


def _whole_memory(rows: AnyArray) -> NDArray[np.uint8]:
    """The whole ring, of which `rows` is a part: NumPy keeps for every view the array that it was first cut from."""
    assert isinstance(rows.base, np.ndarray)
    return rows.base
