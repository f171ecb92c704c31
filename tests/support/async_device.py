"""A device in main memory that is really asynchronous: each stream is a thread, and copies are done late, in pieces.

Memory that a copy owns is protected by `mprotect`: a touch that is too early or too late ends the process by SIGSEGV,
or leaves wrong bytes, which the caller's stream looks for in each batch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from blobfeed.layers.torch_blob import Blob
from blobfeed.readers.delivery import make_tops
from blobfeed.readers.delivery.cuda_delivery import CudaDelivery
from blobfeed.readers.delivery.cuda_device import view_as
from blobfeed.workers.api import AnyArray
from blobfeed.workers.plan import Batch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.delivery import SLOTS, Shape, StillPipeline

from .played_torch import PlayedTorch

_SHAPE = Shape(2, (3, 64, 64))
"""A batch of bytes has six pages."""

_READ, _WRITE = 1, 2
_PIECES = 3
_PATIENCE_S = 60
_LASTING_S = 0.01
_libc = ctypes.CDLL(None, use_errno=True)


def _protect(address: int, nbytes: int, rights: int) -> None:
    """Set the rights of all whole pages from `address` on."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end and _libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(end - first), rights):
        raise OSError(ctypes.get_errno(), "mprotect failed")


class _Event:
    """One that has not been recorded is done."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._done.set()

    def record(self, stream: _Stream) -> None:
        self._done = done = threading.Event()
        stream.put(done.set)

    def query(self) -> bool:
        return self._done.is_set()

    def synchronize(self) -> None:
        _wait(self._done)

    def waiting(self) -> Callable[[], None]:
        """A step that waits for what was recorded last, whatever is recorded later."""
        return partial(_wait, self._done)


def _wait(done: threading.Event) -> None:
    if not done.wait(_PATIENCE_S):
        raise TimeoutError("an event is never done")


class _Stream:
    def __init__(self, wrong: list[str]) -> None:
        self._wrong = wrong
        self._work: queue.Queue[Callable[[], object] | None] = queue.Queue(64)
        self.put = self._work.put
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:
                self._wrong.append(repr(error))

    def wait_event(self, event: _Event) -> None:
        self.put(event.waiting())

    def synchronize(self) -> None:
        event = _Event()
        event.record(self)
        event.synchronize()

    def end(self) -> None:
        self.put(None)
        self._thread.join()


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Queues on the caller's stream whatever writes to a tensor; the rest makes memory and views."""

    def __init__(self, stream: _Stream, unowned: Callable[[object], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stream, self._unowned = stream, unowned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        alias = func._schema.arguments[0].alias_info if func._schema.arguments else None
        if alias is None or not alias.is_write:
            return func(*args, **(kwargs or {}))
        given = [self._unowned(argument) for argument in args]
        self._stream.put(lambda: func(*given, **(kwargs or {})))
        return args[0]


class AsyncDevice(PlayedTorch):
    """A device with two streams. `delays`, `work`: seconds, of which `seed` chooses one.

    The former pass before each piece of a copy, the latter with each batch on the caller's stream.
    """

    def __init__(self, delays: Sequence[float], work: Sequence[float], seed: int) -> None:
        wrong: list[str] = []
        self.copies, self.caller = _Stream(wrong), _Stream(wrong)
        super().__init__()
        self.wrong = wrong
        self.kernels = _Kernels(self.caller, self._unowned)
        self.delays, self.work, self._random = delays, work, random.Random(seed)
        self._behind: dict[int, tuple[mmap.mmap, mmap.mmap, NDArray[np.uint8]]] = {}
        """By the address of device memory: two maps of it, and an array over the one that is never protected."""

    def pause(self, delays: Sequence[float]) -> None:
        if delay := self._random.choice(delays):
            time.sleep(delay)

    def _unowned(self, value: object) -> object:
        """The same device memory, which a kernel that is queued does not keep from being freed."""
        if isinstance(value, torch.Tensor) and (found := self._behind.get(value.data_ptr())):
            return view_as(torch.from_numpy(np.frombuffer(found[0], np.uint8)), value.dtype, value.shape)
        return value

    def refuse_capture(self) -> None: ...

    def memory(self, nbytes: int) -> torch.Tensor:
        descriptor = os.memfd_create("device")
        os.ftruncate(descriptor, nbytes)
        seen, behind = mmap.mmap(descriptor, nbytes), mmap.mmap(descriptor, nbytes)
        os.close(descriptor)
        owner = np.frombuffer(seen, np.uint8)
        address = owner.ctypes.data
        self._behind[address] = seen, behind, np.frombuffer(behind, np.uint8)
        # Freed memory belongs to the next one who asks on the copy stream.
        weakref.finalize(owner, self.copies.put, lambda: _protect(address, nbytes, 0)).atexit = False
        return torch.from_numpy(owner)

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)

    def send(self, host: AnyArray, memory: torch.Tensor) -> torch.Tensor:
        values, source = torch.from_numpy(host), host.reshape(-1).view(np.uint8)
        target = self._behind[memory.data_ptr()][2][: source.nbytes]
        _protect(source.ctypes.data, source.nbytes, _READ)
        self.copies.put(lambda: self._copy(source, target, memory))
        return view_as(memory, values.dtype, values.shape)

    def _copy(self, source: NDArray[np.uint8], target: NDArray[np.uint8], memory: torch.Tensor) -> None:
        _protect(memory.data_ptr(), source.nbytes, 0)
        for piece in np.array_split(np.arange(source.nbytes), _PIECES):
            self.pause(self.delays)
            target[piece[0] : piece[-1] + 1] = source[piece[0] : piece[-1] + 1]
        _protect(memory.data_ptr(), source.nbytes, _READ | _WRITE)
        _protect(source.ctypes.data, source.nbytes, _READ | _WRITE)

    def make_event(self) -> _Event:
        return _Event()

    def copy_stream(self) -> _Stream:
        return self.copies

    def callers_stream(self) -> _Stream:
        return self.caller

    def end(self) -> None:
        self.caller.end()
        self.copies.end()


def _value(number: int) -> int:
    """The bytes of a batch."""
    return 1 + number % 250


class _Rewritten(StillPipeline):
    """`count` batches: fills a slot anew for each, and spoils it as soon as it is released."""

    def __init__(self, count: int, buffers: int) -> None:
        values = {"transform": {"scale": 0.5}, "device_prefetch": buffers}
        super().__init__(_SHAPE, "uint8", **values)
        self._held: set[Batch] = set()
        self._count = count

    def peek(self) -> Batch:
        if self._batch is None:
            if not self._has_free_slot():
                raise RuntimeError("the delivery waits for a batch and holds every slot")
            super().peek().tops["data"][...] = _value(self.progress.taken)  # type: ignore[index]
        return super().peek()

    def take(self) -> Batch:
        self._held.add(batch := super().take())
        return batch

    def holds(self, batch: Batch) -> bool:
        return batch in self._held

    def release(self, batch: Batch) -> None:
        self._held.remove(batch)
        batch.tops["data"][...] = 255  # type: ignore[index]

    def is_ready(self) -> bool:
        return self.progress.taken < self._count and self._has_free_slot()

    def _has_free_slot(self) -> bool:
        return all((batch.number - self.progress.taken) % SLOTS for batch in self._held)


def deliver_batches(
    count: int,
    delays: Sequence[float],
    work: Sequence[float],
    seed: int,
    buffers: int,
    mistake: str = "",
) -> list[str]:
    """Deliver `count` batches, an even number, to two devices in turn; returns what was wrong.

    `mistake`: a step that is left out.
    """
    devices = [AsyncDevice(delays, work, seed + number) for number in range(2)]
    feeds = [_Feed(device, _Rewritten(count // 2, buffers), mistake) for device in devices]
    for number in range(count):
        feeds[number % 2].deliver()
    for feed in feeds:
        feed.close()
    return [text for device in devices for text in device.wrong]


class _Feed:
    def __init__(self, device: AsyncDevice, pipeline: _Rewritten, mistake: str) -> None:
        self.device, self._pipeline, self._mistake = device, pipeline, mistake
        if mistake in ("send_after", "use_after"):
            setattr(device, mistake, lambda event: None)
        elif mistake == "synchronize":
            device.make_event = _NeverWaitedFor  # type: ignore[method-assign]
        tops = make_tops(self._pipeline.specs, self._pipeline.parameters, Path())
        self._delivery = CudaDelivery(cast(Any, self._pipeline), tops, cast(Any, self.device))
        self._blob = Blob(torch.device("cpu"))
        self._blob.reshape(_SHAPE.rows, *_SHAPE.sample)
        self._data = self._blob.data
        self._given = 0

    def deliver(self) -> None:
        with self.device.kernels:
            self._delivery.deliver([self._blob])
        wanted = _value(self._given) * 0.5
        self._given += 1
        self.device.caller.put(lambda: self._compute(wanted))

    def _compute(self, wanted: float) -> None:
        self.device.pause(self.device.work)
        if not bool((self._data == wanted).all()):
            self.device.wrong.append(f"a batch of {wanted} has {np.unique(self._data.numpy())}")

    def close(self) -> None:
        if self._mistake == "close":
            self.device.send_after = lambda event: None  # type: ignore[method-assign]
        self._delivery.close()
        self.device.end()
        self._pipeline.ring.close()


class _NeverWaitedFor(_Event):
    """An event that the host takes for done; streams do wait for it."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


def main() -> None:
    (mistake,) = sys.argv[1:]
    # A stream that is used too early has to be the slower one.
    delays, work = ([_LASTING_S], [0.0]) if mistake in ("use_after", "synchronize") else ([0.0], [3 * _LASTING_S])
    sys.exit("\n".join(deliver_batches(20, delays, work, 0, 1, mistake)) or 0)
