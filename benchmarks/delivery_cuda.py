"""The CUDA part of `python -P -m benchmarks.delivery`: staging and ring beside torch's own page-locked copies.

`Card` is all that the table asks of a device, so that its code runs without one, too.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from blobfeed.layers.torch_blob import Blob
from blobfeed.readers.delivery import make_tops
from blobfeed.readers.delivery.cuda_delivery import CudaDelivery
from blobfeed.readers.delivery.cuda_device import CudaDevice
from blobfeed.workers.pipeline import Pipeline

from .report import table
from .still_pipeline import Shape, StillPipeline

_BOTH: dict[str, Any] = {"transform": {"scale": 1 / 256, "mean_value": [104, 117, 123]}}
_TRIAL_CYCLES = 10_000_000
_NONE = "–"

Span = tuple[float, float]
"""Begin and end of something on the device, in one unit."""


@dataclass(frozen=True)
class Spans:
    """Copies to the device and kernels on it."""

    copies: Sequence[Span]
    kernels: Sequence[Span]


class Card:
    """The current CUDA device, and a kernel that takes as long as it is asked to."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name(self.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_TRIAL_CYCLES)  # type: ignore[no-untyped-call]  # the first one starts CUDA
        start.record()
        torch.cuda._sleep(_TRIAL_CYCLES)  # type: ignore[no-untyped-call]
        end.record()
        self.synchronize()
        self._cycles_per_s = _TRIAL_CYCLES * 1e3 / start.elapsed_time(end)

    def open(self) -> CudaDevice:
        """The device as a delivery uses it."""
        return CudaDevice(str(self.device))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def compute(self, seconds: float) -> None:
        """Queue a kernel of `seconds` on the current stream."""
        torch.cuda._sleep(int(seconds * self._cycles_per_s))  # type: ignore[no-untyped-call]

    def wait_for_step(self) -> None:
        """Wait for the current stream alone, as a trainer does that reads its loss."""
        torch.cuda.current_stream(self.device).synchronize()

    def traced(self, work: Callable[[], object]) -> Spans:
        """Run `work` under torch's profiler."""
        return profiled(work, self.synchronize)


def why_no_cuda() -> str:
    """The reason why torch finds no CUDA device; empty if it finds one."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, finds no device: see nvidia-smi"


def profiled(work: Callable[[], object], synchronize: Callable[[], object]) -> Spans:
    """Run `work` under torch's profiler; returns its copies and kernels in µs."""
    with torch.profiler.profile() as profiler:
        work()
        synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return spans_of(json.loads(path.read_text())["traceEvents"])


def spans_of(events: Iterable[Mapping[str, Any]]) -> Spans:
    """The copies to the device and the kernels among the events of a trace that torch's profiler has written."""
    found: dict[str, list[Span]] = {"gpu_memcpy": [], "kernel": []}
    for event in events:
        kind = event.get("cat")
        if kind == "kernel" or (kind == "gpu_memcpy" and "HtoD" in event["name"]):
            found[kind].append((event["ts"], event["ts"] + event["dur"]))
    return Spans(found["gpu_memcpy"], found["kernel"])


def hidden_share(spans: Spans) -> float | None:
    """The part of the copies' time in which a kernel ran; None if there was no copy."""
    total = sum(end - begin for begin, end in spans.copies)
    if not total:
        return None
    hidden, done = 0.0, float("-inf")
    for begin, end in sorted(spans.kernels):
        begin = max(begin, done)  # kernels of several streams overlap
        done = max(done, end)
        hidden += sum(max(0.0, min(end, until) - max(begin, since)) for since, until in spans.copies)
    return hidden / total


def cuda_report(shape: Shape, card: Card, steps: int = 50) -> str:
    """A table in Markdown: torch's own copies, `page_lock: staging` and `page_lock: ring` side by side."""
    pinned, stall = _torch_copies(shape, card, card.open().host_memory(4 * shape.items).view(np.float32), steps)
    pageable, _ = _torch_copies(shape, card, np.zeros(shape.items, np.float32), steps)
    ways = [_Way.measured(shape, card, page_lock, steps) for page_lock in ("staging", "ring")]
    lines = [
        ["page-locking, for 1 GB", _NONE, *(way.locking for way in ways), _NONE],
        ["float32 to the device", _rate(pinned), *(_rate(way.float32) for way in ways), "0.95 of torch"],
        ["uint8 to the device, mean and scale there", _NONE, *(_rate(way.uint8) for way in ways), _NONE],
        ["float32 from memory that is not page-locked", _rate(pageable), _NONE, _NONE, _NONE],
        ["stall: the trainer's own time for a batch", _ms(stall), *(_ms(way.stall_s) for way in ways), _NONE],
        ["a step without a delivery", _NONE, *(_ms(way.alone_s) for way in ways), _NONE],
        ["added to it by a delivery", _NONE, *(_ms(way.added_s) for way in ways), "≤ 0.1 ms"],
        ["copies beside kernels, by the profiler", _NONE, *(_share(way.hidden) for way in ways), "≥ 90 %"],
    ]
    head = ["CUDA", "torch, pinned", "page_lock: staging", "page_lock: ring", "target"]
    size = f"{shape.rows}×{'×'.join(map(str, shape.sample))}, {4 * shape.items / 1e6:,.1f} MB as float32"
    return f"{card.name}, torch {torch.__version__}; {size}; a step takes two copies' time\n\n{table(head, lines)}"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _share(part: float | None) -> str:
    return "no copy in the trace" if part is None else f"{100 * part:.0f} %"


