"""torch's names for streams, events and the current device, played: `CudaDevice`'s own code runs over them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from blobfeed.readers.delivery.cuda_device import CudaDevice
from blobfeed.workers.api import AnyArray


class PlayedTorch(CudaDevice):
    """A device whose memory is main memory, behind torch.Stream, torch.Event and torch.accelerator.

    A kind of it says by `make_event`, `copy_stream` and `callers_stream` what stands there. `at`: called with the name
    of each step, before it and after it; it may raise. `wrong`: what a real device would have answered with spoilt
    data, or with a context on another device.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.at: Callable[[str], None] = lambda step: None
        self._is_current = 0
        with self._played():
            super().__init__("cuda:0")
        self.device = torch.device("cpu")

    def make_event(self) -> Any:
        raise NotImplementedError

    def copy_stream(self) -> Any:
        raise NotImplementedError

    def callers_stream(self) -> Any:
        raise NotImplementedError

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.at(f"before {name}")
        with self._played():
            yield
        self.at(f"after {name}")

    @contextlib.contextmanager
    def _played(self) -> Iterator[None]:
        with (
            patch.object(torch, "Stream", lambda device: self.copy_stream()),
            patch.object(torch, "Event", lambda device: self.make_event()),
            patch.object(torch.accelerator, "current_stream", lambda device: self.callers_stream()),
            patch.object(torch.accelerator, "device_index", self._current),
        ):
            yield

    @contextlib.contextmanager
    def _current(self, index: int | None) -> Iterator[None]:
        self._is_current += 1
        try:
            yield
        finally:
            self._is_current -= 1

    def is_current(self) -> bool:
        return self._is_current > 0

    def require_current(self, what: str) -> None:
        """Note an error where torch would go back to another device, which makes a context there."""
        if not self.is_current():
            self.wrong.append(f"{what} while another device was the current one")

    def constant(self, array: AnyArray) -> torch.Tensor:
        return torch.from_numpy(array)

    def current(self) -> Any:
        with self._played():
            return super().current()

    def event(self) -> Any:
        with self._played():
            return super().event()

    def sent(self, event: Any) -> None:
        with self.step("sent"):
            super().sent(event)

    def send_after(self, event: Any) -> None:
        with self.step("send_after"):
            super().send_after(event)

    def used(self, event: Any) -> None:
        with self.step("used"):
            super().used(event)

    def use_after(self, event: Any) -> None:
        with self.step("use_after"):
            super().use_after(event)
