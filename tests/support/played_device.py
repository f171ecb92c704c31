"""A device that is played in main memory, whose copies take as long as they like and whose steps can fail."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from blobfeed.readers.delivery.cuda_device import view_as
from blobfeed.workers.base.specs import AnyArray
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
    def __init__(self, copies: list[_Copy], patience: int, judge: RaceDetector, stream: int) -> None:
        self.copies, self._asked, self._patience, self._judge = copies, 0, patience, judge
        self.number = judge.recorded(stream)

    def query(self) -> bool:
        self._asked += 1
        if self._asked > self._patience:
            self.synchronize()
        return all(copy.done for copy in self.copies)

    def synchronize(self) -> None:
        for copy in self.copies:
            copy.do()
        self._judge.host_waits(self.number)


class PlayedDevice:
    """A device in main memory. Copies are done when somebody waits for them, or asked `patience` times.

    `wrong`: what a real device would have answered with spoilt data. `judge`: torch's race detector, which hears of
    every step; enter it around deliveries, so that it sees what they read. `at`: called with the name of each step,
    before it and after it; it may raise.
    """

    device = torch.device("cpu")
    constant = staticmethod(torch.from_numpy)

    def __init__(self, patience: int, locks: bool = True) -> None:
        self.patience, self.locks = patience, locks
        self.captures = False
        self.locked: NDArray[np.uint8] | None = None
        self.unlocked = 0
        self.wrong: list[str] = []
        self.at: Callable[[str], None] = lambda step: None
        self.copies: list[_Copy] = []
        self.staging: list[NDArray[np.uint8]] = []
        self.judge = RaceDetector()

    def refuse_capture(self) -> None:
        if self.captures:
            raise RuntimeError("captures a CUDA graph")

    def lock(self, memory: NDArray[np.uint8]) -> bool:
        self.at("before lock")
        self.locked = memory
        self.at("after lock")
        return self.locks

    def unlock(self) -> None:
        for copy in self.copies:
            copy.do()
        self.judge.host_waits_for_stream(COPY_STREAM)
        self.unlocked += 1

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

    def sent(self) -> _Event:
        self.at("before sent")
        event = _Event(list(self.copies), self.patience, self.judge, COPY_STREAM)
        self.at("after sent")
        return event

    def send_after(self, event: Any) -> None:
        self.at("before send_after")
        self.judge.waits(event.number, COPY_STREAM)
        self.at("after send_after")

    def used(self) -> _Event:
        self.at("before used")
        event = _Event([], 0, self.judge, self.judge.stream)
        self.at("after used")
        return event

    def use_after(self, event: Any) -> None:
        self.at("before use_after")
        for copy in event.copies:
            copy.arrive()
        self.judge.waits(event.number, self.judge.stream)
        self.at("after use_after")