def _elapsed(card: Card, work: Callable[[], object]) -> float:
    """Seconds that the device took for what `work` queues, on any stream."""
    card.synchronize()
    begun = time.perf_counter()
    work()
    card.synchronize()
    return time.perf_counter() - begun


def _torch_copies(shape: Shape, card: Card, host: Any, steps: int) -> tuple[float, float]:
    """Bytes a second of torch's own copies from `host`, shape (items,) float32, and the seconds that a call takes."""
    values, memory = torch.from_numpy(host), torch.empty(shape.items, device=card.device)
    calls: list[float] = []

    def copy() -> None:
        for _ in range(steps):
            begun = time.perf_counter()
            memory.copy_(values, non_blocking=True)
            calls.append(time.perf_counter() - begun)

    taken = [_elapsed(card, copy) for _ in range(5)]
    return steps * 4 * shape.items / statistics.median(taken[1:]), statistics.median(calls)


@dataclass(frozen=True)
class _Way:
    """One value of `page_lock`, measured. `float32` and `uint8`: bytes a second."""

    locking: str
    float32: float
    uint8: float
    stall_s: float
    alone_s: float
    added_s: float
    hidden: float | None

    @classmethod
    def measured(cls, shape: Shape, card: Card, page_lock: str, steps: int) -> _Way:
        with _Feed(shape, card, "uint8", {"page_lock": page_lock, **_BOTH}) as feed:
            uint8 = shape.items / feed.seconds_each(steps)
        with _Feed(shape, card, "float32", {"page_lock": page_lock}) as feed:
            transfer = feed.seconds_each(steps)
            alone, _ = feed.steps(2 * transfer, steps, deliver=False)
            together, stall = feed.steps(2 * transfer, steps, deliver=True)
            spans = card.traced(lambda: feed.steps(2 * transfer, steps, deliver=True))
        locking = _locking(shape, card, page_lock)
        return cls(locking, 4 * shape.items / transfer, uint8, stall, alone, together - alone, hidden_share(spans))


def _locking(shape: Shape, card: Card, page_lock: str) -> str:
    """The time to page-lock the ring, or to get page-locked memory for staging, by the GB."""
    device, pipeline = card.open(), StillPipeline(shape, "float32", page_lock=page_lock)
    nbytes = pipeline.ring.memory.nbytes
    begun = time.perf_counter()
    locked = device.lock(pipeline.ring.memory) if page_lock == "ring" else device.host_memory(nbytes) is not None
    taken = time.perf_counter() - begun
    device.unlock()
    pipeline.ring.close()
    return _ms(taken * 1e9 / nbytes) if locked else "refused: staged"


class _Feed:
    """A ring that stands still, delivered to the card; the first batch is there already."""

    def __init__(self, shape: Shape, card: Card, dtype: str, values: Mapping[str, object]) -> None:
        self._card = card
        self._pipeline = StillPipeline(shape, dtype, **values)
        tops = make_tops(self._pipeline.specs, self._pipeline.parameters, Path())
        self._delivery = CudaDelivery(cast(Pipeline, self._pipeline), tops, card.open())
        self._blob = Blob(card.device)
        self._blob.reshape(shape.rows, *shape.sample)
        self._deliver(1)

    def __enter__(self) -> _Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._delivery.close()
        self._pipeline.ring.close()

    def _deliver(self, count: int) -> None:
        for _ in range(count):
            self._delivery.deliver([self._blob])

    def seconds_each(self, steps: int) -> float:
        """Seconds for a delivery when one follows another."""
        taken = [_elapsed(self._card, lambda: self._deliver(steps)) for _ in range(5)]
        return statistics.median(taken[1:]) / steps

    def steps(self, seconds: float, steps: int, *, deliver: bool) -> tuple[float, float]:
        """Seconds for a step that computes for `seconds`, and those of it that the call of a delivery took."""
        calls: list[float] = []

        def train() -> None:
            for _ in range(steps):
                begun = time.perf_counter()
                if deliver:
                    self._deliver(1)
                calls.append(time.perf_counter() - begun)
                self._card.compute(seconds)
                self._card.wait_for_step()

        return _elapsed(self._card, train) / steps, statistics.median(calls)
