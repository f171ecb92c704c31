"""A device that is played in main memory, whose copies take as long as they like and whose steps can fail."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from blobfeed.readers.delivery.cuda_device import view_as
from blobfeed.workers.api import AnyArray
from numpy.typing import NDArray

from .played_torch import PlayedTorch
from .race_detector import RaceDetector

COPY_STREAM = 1


class _Copy:
    """A copy that the played device has been told of, and does when it has to."""

    def __init__(self, host: AnyArray, target: Any, wrong: list[str]) -> None:
        self.host, self.target, self.as_sent, self.done, self._wrong = host, target, host.copy(), False, wrong

    def arrive(self) -> None:
        """For what a stream does behind it. The host has not waited, so it may not touch what is copied yet."""
        if self.target is not None:
            self.target.numpy()[...] = self.as_sent  # not by torch, to which the judge listens
            self.target = None  # its memory may be freed

    def do(self) -> None:
        if not self.done:
            if not np.array_equal(self.host, self.as_sent):
                self._wrong.append("a slot was released, or a staged copy overwritten, before it was copied")
            self.arrive()
            self.done = True


class _Event:
    """`number`: what the judge calls it since it was recorded."""

    def __init__(self, device: PlayedDevice) -> None:
        self._device = device
        self.copies: list[_Copy] = []
        self._asked = 0
        self.number: int | None = None

    def record(self, stream: _Stream) -> None:
        self._device.require_current("an event was recorded")
        self.copies = list(self._device.copies) if stream.number == COPY_STREAM else []
        self._asked = 0
        self.number = self._device.judge.recorded(stream.number)

    def query(self) -> bool:
        self._asked += 1
        if self._asked > self._device.patience:
            self._do()
        return all(copy.done for copy in self.copies)

    def synchronize(self) -> None:
        self._do()

    def _do(self) -> None:
        for copy in self.copies:
            copy.do()
        if self.number is not None:
            self._device.judge.host_waits(self.number)

    def __del__(self) -> None:
        self._device.freed.append(self._device.is_current())


class _Stream:
    def __init__(self, device: PlayedDevice, number: int) -> None:
        self._device, self.number = device, number

    def wait_event(self, event: _Event) -> None:
        self._device.require_current("a stream was made to wait")
        for copy in event.copies:
            copy.arrive()
        if event.number is not None:
            self._device.judge.waits(event.number, self.number)

    def synchronize(self) -> None:
        for copy in self._device.copies:
            copy.do()
        self._device.judge.host_waits_for_stream(self.number)


class PlayedDevice(PlayedTorch):
    """A device in main memory. Copies are done when somebody waits for them, or asked `patience` times.

    `judge`: torch's race detector, which hears of every step; enter it around deliveries, so that it sees what they
    read. `freed`: of each event that was freed, whether the device was the current one.
    """

    def __init__(self, patience: int) -> None:
        super().__init__()
        self.patience = patience
        self.captures = False
        self.copies: list[_Copy] = []
        self.staging: list[NDArray[np.uint8]] = []
        self.judge = RaceDetector()
        self.freed: list[bool] = []
        self.events = weakref.WeakSet[_Event]()

    def make_event(self) -> _Event:
        self.events.add(event := _Event(self))
        return event

    def copy_stream(self) -> _Stream:
        return _Stream(self, COPY_STREAM)

    def callers_stream(self) -> _Stream:
        return _Stream(self, self.judge.stream)

    def wait_for(self, event: Any) -> None:
        event.synchronize()  # a copy that takes as long as it likes is not waited for by asking

    def refuse_capture(self) -> None:
        if self.captures:
            raise RuntimeError("captures a CUDA graph")

    def memory(self, nbytes: int) -> Any:
        self.at("before memory")
        owner = np.empty(nbytes, np.uint8)
        memory, address = torch.from_numpy(owner), owner.ctypes.data
        self.judge.allocated(address)
        weakref.finalize(owner, self.judge.freed, address, COPY_STREAM).atexit = False
        self.at("after memory")
        return memory

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        self.at("before host_memory")
        memory = np.empty(nbytes, np.uint8)
        self.staging.append(memory)
        self.at("after host_memory")
        return memory

    def send(self, host: AnyArray, memory: Any) -> Any:
        self.at("before send")
        values = torch.from_numpy(host)
        target = view_as(memory, values.dtype, values.shape)  # first: Ctrl-C may fall into it
        if self._is_staged_anew(host):
            self.judge.host_writes(host.ctypes.data, "staging")
        self.judge.kernel(COPY_STREAM, (host.ctypes.data,), (memory.data_ptr(),), "the copy to the device")
        target.view(torch.uint8).numpy().fill(255)  # what was there is gone from now on
        self.copies.append(_Copy(host, target, self.wrong))
        self.at("after send")
        return target

    def _is_staged_anew(self, host: AnyArray) -> bool:
        """A sending that was interrupted is tried again with the same bytes: copies on their way do not see that."""
        staged = any(np.may_share_memory(host, memory) for memory in self.staging)
        before = [copy.as_sent for copy in self.copies if copy.host.ctypes.data == host.ctypes.data]
        return staged and not (before and np.array_equal(before[-1], host))
