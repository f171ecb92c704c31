"""A device that is played in main memory, whose copies take as long as they like and whose steps can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from blobfeed.readers.delivery.cuda_device import view_as
from blobfeed.workers.base.specs import AnyArray
from numpy.typing import NDArray


class _Copy:
    """A copy that the played device has been told of, and does when it has to."""

    def __init__(self, host: AnyArray, target: Any, wrong: list[str]) -> None:
        self.host, self.target, self.as_sent, self.done, self._wrong = host, target, host.copy(), False, wrong
        self._has_arrived = False

    def arrive(self) -> None:
        """For what a stream does behind it. The host has not waited, so it may not touch what is copied yet."""
        if not self._has_arrived:
            self.target.copy_(torch.from_numpy(self.as_sent))
            self._has_arrived = True

    def do(self) -> None:
        if not self.done:
            if not np.array_equal(self.host, self.as_sent):
                self._wrong.append("a slot was released, or a staged copy overwritten, before it was copied")
            self.arrive()
            self.done = True


class _Event:
    def __init__(self, copies: list[_Copy], patience: int, memory: tuple[int, ...] = ()) -> None:
        self.copies, self._asked, self._patience = copies, 0, patience
        self.memory = memory

    def query(self) -> bool:
        self._asked += 1
        if self._asked > self._patience:
            self.synchronize()
        return all(copy.done for copy in self.copies)

    def synchronize(self) -> None:
        for copy in self.copies:
            copy.do()


class PlayedDevice:
    """A device in main memory. Copies are done when somebody waits for them, or asked `patience` times.

    `wrong`: what a real device would have answered with spoilt data. `at`: called with the name of each step, before
    it and after it; it may raise.
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
        self.read: dict[int, object] = {}
        """By the address of a buffer the event after which nothing reads it any more."""
        self.waited: set[object] = set()  # the events themselves: the address of a dead one is soon another's
        self._sent_into: list[int] = []
        self._used: tuple[int, ...] = ()

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
        self.unlocked += 1

    def memory(self, nbytes: int) -> Any:
        self.at("before memory")
        memory = torch.empty(nbytes, dtype=torch.uint8)
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
        reader = self.read.pop(memory.data_ptr(), None)
        if reader is not None and reader not in self.waited:
            self.wrong.append("a buffer was overwritten while it might still be read")
        values = torch.from_numpy(host)
        target = view_as(memory, values.dtype, values.shape)
        target.view(torch.uint8).fill_(255)  # what was there is gone from now on
        self.copies.append(_Copy(host, target, self.wrong))
        self._sent_into.append(memory.data_ptr())
        self.at("after send")
        return target

    def sent(self) -> _Event:
        self.at("before sent")
        memory, self._sent_into = tuple(self._sent_into), []
        event = _Event(list(self.copies), self.patience, memory)
        self.at("after sent")
        return event

    def send_after(self, event: Any) -> None:
        self.at("before send_after")
        self.waited.add(event)
        self.at("after send_after")

    def used(self) -> _Event:
        self.at("before used")
        event = _Event([], 0)
        self.read.update(dict.fromkeys(self._used, event))
        self.at("after used")
        return event

    def use_after(self, event: Any) -> None:
        self.at("before use_after")
        for copy in event.copies:
            copy.arrive()
        self._used = event.memory
        self.at("after use_after")
