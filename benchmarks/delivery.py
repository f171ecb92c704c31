"""`python -P -m benchmarks.delivery`: what the trainer pays for a batch that lies ready, against a plain copy of it.

A ring stands still here, filled once, with no loaders beside: what is measured is the way from a slot into a blob, in
turns with a plain copy of the same batch as float32 into the same blob. Slots are many enough that none is in the
cache. Where torch finds a CUDA device, its blobs are filled too, in turns with torch's own copy from page-locked
memory, and the time ends when the device has finished.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from blobfeed.layers.standin import Blob as NumpyBlob
from blobfeed.layers.torch_blob import Blob as TorchBlob
from blobfeed.readers.delivery import Delivery, as_numpy, make_delivery, make_tops
from blobfeed.supplies import make_order
from blobfeed.workers.api import AnyArray, check_parameters
from blobfeed.workers.loading import conversion
from blobfeed.workers.pipeline import Pipeline
from blobfeed.workers.plan import Batch, SlotTops
from blobfeed.workers.transport import Ring, RowsLayout, Run

from blobfeed import ArraySpec

from .report import machine, table

SLOTS = 5


@dataclass(frozen=True)
class Shape:
    rows: int
    sample: tuple[int, ...]

    @property
    def items(self) -> int:
        return self.rows * int(np.prod(self.sample))


_ORDER = make_order(1, shuffle=False, seed=0)


class _Plan(NamedTuple):
    loans: int = 2
    gathered: Collection[str] = ()


class StillPipeline:
    """The part of a Pipeline that a delivery asks for: the slots of a real ring, in turn, and always ready."""

    def __init__(self, shape: Shape, dtype: str, **values: object) -> None:
        self.parameters = check_parameters(
            {"source": {"hdf5": {"path": "none"}}, "batch_size": shape.rows, "tops": ["data"], **values}
        )
        self.specs = {"data": ArraySpec(shape.sample, np.dtype(dtype))}
        self.ring = Ring.create(RowsLayout(self.specs, shape.rows), SLOTS)
        self.ring.allocate()
        rng = np.random.default_rng(0)
        rows = cast(Any, self.ring.rows["data"])
        rows[...] = rng.integers(0, 256, rows.shape, dtype=np.uint8)
        self.progress, self.plan = _Count(0), _Plan()
        self._batch: Batch | None = None

    def peek(self) -> Batch:
        if self._batch is None:
            taken = self.progress.taken
            rows = self.parameters.batch_size
            first = taken % SLOTS * rows
            slot = SlotTops({name: top[first : first + rows] for name, top in self.ring.rows.items()})
            self._batch = Batch(taken, 0, 0, rows, slot, taken, [Run(0, rows, 0, 0)], _ORDER)
        return self._batch

    def take(self) -> Batch:
        batch = self.peek()
        self.progress, self._batch = _Count(self.progress.taken + 1), None
        return batch

    def check_usable(self) -> None: ...

    def deliver_into_host(self, *, calls_make: bool) -> None: ...

    def is_next(self, batch: Batch) -> bool:
        return batch is self._batch

    def holds(self, batch: Batch) -> bool:
        return True

    def release(self, batch: Batch) -> None: ...

    def is_ready(self) -> bool:
        return True

    def look_ahead(self) -> None: ...


@dataclass(frozen=True)
class _Count:
    """The same part of a Position."""

    taken: int


def ready(pipeline: StillPipeline, blob: Any) -> Delivery:
    """A delivery of the pipeline's batches into `blob`."""
    tops = make_tops(pipeline.specs, pipeline.parameters, Path())
    blob.reshape(*tops[0].largest_shape(pipeline.parameters.batch_size))
    return make_delivery(cast(Pipeline, pipeline), tops, [blob])


@dataclass(frozen=True)
class Case:
    name: str
    dtype: str
    values: Mapping[str, object]
    target: float
    """Times of a plain copy that it may take."""


_BOTH = {"transform": {"scale": 1 / 256, "mean_value": [104, 117, 123]}}
_CASES = (
    Case("float32", "float32", {}, 1.1),
    Case("float64 to float32", "float64", {}, 2.0),
    Case("uint8 to float32", "uint8", {}, 1.0),
    Case("uint8, scale", "uint8", {"transform": {"scale": 1 / 256}}, 1.0),
    Case("uint8, mean by channel", "uint8", {"transform": {"mean_value": [104, 117, 123]}}, 1.0),
    Case("uint8, mean by channel and scale", "uint8", _BOTH, 1.0),
)


