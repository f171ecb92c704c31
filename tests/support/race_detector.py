"""torch's own race detector as a judge over a device that is played: it decides by happens-before.

`torch.cuda._sanitizer` is pure Python, and is in torch for CPUs too. On a real device it listens to the driver; here it
hears of each kernel, event, wait and free from the played device, and of what kernels read and write from torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch.cuda._sanitizer import EventHandler, zip_arguments
from torch.utils._python_dispatch import TorchDispatchMode

_HOST = -1
"""The host as a stream: what it has done comes before all that is queued later, and it waits for events."""


class RaceDetector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Judges the trace of one device. While it is entered, each operation of torch on the device's memory is a kernel.

    `stream`: the caller's, on which these kernels run. `races`: what it has found, one line each. `kernels`: how many
    accesses were judged.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler = EventHandler()
        self._events = itertools.count(1)
        self._memory: set[int] = set()
        self.stream = 0
        self.races: list[str] = []
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads, writes = set(), set()
        for argument, value in zip_arguments(func._schema, args, kwargs or {}):
            if isinstance(value, torch.Tensor) and (address := value.untyped_storage().data_ptr()) in self._memory:
                if argument.alias_info is None:  # else a view, which reads nothing, or an output
                    reads.add(address)
                elif argument.alias_info.is_write:
                    writes.add(address)
        if reads or writes:
            self.kernel(self.stream, reads, writes, str(func))
        return func(*args, **(kwargs or {}))

    def kernel(self, stream: int, reads: Iterable[int], writes: Iterable[int], name: str) -> None:
        """Judge a kernel on `stream`. `reads`, `writes`: addresses of memory, on the device or on the host."""
        reads, writes = set(reads), set(writes)
        self.kernels += 1
        names = {address: [name] for address in reads | writes}
        errors: list[Any] = self._handler._handle_kernel_launch(stream, reads - writes, writes, set(), name, names)
        self.races += [
            f"{error.current_access.operator} on stream {stream} does not wait for "
            f"{error.previous_access.operator} on stream {error.previous_access.stream}"
            for error in errors
        ]

    def host_writes(self, address: int, name: str) -> None:
        """Judge a write by the host, or by a process that it lets write, to memory that copies read."""
        self.kernel(_HOST, (), (address,), name)
        self._handler._handle_stream_synchronization(_HOST)

    def allocated(self, address: int) -> None:
        self._memory.add(address)
        self._handler._handle_memory_allocation(address)

    def freed(self, address: int, stream: int) -> None:
        """Judge a free. torch gives the memory to the next one who asks on `stream`, where it was allocated."""
        self.kernel(stream, (), (address,), "the next owner's write")
        self._memory.discard(address)
        self._handler._handle_memory_deallocation(address)

    def recorded(self, stream: int) -> int:
        """Return a new event that has been recorded on `stream`."""
        event = next(self._events)
        self._handler._handle_event_creation(event)
        self._handler._handle_event_record(event, stream)
        return event

    def waits(self, event: int, stream: int) -> None:
        self._handler._handle_event_wait(event, stream)

    def host_waits(self, event: int) -> None:
        self._handler._handle_event_synchronization(event)

    def host_waits_for_device(self) -> None:
        self._handler._handle_device_synchronization()
