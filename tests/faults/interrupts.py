"""Ctrl-C inside deliveries: where the interpreter runs signal handlers, at a place that a seed chooses."""

from __future__ import annotations

import dis
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import torch
from blobfeed.layers.torch_blob import Blob
from blobfeed.readers.delivery.cuda_delivery import CudaDelivery

from blobfeed import AsyncReader, BatchReader, LayerHarness, MultiProcessInputLayer

from ..support.played_device import PlayedDevice
from .figures import Figure
from .scale import Scale

_STUDY = "interrupts"
_SAMPLES = 26
_BATCH = 4
_FILES = ("/blobfeed/readers/", "/blobfeed/layers/", "/blobfeed/workers/pipeline/")
_POINTS = frozenset({"RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "FOR_ITER"})
"""Behind these CPython looks whether a signal has come, and at no other instruction."""
_BEYOND = 1 << 30
"""A place that no call has."""


class Interrupter:
    """Runs calls, and raises KeyboardInterrupt in some of them, inside blobfeed's own code."""

    def __init__(self, seed: int, files: tuple[str, ...] = _FILES) -> None:
        self.interrupts = 0
        self._files = files
        self._random = random.Random(seed)
        self._handler = signal.getsignal(signal.SIGINT)
        self._longest = 0
        """Places in the longest call so far; the first call is not interrupted."""
        self._offsets: dict[CodeType, frozenset[int]] = {}
        self._seen = 0
        self._at = 0

    def run(self, call: Callable[[], Any], place: int | None = None) -> Any:
        """Return the result of `call`; raises KeyboardInterrupt if it was interrupted, at `place` if one is named."""
        # Up to fourfold: a call that opens many batches at once is longer than any before, and begins anew each time.
        most = int(self._longest * 4 ** self._random.random())
        self._seen, self._at = 0, place or (self._random.randint(1, most) if most else 0)
        before = sys.gettrace()
        sys.settrace(self._in_frame)
        try:
            given = call()
        except KeyboardInterrupt:
            self.interrupts += 1
            raise
        finally:
            sys.settrace(before)
        self._longest = max(self._longest, self._seen)
        return given

    def _in_frame(self, frame: FrameType, event: str, argument: object) -> Any:
        if not any(part in frame.f_code.co_filename for part in self._files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._at_instruction

    def _at_instruction(self, frame: FrameType, event: str, argument: object) -> Any:
        # Where signals are deferred none would come.
        takes = signal.getsignal(signal.SIGINT) is self._handler
        if event == "opcode" and takes and frame.f_lasti in self._places(frame.f_code):
            self._seen += 1
            if self._seen == self._at:
                raise KeyboardInterrupt
        return self._at_instruction

    def _places(self, code: CodeType) -> frozenset[int]:
        if code not in self._offsets:
            found, follows = set(), False
            for instruction in dis.get_instructions(code):
                if follows:
                    found.add(instruction.offset)
                follows = instruction.opname in _POINTS
            self._offsets[code] = frozenset(found)
        return self._offsets[code]


class Ledger:
    """What a trainer has got, batch by batch, against what it should have got: the samples in order, over and over."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def add(self, label: Any, data: Any) -> None:
        labels = np.asarray(label).astype(int).tolist()
        whole = (np.asarray(data) == np.asarray(label)[:, None, None, None]).all()
        self.batches.append(labels if whole else [-1])

    @property
    def lost_and_doubled(self) -> tuple[int, int]:
        """Batches that should have come and did not, and those that came and should not have."""
        wanted = [[(_BATCH * k + row) % _SAMPLES for row in range(_BATCH)] for k in range(len(self.batches))]
        if wanted == self.batches:
            return 0, 0
        begins = [batch[0] // 2 for batch in self.batches]  # every begin is even, and 13 of them go round
        steps = [(after - before - 2) % 13 for before, after in pairwise(begins)]
        doubled = sum(step == 11 for step in steps)
        return max(1, sum(step != 0 for step in steps)) - doubled, doubled


def _write(folder: Path, height: int, dtype: str = "float32") -> dict[str, Any]:
    """Samples that hold their own number; with few pixels many batches share a task, with many each has its own."""
    path = folder / f"interrupted_{height}_{dtype}.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file["label"] = np.arange(_SAMPLES)
            file["data"] = np.broadcast_to(
                np.arange(_SAMPLES, dtype=dtype)[:, None, None, None], (_SAMPLES, 3, height, 64)
            )
    return {"hdf5": {"path": str(path)}}


Source = dict[str, Any]
_GIVEN: dict[str, Any] = {"batch_size": _BATCH, "num_loaders": 1, "timeout_s": 60.0}


def _layer(source: Source, interrupts: int, seed: int, **given: Any) -> tuple[int, Ledger]:
    device = given.pop("device", "")
    with LayerHarness(MultiProcessInputLayer, {"source": source, **_GIVEN, **given}, device=device) as harness:
        return _forwards(harness.layer.state_dict, harness.forward, lambda: harness.tops, interrupts, seed)


def _in_process(source: Source, interrupts: int, seed: int) -> tuple[int, Ledger]:
    """Bytes, which are converted on their way from the file's map."""
    path = Path(source["hdf5"]["path"])
    return _layer(_write(path.parent, int(path.stem.split("_")[1]), "uint8"), interrupts, seed, num_loaders=0)


def _forwards(
    state: Callable[[], object], forward: Callable[[], object], tops: Callable[[], Any], interrupts: int, seed: int
) -> tuple[int, Ledger]:
    """Forwards, each again after an interrupt, unless the state says that its batch has been received."""
    interrupter, ledger = Interrupter(seed), Ledger()
    forward()
    ledger.add(tops()["label"], tops()["data"])
    while interrupter.interrupts < interrupts:
        before = state()
        try:
            interrupter.run(forward)
        except KeyboardInterrupt:
            if state() == before:
                continue
        ledger.add(tops()["label"], tops()["data"])
    forward()
    ledger.add(tops()["label"], tops()["data"])
    return interrupter.interrupts, ledger


def _reader(source: Source, interrupts: int, seed: int, into: bool = False, **given: Any) -> tuple[int, Ledger]:
    interrupter, ledger = Interrupter(seed), Ledger()
    with BatchReader(source, epochs=None, **_GIVEN, **given) as reader:
        own = {name: np.empty((_BATCH, *spec.shape), spec.dtype) for name, spec in reader.specs.items()}
        loop = reader.into(own) if into else iter(reader)
        while interrupter.interrupts < interrupts:
            try:
                batch = interrupter.run(lambda: next(loop))
            except KeyboardInterrupt:
                continue
            ledger.add(batch["label"], batch["data"])
        batch = next(loop)
        ledger.add(batch["label"], batch["data"])
        assert reader.state_dict()["batches"] == len(ledger.batches)
    return interrupter.interrupts, ledger


def _fetching(source: Source) -> AsyncReader:
    return AsyncReader(
        hdf5_path=source["hdf5"]["path"],
        labels_field="label",
        batch_size=_BATCH,
        last_batch="wrap",
        num_dim=1,
        cha_dim=2,
        h_dim=3,
        w_dim=4,
    )


def fetched_batches(folder: Path, places: int) -> tuple[int, Ledger]:
    """Interrupt AsyncReader's own code at its first place, in the next call at its second, and so on."""
    interrupter, ledger = Interrupter(0, ("/readers/async_reader.py",)), Ledger()
    with _fetching(_write(folder, 1)) as reader:
        for place in range(1, places + 1):
            # Python 3.13 shows no place in the first traced run behind one that was not.
            for at in (_BEYOND, place):
                reader.fetch_data()
                try:
                    data, labels = interrupter.run(reader.get_next_batch, at)
                except KeyboardInterrupt:
                    data, labels = reader.get_next_batch()
                ledger.add(labels, data)
    return interrupter.interrupts, ledger


def _async_reader(source: Source, interrupts: int, seed: int) -> tuple[int, Ledger]:
    interrupter, ledger = Interrupter(seed), Ledger()
    with _fetching(source) as reader:
        while interrupter.interrupts < interrupts:
            reader.fetch_data()
            data_and_labels = None
            while data_and_labels is None:
                try:
                    data_and_labels = interrupter.run(reader.get_next_batch)
                except KeyboardInterrupt:
                    continue
            ledger.add(data_and_labels[1], data_and_labels[0])
    return interrupter.interrupts, ledger


def _device(source: Source, interrupts: int, seed: int, buffers: int) -> tuple[int, Ledger]:
    """The delivery to a CUDA device, on a played one."""
    from blobfeed.readers.delivery import make_tops
    from blobfeed.readers.opening import open_pipeline
    from blobfeed.workers.api import check_parameters

    parameters = check_parameters({"source": source, **_GIVEN, "device_prefetch": buffers})
    played: Any = PlayedDevice(patience=2)
    with open_pipeline(parameters) as pipeline:
        delivery = CudaDelivery(pipeline, make_tops(pipeline.specs, parameters, Path()), played)
        blobs = [Blob(torch.device("cpu")), Blob(torch.device("cpu"))]

        def forward() -> None:
            for blob, shape in zip(blobs, delivery.next_shapes(), strict=True):
                blob.reshape(*shape)
            with played.judge:
                delivery.deliver(blobs)

        def state() -> object:
            return delivery.progress.state()

        try:
            got = _forwards(state, forward, lambda: {"data": blobs[0].data, "label": blobs[1].data}, interrupts, seed)
        finally:
            delivery.close()
    if wrong := [*played.wrong, *played.judge.races]:
        raise AssertionError(wrong[0])
    return got


_WAYS: dict[str, Callable[[Source, int, int], tuple[int, Ledger]]] = {
    "layer, NumPy blobs": _layer,
    "layer, torch blobs by view": lambda source, count, seed: _layer(
        source, count, seed, device="cpu", delivery="view"
    ),
    "layer, in process": _in_process,
    "BatchReader": _reader,
    "BatchReader, own arrays": lambda source, count, seed: _reader(source, count, seed, into=True),
    "BatchReader, tensors": lambda source, count, seed: _reader(source, count, seed, device="cpu"),
    "AsyncReader": _async_reader,
    "device, one buffer": lambda source, count, seed: _device(source, count, seed, 1),
    "device, three buffers": lambda source, count, seed: _device(source, count, seed, 3),
}


@contextmanager
def _ctrl_c_heard() -> Iterator[None]:
    """A shell starts a background job with SIGINT ignored. Then no Ctrl-C can come, and so blobfeed defers none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def study(scale: Scale, folder: Path) -> Iterator[Figure]:
    with _ctrl_c_heard():
        yield from _figures(scale, folder)


def _figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    each = -(-scale.interrupts // (2 * len(_WAYS)))
    total = 0
    for seed, (way, run) in enumerate(_WAYS.items(), start=scale.seed):
        lost = doubled = 0
        for height in (1, 768):
            interrupts, ledger = run(_write(folder, height), each, seed)
            total += interrupts
            lost, doubled = lost + ledger.lost_and_doubled[0], doubled + ledger.lost_and_doubled[1]
        yield Figure(_STUDY, f"{way}: batches lost", lost, 0)
        yield Figure(_STUDY, f"{way}: batches that came twice", doubled, 0)
    yield Figure(_STUDY, "interrupts inside deliveries", total)