@dataclass(frozen=True)
class Timing:
    seconds: float
    plain: float
    """The time of the plain copy."""
    ratio: float
    """The median over pairs: what disturbs one of a pair disturbs the other."""


Clock = Callable[[], float]


def in_turns(
    call: Callable[[], object], plain: Callable[[], object], seconds: float, clock: Clock = time.thread_time
) -> Timing:
    """Median times of both by `clock`, called in turn for so long, and five times at least.

    A thread's own time by default: what else runs on the machine takes its turns in the middle of a copy.
    """
    pairs: list[tuple[float, float]] = []
    call()
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(pairs) < 5:
        pairs.append((timed(call, clock), timed(plain, clock)))
    took, copied = (statistics.median(times) for times in zip(*pairs, strict=True))
    return Timing(took, copied, statistics.median(own / copy for own, copy in pairs))


def timed(call: Callable[[], object], clock: Clock) -> float:
    begun = clock()
    call()
    return clock() - begun


def plain_copy(out: AnyArray) -> Callable[[], None]:
    """Copies a batch of float32 into `out`, from one of several places in turn."""
    sources = [np.full(out.shape, number, np.float32) for number in range(SLOTS)]
    turn = iter(range(sys.maxsize))
    return lambda: np.copyto(out, sources[next(turn) % SLOTS])


def cuda_rows(shape: Shape, seconds: float) -> list[list[str]]:
    """Each case on a blob of the current CUDA device, beside a copy from page-locked memory; none without a device."""
    import torch

    if not torch.cuda.is_available():
        return []

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    device = torch.device("cuda", torch.cuda.current_device())
    locked = torch.zeros((shape.rows, *shape.sample), pin_memory=True)
    memory = torch.empty_like(locked, device=device)
    plain = partial(memory.copy_, locked, non_blocking=True)
    name = torch.cuda.get_device_name(device)
    return [_measured(name, case, shape, TorchBlob(device), seconds, plain, clock) for case in _CASES]


def host_rows(shape: Shape, seconds: float, blobs: Mapping[str, Callable[[], Any]]) -> list[list[str]]:
    """Each case on each kind of blob, and by view where it can be."""
    cases = [(kind, case) for kind in blobs for case in _CASES]
    if "torch CPU" in blobs:
        cases.append(("torch CPU", Case("float32, by view", "float32", {"delivery": "view"}, 0.05)))
    return [_measured(kind, case, shape, blobs[kind](), seconds) for kind, case in cases]


def _measured(
    kind: str,
    case: Case,
    shape: Shape,
    blob: Any,
    seconds: float,
    plain: Callable[[], object] | None = None,
    clock: Clock = time.thread_time,
) -> list[str]:
    pipeline = StillPipeline(shape, case.dtype, **case.values)
    delivery = ready(pipeline, blob)
    plain = plain or plain_copy(as_numpy(blob.data))
    timing = in_turns(lambda: delivery.deliver([blob]), plain, seconds, clock)
    delivery.close()
    pipeline.ring.close()
    return [
        f"{kind}: {case.name}",
        f"{timing.seconds * 1e3:.3f} ms",
        f"{timing.plain * 1e3:.3f} ms",
        f"{timing.ratio:.2f}",
        f"{case.target:g}",
        f"{4 * shape.items / timing.seconds / 1e9:,.1f} GB/s",
    ]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -P -m benchmarks.delivery", description=__doc__)
    parser.add_argument("--rows", type=int, default=64, help="images of 3×224×224 in a batch")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each case is measured")
    arguments = parser.parse_args(given)
    shape = Shape(arguments.rows, (3, 224, 224))
    blobs: dict[str, Callable[[], Any]] = {"NumPy": NumpyBlob}
    if importlib.util.find_spec("torch"):
        import torch

        blobs["torch CPU"] = lambda: TorchBlob(torch.device("cpu"))
    compiled = "NumPy" if conversion.convert is None else "the extension"
    print(f"{machine()}\n\n{shape.rows}×3×224×224, by {compiled}; GB/s are those of the float32 that the blob gets.\n")
    head = ["delivery", "takes", "plain copy", "ratio", "target", "into the blob"]
    rows = host_rows(shape, arguments.seconds, blobs)
    rows += cuda_rows(shape, arguments.seconds) if "torch CPU" in blobs else []
    print(table(head, rows), flush=True)


if __name__ == "__main__":
    main()
