"""The card that the table of `benchmarks.delivery` is measured on, played by a device that is really asynchronous."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import torch
from blobfeed.readers.delivery.cuda_device import CudaDevice
from blobfeed.workers.base import Closing
from numpy.typing import NDArray

from benchmarks.delivery_cuda import Card, Span, Spans

from .async_device import AsyncDevice


class _Traced(AsyncDevice):
    """Notes when each copy began and ended. `locks`: the device locks the ring if it is asked to."""

    def __init__(self, copy_s: float, locks: bool) -> None:
        super().__init__([copy_s], [0.0], seed=0)
        self.locks = locks
        self.spans: list[Span] = []

    def lock(self, memory: NDArray[Any]) -> bool:
        return self.locks

    def _copy(self, *arrays: Any) -> None:
        begun = time.perf_counter()
        super()._copy(*arrays)
        self.spans.append((begun, time.perf_counter()))


class PlayedCard(Card, Closing):
    """`copy_s`: seconds for each piece of a copy. `kernels`: enter it, so that what torch writes is a kernel."""

    def __init__(self, copy_s: float, locks: bool = True) -> None:
        self.device, self.name = torch.device("cpu"), "a played card"
        self.played = _Traced(copy_s, locks)
        self.kernels = self.played.kernels
        self._ran: list[Span] = []

    def close(self) -> None:
        self.played.end()

    def open(self) -> CudaDevice:
        return cast(CudaDevice, self.played)

    def synchronize(self) -> None:
        self.wait_for_step()
        self.played.unlock()

    def compute(self, seconds: float) -> None:
        self.played.caller.put(lambda: self._run(seconds))

    def _run(self, seconds: float) -> None:
        begun = time.perf_counter()
        time.sleep(seconds)
        self._ran.append((begun, time.perf_counter()))

    def wait_for_step(self) -> None:
        self.played.caller.synchronize()

    def traced(self, work: Callable[[], object]) -> Spans:
        self.played.spans.clear()
        self._ran.clear()
        work()
        self.synchronize()
        return Spans(list(self.played.spans), list(self._ran))
