"""A device that is played in main memory: asynchronous, judged by torch's race detector, and able to fail at any step.

Its copies take as long as they like. `CudaDevice`'s own code runs over torch's names for streams, events and the
current device, which are played here.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from blobfeed.readers.delivery.cuda_device import CudaDevice, view_as
from blobfeed.workers.api import AnyArray
from numpy.typing import NDArray

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


class PlayedDevice(CudaDevice):
    """A device in main memory. Copies are done when somebody waits for them, or asked `patience` times.

    `judge`: torch's race detector, which hears of every step; enter it around deliveries, so that it sees what they
    read. `freed`: of each event that was freed, whether the device was the current one. `at`: called with the name of
    each step, before it and after it; it may raise. `wrong`: what a real device would have answered with spoilt data,
    or with a context on another device.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.captures = False
        self.copies: list[_Copy] = []
        self.staging: list[NDArray[np.uint8]] = []
        self.judge = RaceDetector()
        self.freed: list[bool] = []
        self.events = weakref.WeakSet[_Event]()
        self.wrong: list[str] = []
        self.at: Callable[[str], None] = lambda step: None
        self._current_count = 0
        with self._played():
            super().__init__("cuda:0")
        self.device = torch.device("cpu")

    # ---- torch's names

    @contextlib.contextmanager
    def _played(self) -> Iterator[None]:
        with (
            patch.object(torch, "Stream", lambda device: _Stream(self, COPY_STREAM)),
            patch.object(torch, "Event", lambda device: self._make_event()),
            patch.object(torch.accelerator, "current_stream", lambda device: _Stream(self, self.judge.stream)),
            patch.object(torch.accelerator, "device_index", self._is_made_current),
            patch.object(torch.accelerator, "synchronize", self._synchronize),
        ):
            yield

    def _make_event(self) -> _Event:
        self.events.add(event := _Event(self))
        return event

    @contextlib.contextmanager
    def _is_made_current(self, index: int | None) -> Iterator[None]:
        self._current_count += 1
        try:
            yield
        finally:
            self._current_count -= 1

    def _synchronize(self, _device: torch.device) -> None:
        for copy in self.copies:
            copy.do()
        self.judge.host_waits_for_device()

    def is_current(self) -> bool:
        return self._current_count > 0

    def require_current(self, what: str) -> None:
        """Note an error where torch would go back to another device, which makes a context there."""
        if not self.is_current():
            self.wrong.append(f"{what} while another device was the current one")

    # ---- CudaDevice's steps

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self.at(f"before {name}")
        yield
        self.at(f"after {name}")

    def constant(self, array: AnyArray) -> torch.Tensor:
        return torch.from_numpy(array)

    def current(self) -> Any:
        with self._played():
            return super().current()

    def event(self) -> Any:
        with self._played():
            return super().event()

    def sent(self, event: Any) -> None:
        with self._step("sent"), self._played():
            super().sent(event)

    def send_after(self, event: Any) -> None:
        with self._step("send_after"), self._played():
            super().send_after(event)

    def used(self, event: Any) -> None:
        with self._step("used"), self._played():
            super().used(event)

    def use_after(self, event: Any) -> None:
        with self._step("use_after"), self._played():
            super().use_after(event)

    def wait(self) -> None:
        with self._played():
            super().wait()

    def wait_for(self, event: Any) -> None:
        event.synchronize()  # a copy that takes as long as it likes is not waited for by asking

    def refuse_capture(self) -> None:
        if self.captures:
            raise RuntimeError("captures a CUDA graph")

    def memory(self, nbytes: int) -> Any:
        with self._step("memory"):
            owner = np.empty(nbytes, np.uint8)
            memory, address = torch.from_numpy(owner), owner.ctypes.data
            self.judge.allocated(address)
            weakref.finalize(owner, self.judge.freed, address, COPY_STREAM).atexit = False
        return memory

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        with self._step("host_memory"):
            self.staging.append(np.empty(nbytes, np.uint8))
        return self.staging[-1]

    def send(self, host: AnyArray, memory: Any) -> Any:
        with self._step("send"):
            values = torch.from_numpy(host)
            target = view_as(memory, values.dtype, values.shape)  # first: Ctrl-C may fall into it
            if self._is_staged_anew(host):
                self.judge.host_writes(host.ctypes.data, "staging")
            self.judge.kernel(COPY_STREAM, (host.ctypes.data,), (memory.data_ptr(),), "the copy to the device")
            target.view(torch.uint8).numpy().fill(255)  # what was there is gone from now on
            self.copies.append(_Copy(host, target, self.wrong))
        return target

    def _is_staged_anew(self, host: AnyArray) -> bool:
        """A sending that was interrupted is tried again with the same bytes: copies on their way do not see that."""
        staged = any(np.may_share_memory(host, memory) for memory in self.staging)
        before = [copy.as_sent for copy in self.copies if copy.host.ctypes.data == host.ctypes.data]
        return staged and not (before and np.array_equal(before[-1], host))
