"""The CUDA part of `python -P -m benchmarks.delivery`: bandwidth, and what a training step notices of the transfers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from blobfeed.layers.torch_blob import Blob
from blobfeed.readers.delivery.delivery import Delivery

from .report import table
from .still_pipeline import Shape, StillPipeline, ready

_STEPS = 50
_BOTH: dict[str, Any] = {"transform": {"scale": 1 / 256, "mean_value": [104, 117, 123]}}


def cuda_report(shape: Shape, seconds: float) -> str:
    """Tables in Markdown, for the current device."""
    device = f"cuda:{torch.cuda.current_device()}"
    name = torch.cuda.get_device_name()
    plain = _pinned_bandwidth(shape, device)
    lines = [["torch, pin_memory and copy", f"{plain:.1f} GB/s", "1.00", "–"]]
    for page_lock, dtype, values in (
        ("staging", "float32", {}),
        ("ring", "float32", {}),
        ("staging", "uint8", _BOTH),
        ("ring", "uint8", _BOTH),
    ):
        rate = _delivered_bandwidth(shape, device, dtype, {"page_lock": page_lock, **values})
        title = f"{dtype}, page_lock: {page_lock}{', mean and scale on the device' if values else ''}"
        lines.append([title, f"{rate:.1f} GB/s", f"{rate / plain:.2f}", "–" if values else "0.95"])
    lines.append(
        [
            "float32, not page-locked, torch's .to()",
            f"{(rate := _pageable(shape, device)):.1f} GB/s",
            f"{rate / plain:.2f}",
            "–",
        ]
    )
    head = ["to the device", "over the bus", "of plain", "target"]
    overlaps = "\n\n".join(_overlap(shape, device, page_lock) for page_lock in ("staging", "ring"))
    return f"{name}, {shape.rows} images a batch\n\n{table(head, lines)}\n\n{overlaps}"


def _elapsed(device: str, work: Callable[[], object]) -> float:
    """Seconds that the device took for what `work` queues, on whatever stream."""
    torch.cuda.synchronize(device)
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def _pinned_bandwidth(shape: Shape, device: str) -> float:
    host = torch.zeros(shape.items).pin_memory()
    memory = torch.empty(shape.items, device=device)
    times = [_elapsed(device, lambda: [memory.copy_(host, non_blocking=True) for _ in range(_STEPS)]) for _ in range(5)]
    return _STEPS * 4 * shape.items / statistics.median(times) / 1e9


def _pageable(shape: Shape, device: str) -> float:
    host = torch.zeros(shape.items)
    times = [_elapsed(device, lambda: [host.to(device) for _ in range(_STEPS)]) for _ in range(3)]
    return _STEPS * 4 * shape.items / statistics.median(times) / 1e9


def _delivered_bandwidth(shape: Shape, device: str, dtype: str, values: dict[str, object]) -> float:
    """Bytes over the bus for each second of deliveries one after another."""
    pipeline, blob, delivery = _feeding(shape, device, dtype, values)
    times = [_elapsed(device, lambda: [delivery.deliver([blob]) for _ in range(_STEPS)]) for _ in range(5)]
    delivery.close()
    pipeline.ring.close()
    return _STEPS * shape.items * np.dtype(dtype).itemsize / statistics.median(times[1:]) / 1e9


def _feeding(shape: Shape, device: str, dtype: str, values: dict[str, object]) -> tuple[StillPipeline, Blob, Delivery]:
    pipeline = StillPipeline(shape, dtype, **values)
    blob = Blob(torch.device(device))
    delivery = ready(pipeline, blob)
    delivery.deliver([blob])
    return pipeline, blob, delivery


def _overlap(shape: Shape, device: str, page_lock: str) -> str:
    """Steps that take twice as long as a transfer, with and without deliveries in between."""
    pipeline, blob, delivery = _feeding(shape, device, "float32", {"page_lock": page_lock})
    transfer = _elapsed(device, lambda: [delivery.deliver([blob]) for _ in range(_STEPS)]) / _STEPS
    cycles = _cycles_for(device, 2 * transfer)
    host: list[float] = []

    def steps(deliver: bool) -> None:
        for _ in range(_STEPS):
            begun = time.perf_counter()
            if deliver:
                delivery.deliver([blob])
            host.append(time.perf_counter() - begun)
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            torch.cuda.current_stream(device).synchronize()

    alone = _elapsed(device, lambda: steps(False)) / _STEPS
    host.clear()
    together = _elapsed(device, lambda: steps(True)) / _STEPS
    stall = statistics.median(host)
    delivery.close()
    pipeline.ring.close()
    lines = [
        ["a transfer", f"{transfer * 1e3:.3f} ms", "–"],
        ["a step alone", f"{alone * 1e3:.3f} ms", "–"],
        ["a step with a delivery", f"{together * 1e3:.3f} ms", "–"],
        ["added by the delivery", f"{(together - alone) * 1e3:.3f} ms", "0.1 ms"],
        ["of it in the trainer's own time", f"{stall * 1e3:.3f} ms", "–"],
    ]
    return table([f"overlap, page_lock: {page_lock}", "takes", "target"], lines)


def _cycles_for(device: str, seconds: float) -> int:
    """How long to tell torch.cuda._sleep to take."""
    trial = 10_000_000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    torch.cuda._sleep(trial)  # type: ignore[no-untyped-call]
    end.record()
    torch.cuda.synchronize(device)
    return int(trial * seconds * 1e3 / start.elapsed_time(end))
