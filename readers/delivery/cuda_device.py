"""The parts of a CUDA device that a delivery uses: page-locked host memory, device memory, a copy stream, and events.

Streams, events and the current device are those of torch.Stream, torch.Event and torch.accelerator. Seeing a capture is
not in there, and stays torch.cuda's.

Everything names its device, and is done while that is the current one: nothing here makes a context on another one, GPU
0 least of all.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from numpy.typing import NDArray

from ...workers.api import AnyArray
from ...workers.base import ParameterError

_UNKNOWN = 64
"""Unused bytes at the start of page-locked memory. torch knows it by its first address: it would record an
event when it is freed, which CUDA refuses once any kernel of the program's has failed, and torch then ends the process
before the error has been shown. The delivery's `close` waits for the copies, so there is no need of that event."""

_LOOK_S = 0.0001
"""Between two looks at an event that is waited for."""


class CudaDevice:
    """One device and the stream on which batches travel to it.

    "Use" is what the caller's own stream does with a batch: the stream that is current when it is asked for.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        if self.device.index is None:  # the one that is current now, also if another one is made the current one later
            self.device = torch.device("cuda", torch.accelerator.current_device_index())
        with self.current():
            self._stream = torch.Stream(self.device)

    def current(self) -> torch.accelerator.device_index:
        """A context in which this is the current device.

        torch goes back to the one that was current when it has waited for an event, recorded or freed one: out of this
        context that makes a context of CUDA's there.
        """
        return torch.accelerator.device_index(self.device.index)

    def refuse_capture(self) -> None:
        """Raise RuntimeError if the caller's stream captures a graph.

        A delivery waits for events of other streams and looks at their state, and a graph would repeat one batch
        again and again.
        """
        with self.current():
            capturing = torch.cuda.is_current_stream_capturing()
        if capturing:
            raise RuntimeError(
                f"the current stream of {self.device} captures a CUDA graph: a batch cannot be delivered inside of it; "
                "deliver into the same blobs before each replay, and capture only what the net does with them"
            )

    # ---- memory

    def memory(self, nbytes: int) -> torch.Tensor:
        """Uninitialised memory on the device, shape (nbytes,) uint8."""
        with self.current(), self._stream:
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Uninitialised page-locked memory, shape (nbytes,)."""
        with self.current():
            # Named: else torch.set_default_device decides.
            memory = torch.empty(_UNKNOWN + nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        return memory.numpy()[_UNKNOWN:]

    def constant(self, array: AnyArray) -> torch.Tensor:
        """A copy of `array` on the device; waits until it is there."""
        with self.current():
            return torch.from_numpy(array).pin_memory().to(self.device)

    # ---- copies and the order of things

    def send(self, host: AnyArray, memory: torch.Tensor) -> torch.Tensor:
        """Queue the copy of `host` into `memory`; returns what that then holds, in the host's type and shape."""
        values = torch.from_numpy(host)
        sent = view_as(memory, values.dtype, values.shape)
        with self.current(), self._stream:
            sent.copy_(values, non_blocking=True)
        return sent

    def event(self) -> torch.Event:
        """A new event, to be recorded again and again; free it in `current`."""
        return torch.Event(self.device)

    def sent(self, event: torch.Event) -> None:
        """Record `event`: done when the copies queued so far are."""
        with self.current():
            event.record(self._stream)

    def send_after(self, event: torch.Event) -> None:
        """Make later copies wait until `event` is done."""
        with self.current():
            self._stream.wait_event(event)

    def used(self, event: torch.Event) -> None:
        """Record `event`: done when the work that the caller's stream has queued so far is."""
        with self.current():
            event.record(torch.accelerator.current_stream(self.device))

    def use_after(self, event: torch.Event) -> None:
        """Make later work of the caller's stream wait until `event` is done."""
        with self.current():
            torch.accelerator.current_stream(self.device).wait_event(event)

    def wait(self) -> None:
        """Wait until all that was sent has arrived, and all work that the caller's streams have queued is done."""
        with self.current():
            torch.accelerator.synchronize(self.device)

    def wait_for(self, event: torch.Event) -> None:
        """Wait until `event` is done, asleep: `synchronize` alone would spin, on a core that a loader needs.

        torch.Event takes `blocking=True` and makes no use of it.
        """
        while not event.query():
            time.sleep(_LOOK_S)
        event.synchronize()  # torch's race detector listens to this one


def view_as(memory: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """The start of `memory`, shape (bytes,) uint8, as a tensor of `dtype` and `shape`."""
    return memory[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def check_cuda(device: str) -> None:
    """Raise ParameterError unless there is the CUDA device that the parameter `device` names."""
    count = torch.cuda.device_count()
    known = ["cuda", *(f"cuda:{number}" for number in range(count))] if count else []
    if device not in known:
        here = f"here are {', '.join(known)}" if known else "torch finds no CUDA device here"
        raise ParameterError(f"parameter 'device' is {device!r}: expected '' (NumPy), 'cpu' or a CUDA device; {here}")
