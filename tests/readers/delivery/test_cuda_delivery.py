"""Batches on their way to a device: on a device that is played, whose copies take as long as they like, and on CUDA."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery.conversion import Conversion
from blobfeed.readers.delivery.tops import make_tops
from blobfeed.workers.base.errors import EndOfData, InexactValueError, ParameterError
from blobfeed.workers.base.hooks import Hooks
from blobfeed.workers.base.parameters import check_parameters
from blobfeed.workers.pipeline.pipeline import Pipeline
from blobfeed.workers.plan.batch import Batch

from tests.support.standin_files import images, narrowed, write_hdf5, write_images

torch = pytest.importorskip("torch")

from blobfeed.readers.delivery.cuda_convert import DeviceConversion  # noqa: E402
from blobfeed.readers.delivery.cuda_delivery import CudaDelivery  # noqa: E402
from blobfeed.readers.delivery.cuda_device import CudaDevice  # noqa: E402

from tests.support.played_device import PlayedDevice  # noqa: E402
from tests.support.race_detector import RaceDetector  # noqa: E402


class _Target:
    def __init__(self, device: str = "cpu") -> None:
        self.data = torch.zeros(0, device=device)

    def reshape(self, *shape: int) -> None:
        self.data = torch.full(shape, torch.nan, device=self.data.device)


class _Feeding:
    def __init__(self, folder: Path, device: Any, hooks: Hooks | None = None, **values: object) -> None:
        if not (folder / "train.h5").exists():
            write_images(folder / "train.h5")
        parameters = check_parameters(
            {"source": {"hdf5": {"path": "train.h5"}}, "batch_size": 4, "num_loaders": 1, "page_lock": "ring", **values}
        )
        self.pipeline = Pipeline(parameters, hooks or Hooks(), base_dir=folder)
        self._tops = make_tops(self.pipeline.specs, parameters, folder)
        self.devices: list[Any] = []
        self._release, self.pipeline.release = self.pipeline.release, self.release  # type: ignore[method-assign]
        self.go_to(device)

    def go_to(self, device: Any) -> None:
        """What follows is delivered to `device`: a pipeline outlives its deliveries, and takes long to start."""
        self.device = device
        self.devices.append(device)
        self.delivery = CudaDelivery(self.pipeline, self._tops, device)
        self.targets = [_Target(str(device.device)) for _ in self.delivery.tops]

    def next(self) -> list[Any]:
        for target, shape in zip(self.targets, self.delivery.next_shapes(), strict=True):
            target.reshape(*shape)
        with getattr(self.device, "judge", contextlib.nullcontext()):
            self.delivery.deliver(self.targets)
        return [target.data.cpu().numpy() for target in self.targets]

    def release(self, batch: Batch) -> None:
        """Release the batch: from now on loaders may write to its slot."""
        if judge := getattr(self.device, "judge", None):
            for rows in batch.tops.values():
                if isinstance(rows, np.ndarray):
                    judge.host_writes(rows.ctypes.data, "a loader's write")
        self._release(batch)

    def wait_until_ready(self) -> None:
        """So that what is sent ahead does not depend on the machine."""
        self.pipeline.peek()

    def close(self) -> None:
        self.delivery.close()
        self.pipeline.close()


@pytest.fixture
def feeding(tmp_path: Path) -> Iterator[Any]:
    made: list[_Feeding] = []

    def make(device: Any, hooks: Hooks | None = None, **values: object) -> _Feeding:
        made.append(_Feeding(tmp_path, device, hooks, **values))
        return made[-1]

    yield make
    for feed in made:
        feed.delivery.close()
    wrong = [text for feed in made for device in feed.devices for text in _wrong(device)]
    while made:
        made.pop().close()
    assert wrong == []


def _wrong(device: Any) -> list[str]:
    return [*device.wrong, *device.judge.races] if isinstance(device, PlayedDevice) else []


_WAYS = [("ring", True), ("ring", False), ("staging", True)]
"""Parameter page_lock, and whether the device locks the ring if it is asked to."""


@pytest.mark.parametrize("buffers", [1, 3])
@pytest.mark.parametrize("patience", [0, 1000])
@pytest.mark.parametrize(("page_lock", "locks"), _WAYS)
def test_every_batch_arrives_once_and_whole_however_long_copies_take(
    feeding: Any, buffers: int, patience: int, page_lock: str, locks: bool
) -> None:
    device = PlayedDevice(patience, locks)
    transform = {"scale": 0.5, "mean_value": [1, 2, 3]}
    feed = feeding(device, device_prefetch=buffers, prefetch_batches=1, page_lock=page_lock, transform=transform)
    mean = np.array([1, 2, 3], np.float32)[:, None, None]
    for number in range(12):
        wanted = np.arange(4 * number, 4 * number + 4) % 20
        data, label = feed.next()
        np.testing.assert_array_equal(label, wanted)
        np.testing.assert_array_equal(data, (images()[wanted] - mean) * np.float32(0.5))
    assert device.judge.kernels > 12 * 4  # copies of data and labels, and what is computed of them
    assert (device.locked is None) == (page_lock == "staging")
    assert device.locked is None or device.locked.nbytes >= 3 * (240 + 32)  # the whole ring


def test_a_staged_batch_gives_its_slot_back_before_it_has_arrived(feeding: Any) -> None:
    device = PlayedDevice(patience=10**9)
    feed = feeding(device, device_prefetch=1, page_lock="staging")
    feed.next()
    feed.wait_until_ready()
    feed.next()
    assert not device.copies[-1].done
    (sent,) = (buffer.sent for buffer in feed.delivery._buffers)
    assert not feed.pipeline.holds(sent.upcoming.batch)


def test_a_stream_that_captures_a_graph_is_refused_and_no_batch_is_lost(feeding: Any) -> None:
    device = PlayedDevice(0)
    feed = feeding(device)
    feed.next()
    device.captures = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="captures a CUDA graph"):
            feed.next()
    device.captures = False
    np.testing.assert_array_equal(feed.next()[1], np.arange(4, 8))


@pytest.mark.parametrize("page_lock", ["staging", "ring"])
def test_a_reader_that_began_in_inference_mode_goes_on_outside_of_it(feeding: Any, page_lock: str) -> None:
    with torch.inference_mode():
        feed = feeding(PlayedDevice(1), page_lock=page_lock, transform={"scale": [0.5, 1, 2], "mean_value": 1})
        feed.next()
    np.testing.assert_array_equal(feed.next()[1], np.arange(4, 8))
    with torch.inference_mode():
        np.testing.assert_array_equal(feed.next()[1], np.arange(8, 12))
    np.testing.assert_array_equal(feed.next()[1], np.arange(12, 16))


def test_what_travels_lies_in_page_locked_memory(feeding: Any, tmp_path: Path) -> None:
    """Crops too: a copy from other memory makes the trainer wait for the device."""
    device = PlayedDevice(0)
    feed = feeding(device, page_lock="staging", transform=_write_mean_and_images(tmp_path))
    for _ in range(4):
        feed.next()
    assert len(device.copies) >= 12  # data, crops, labels
    staged = [(array.ctypes.data, array.ctypes.data + array.nbytes) for array in device.staging]
    for copy in device.copies:
        address = copy.host.ctypes.data
        assert any(first <= address < end for first, end in staged)


def test_the_next_batch_is_sent_before_deliver_returns(feeding: Any) -> None:
    device = PlayedDevice(patience=10**9)
    feed = feeding(device, device_prefetch=1)
    feed.next()
    feed.wait_until_ready()
    feed.next()
    ahead = device.copies[-1]
    assert not ahead.done
    feed.next()
    assert ahead.done
    np.testing.assert_array_equal(feed.targets[1].data.numpy(), ahead.as_sent)


def test_what_is_on_its_way_does_not_count_as_received(feeding: Any) -> None:
    feed = feeding(PlayedDevice(0))
    assert feed.delivery.progress.state()["position"] == 0
    for number in range(1, 4):
        feed.next()
        assert feed.delivery.progress.state()["position"] == 4 * number


def test_an_error_of_a_later_batch_waits_for_its_turn(feeding: Any, tmp_path: Path) -> None:
    labels = np.array([1, 2, 3, 4, 5, 2**24 + 1, 7, 8, 9, 10, 11, 12])
    write_hdf5(tmp_path / "train.h5", data=np.zeros((12, 2), np.float32), label=labels)
    feed = feeding(PlayedDevice(0), epochs=1)
    feed.wait_until_ready()
    np.testing.assert_array_equal(feed.next()[1], labels[:4])
    with pytest.raises(InexactValueError, match="16777217"):
        feed.next()
    np.testing.assert_array_equal(feed.next()[1], labels[8:])
    with pytest.raises(EndOfData):
        feed.next()


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("bad", [np.float64(1e300), np.int64(2**24 + 1)])
def test_values_beyond_a_blob_are_an_error_on_a_device_too(
    feeding: Any, tmp_path: Path, varies: bool, bad: np.generic
) -> None:
    data = np.ones((12, 2), bad.dtype)
    data[5, 1] = bad
    write_hdf5(tmp_path / "train.h5", data=data, label=np.arange(12))
    feed = feeding(PlayedDevice(1000), epochs=1, **({"max_shapes": {"data": [2]}} if varies else {}))
    np.testing.assert_array_equal(feed.next()[0], data[:4])
    with pytest.raises(InexactValueError, match="top 'data' got the"):
        feed.next()
    np.testing.assert_array_equal(feed.next()[0], data[8:])


@pytest.mark.parametrize("stored", ["uint8", "int32", "float16", "float32"])
@pytest.mark.parametrize("transform", [{"scale": 400}, {"scale": [400]}, {"scale": 1000, "mean_value": 20}])
def test_a_result_beyond_float16_is_the_same_error_on_every_device(
    feeding: Any, tmp_path: Path, stored: str, transform: dict[str, Any]
) -> None:
    data = np.ones((12, 1, 2, 2), stored)
    data[5, 0, 1] = 200
    write_hdf5(tmp_path / "train.h5", data=data, label=np.arange(12))
    feed = feeding(PlayedDevice(1000), epochs=1, transform=transform, num_loaders=0)
    (on_host, _) = make_tops(feed.pipeline.specs, feed.pipeline.parameters, tmp_path)
    here = np.zeros((4, 1, 2, 2), np.float16)
    on_host.put(feed.pipeline.peek(), here)
    there = feed.targets[0] = _Target()
    there.data = torch.zeros(here.shape, dtype=torch.float16)
    feed.targets[1].reshape(4)
    feed.delivery.deliver(feed.targets)
    np.testing.assert_array_equal(there.data.numpy(), here)
    for put in (lambda: on_host.put(feed.pipeline.peek(), here), lambda: feed.delivery.deliver(feed.targets)):
        with pytest.raises(InexactValueError, match=f"the {stored} value 200, from .* float16 holds none beyond 65504"):
            put()


def test_a_scaled_top_is_not_cut_to_whole_numbers_on_a_device(feeding: Any) -> None:
    feed = feeding(PlayedDevice(0), transform={"scale": 0.5})
    feed.targets[0] = _Target()
    feed.targets[0].data = torch.zeros(4, 3, 4, 5, dtype=torch.int64)
    feed.targets[1].reshape(*feed.delivery.next_shapes()[1])
    with pytest.raises(ParameterError, match="top 'data' has a mean or a scale, and is to be put into int64"):
        feed.delivery.deliver(feed.targets)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("into", ["float16", "float32", "float64"])
def test_the_arithmetic_is_the_same_on_every_device(device: str, into: str) -> None:
    images = np.random.default_rng(0).random((2, 3, 4, 5)) * 255
    means = [None, *(np.full(shape, 104.00698793, np.float32) for shape in ((), (1, 1, 1), (3, 4, 5)))]
    for stored, mean, scale in itertools.product(("uint8", "int32", "float16", "float64"), means, (1.0, 1 / 255)):
        rows = images.astype(stored)
        conversion = Conversion(scale, mean)
        here = np.zeros(rows.shape, into)
        conversion.put(rows, here)
        there = torch.zeros(rows.shape, dtype=getattr(torch, into), device=device)
        on = PlayedDevice(0) if device == "cpu" else CudaDevice(device)
        DeviceConversion(conversion, on.constant).put(torch.from_numpy(rows).to(device), there, None)
        assert there.cpu().numpy().tobytes() == here.tobytes(), (stored, mean, scale)


def test_the_last_batch_arrives_with_its_own_rows(feeding: Any) -> None:
    feed = feeding(PlayedDevice(1), batch_size=8, last_batch="partial")
    assert [len(feed.next()[1]) for _ in range(4)] == [8, 8, 4, 8]


def test_blobs_of_another_shape_are_refused(feeding: Any) -> None:
    feed = feeding(PlayedDevice(0))
    with pytest.raises(ValueError, match=r"has the shape \(0,\) and the next batch \(4, 3, 4, 5\)"):
        feed.delivery.deliver(feed.targets)
    np.testing.assert_array_equal(feed.next()[1], np.arange(4))  # the batch was not lost


@pytest.mark.parametrize("patience", [0, 1000])
def test_padded_samples_travel_by_a_staged_copy(feeding: Any, patience: int) -> None:
    feed = feeding(PlayedDevice(patience), Hooks(decode=narrowed), max_shapes={"data": [3, 4, 5]}, pad={"value": -1})
    for number in range(5):
        data, label, lengths = feed.next()
        np.testing.assert_array_equal(label, np.arange(4) + 4 * number)
        for row, index in enumerate(label.astype(int)):
            width = 3 + (index % 3 > 0)
            np.testing.assert_array_equal(lengths[row], [4, width])
            np.testing.assert_array_equal(data[row, :, :, :width], images()[index, :, :, :width])
            assert (data[row, :, :, width:] == -1).all()


def _write_mean_and_images(folder: Path) -> dict[str, object]:
    """Images that are the mean plus their own label; returns the transform."""
    whole = np.random.default_rng(1).integers(0, 200, (3, 9, 11)).astype(np.float32)
    np.save(folder / "mean.npy", whole)
    labels = np.arange(20)
    write_hdf5(folder / "train.h5", data=(whole + labels[:, None, None, None]).astype(np.uint8), label=labels)
    return {"crop_size": 5, "mirror": True, "mean_file": "mean.npy", "scale": 0.5}


def _assert_the_labels_are_left(feed: Any) -> None:
    for number in range(10):
        data, label = feed.next()
        np.testing.assert_array_equal(label, np.arange(4 * number, 4 * number + 4) % 20)
        np.testing.assert_array_equal(data, np.broadcast_to(label[:, None, None, None] / 2, (4, 3, 5, 5)))


@pytest.mark.parametrize(("page_lock", "locks"), _WAYS)
@pytest.mark.parametrize("patience", [0, 1000])
def test_each_row_loses_the_part_of_the_mean_under_its_crop(
    feeding: Any, tmp_path: Path, patience: int, page_lock: str, locks: bool
) -> None:
    transform = _write_mean_and_images(tmp_path)
    feed = feeding(PlayedDevice(patience, locks), page_lock=page_lock, transform=transform)
    _assert_the_labels_are_left(feed)


def test_closing_unlocks_the_ring_after_the_copies(feeding: Any) -> None:
    device = PlayedDevice(10**9)
    feed = feeding(device)
    feed.next()
    feed.close()
    assert device.unlocked == 1
    assert all(copy.done for copy in device.copies)


# ---- what raises


_STEPS = ("lock", "memory", "host_memory", "send", "sent", "send_after", "used", "use_after")


class _Trouble:
    """Raises `error` once, at the `nth` time that the step is come to, and keeps raising it until it is `over`."""

    def __init__(self, step: str, nth: int, error: type[BaseException], lasting: bool) -> None:
        self._step, self._left, self._error, self._lasting = step, nth, error, lasting
        self.raised = 0

    def __call__(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if self._left == 0 or (self._lasting and self._left < 0):
                self.raised += 1
                raise self._error(f"trouble {step}")


class _Interrupt(_Trouble):
    """Ctrl-C at the `nth` time that the step is come to, unless it waits there."""

    def __init__(self, step: str, nth: int) -> None:
        super().__init__(step, nth, KeyboardInterrupt, lasting=False)
        self._handler = signal.getsignal(signal.SIGINT)

    def __call__(self, step: str) -> None:
        if signal.getsignal(signal.SIGINT) is self._handler:
            super().__call__(step)


def _assert_labels_though_raising(feed: Any, count: int) -> None:
    position = feed.delivery.progress.state()["position"]
    for end in range(position + 4, position + 4 * count + 1, 4):
        labels = None
        while labels is None:
            with contextlib.suppress(KeyboardInterrupt, RuntimeError):
                labels = feed.next()[1].tolist()
            assert feed.delivery.progress.state()["position"] == end - 4 * (labels is None)
        assert labels == [number % 20 for number in range(end - 4, end)]


_PLACES = [("ring", step) for step in _STEPS] + [("staging", step) for step in _STEPS[1:]]


@pytest.mark.parametrize("page_lock", ["ring", "staging"])
def test_after_an_exception_at_any_step_the_next_call_goes_on_with_the_same_batch(feeding: Any, page_lock: str) -> None:
    ways = list(itertools.product(("before", "after"), (RuntimeError, KeyboardInterrupt)))
    feeds = [
        (nth, feeding(PlayedDevice(0), device_prefetch=buffers, prefetch_batches=1, page_lock=page_lock))
        for nth, buffers in ((1, 1), (2, 2), (5, 3))
    ]
    for step in (step for way, step in _PLACES if way == page_lock):
        raised: Counter[object] = Counter()
        for (nth, feed), (when, error) in itertools.product(feeds, ways):
            feed.go_to(device := PlayedDevice(patience=1, locks=step != "host_memory"))
            device.at = trouble = _Trouble(f"{when} {step}", nth, error, lasting=False)
            _assert_labels_though_raising(feed, 10)
            feed.delivery.close()
            assert device.unlocked, (when, step)
            assert _wrong(device) == [], (when, step)
            raised[when, error] += trouble.raised
        assert all(raised[way] for way in ways), step


@pytest.mark.parametrize(("page_lock", "step"), _PLACES)
def test_a_device_that_has_broken_says_so_each_time_and_close_gives_everything_back(
    feeding: Any, page_lock: str, step: str
) -> None:
    device = PlayedDevice(patience=10**9, locks=step != "host_memory")
    feed = feeding(device, device_prefetch=1, page_lock=page_lock)
    if step in ("send", "sent", "send_after", "used", "use_after"):
        feed.next()
    device.at = trouble = _Trouble(f"before {step}", 1, RuntimeError, lasting=True)
    while not trouble.raised:  # what was on the device already may still come
        with contextlib.suppress(RuntimeError):
            feed.next()
    for _ in range(3):
        with pytest.raises(RuntimeError, match=f"trouble before {step}"):
            feed.next()
    held = feed.pipeline
    if step == "send_after":
        with pytest.raises(RuntimeError, match="trouble before send_after"):
            feed.delivery.close()
    else:
        feed.delivery.close()
    assert device.unlocked
    assert all(copy.done for copy in device.copies)
    if step in ("send_after", "used"):  # without events nothing can be ordered
        device.judge = RaceDetector()
    device.at = lambda step: None
    for _ in range(8):  # no slot is kept: the pipeline goes on without the delivery
        held.release(held.take())
    for close in (feed.delivery.close, held.close, feed.delivery.close, held.close):
        close()


@pytest.mark.parametrize("page_lock", ["staging", "ring"])
def test_delivery_and_pipeline_close_in_any_order_and_twice(feeding: Any, page_lock: str) -> None:
    for order in sorted(set(itertools.permutations(("delivery", "pipeline") * 2))):
        feed = feeding(PlayedDevice(10**9), page_lock=page_lock)
        feed.next()
        for what in order:
            getattr(feed, what).close()
        assert feed.delivery.progress.state()["position"] == 4


@pytest.mark.parametrize("page_lock", ["staging", "ring"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_after_an_interrupt_at_any_step_close_leaves_nothing_that_is_still_read(
    feeding: Any, when: str, page_lock: str
) -> None:
    feed = feeding(PlayedDevice(0), page_lock=page_lock)
    for step, nth in itertools.product(_STEPS, (1, 3)):
        feed.go_to(device := PlayedDevice(patience=1))
        device.at = _Interrupt(f"{when} {step}", nth)
        with contextlib.suppress(KeyboardInterrupt):
            for _ in range(6):
                feed.next()
        feed.delivery.close()
        assert _wrong(device) == [], (step, nth)


@pytest.mark.parametrize("page_lock", ["staging", "ring"])
@pytest.mark.parametrize("trouble", [KeyboardInterrupt, RuntimeError])
def test_a_batch_that_is_passed_over_after_a_half_sending_keeps_its_memory_until_it_has_arrived(
    feeding: Any, trouble: type[BaseException], page_lock: str
) -> None:
    """The copy of the data had begun, and no event was recorded behind it."""
    feed = feeding(PlayedDevice(patience=10**9), device_prefetch=1, prefetch_batches=1, page_lock=page_lock)
    feed.device.at = _Trouble("before send", 2, trouble, lasting=False)
    with pytest.raises(trouble):
        feed.next()
    feed.delivery._take(feed.pipeline.peek(), ())  # as if its values did not fit
    for number in range(1, 7):
        np.testing.assert_array_equal(feed.next()[1], np.arange(4 * number, 4 * number + 4) % 20)


# ---- the judge: torch's race detector over the trace of the played device


def _sends_at_once(feed: Any) -> None:
    feed.device.send_after = lambda event: None


def _uses_at_once(feed: Any) -> None:
    feed.device.use_after = lambda event: [copy.arrive() for copy in event.copies]


def _records_once(feed: Any, step: str) -> None:
    for buffer in feed.delivery._buffers:
        getattr(feed.device, step)(buffer.used if step == "used" else buffer.done)
    setattr(feed.device, step, lambda event: None)


def _notes_use_before_the_work(feed: Any) -> None:
    _records_once(feed, "used")


def _notes_sent_before_the_copy(feed: Any) -> None:
    _records_once(feed, "sent")


def _never_waits_for_copies(feed: Any) -> None:
    feed.device.patience = 0
    feed.device.judge.host_waits = lambda event: None


def _frees_what_is_read(feed: Any) -> None:
    """The memory goes back to its own stream while the caller's still reads: the race of many a caching allocator."""
    close = feed.delivery.close

    def close_without_waiting() -> None:
        _sends_at_once(feed)
        close()

    feed.delivery.close = close_without_waiting


_MISTAKES = [
    (_sends_at_once, "staging", "the copy to the device on stream 1 does not wait for .* on stream 0"),
    (_uses_at_once, "staging", "aten.* on stream 0 does not wait for the copy to the device on stream 1"),
    (_notes_use_before_the_work, "staging", "the copy to the device on stream 1 does not wait for .* on stream 0"),
    (_notes_sent_before_the_copy, "staging", "aten.* on stream 0 does not wait for the copy to the device on stream 1"),
    (_never_waits_for_copies, "staging", "staging on stream -1 does not wait for the copy to the device on stream 1"),
    (_never_waits_for_copies, "ring", "a loader's write on stream -1 does not wait for the copy to the device on str"),
    (_frees_what_is_read, "staging", "the next owner's write on stream 1 does not wait for .* on stream 0"),
]
"""What is done wrong, with which page_lock, and what the judge says of it."""


@pytest.mark.parametrize(("mistake", "page_lock", "found"), _MISTAKES)
def test_the_judge_finds_each_mistake(feeding: Any, mistake: Callable[[Any], None], page_lock: str, found: str) -> None:
    feed = feeding(PlayedDevice(1), device_prefetch=1, epochs=1, page_lock=page_lock)
    mistake(feed)
    with contextlib.suppress(EndOfData):
        while True:
            feed.next()
    feed.delivery.close()
    races = feed.device.judge.races
    assert any(re.match(found, race) for race in races), races
    races.clear()
    feed.device.wrong.clear()


def test_the_callers_stream_may_be_another_one_each_time(feeding: Any) -> None:
    feed = feeding(PlayedDevice(1), device_prefetch=2)
    for number in range(12):
        feed.device.judge.stream = 10 + number % 3
        np.testing.assert_array_equal(feed.next()[1], np.arange(4 * number, 4 * number + 4) % 20)


def test_every_event_is_freed_while_its_device_is_the_current_one(feeding: Any) -> None:
    """torch goes back to the device that was current, and makes a context there."""
    feed = feeding(PlayedDevice(1), device_prefetch=3)
    for _ in range(5):
        feed.next()
    assert feed.device.freed == []
    feed.delivery.close()
    assert feed.device.freed == [True] * 6


# ---- what is asked of CUDA, without a device


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """CUDA's runtime, of which a test says what it answers."""
    made = SimpleNamespace(current=1)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: made.current)
    monkeypatch.setattr(torch.accelerator, "device_index", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.captures)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    return made


def test_cuda_is_the_device_that_is_current_when_the_delivery_is_made(runtime: SimpleNamespace) -> None:
    device = CudaDevice("cuda")
    runtime.current = 0
    assert str(device.device) == "cuda:1"
    assert str(CudaDevice("cuda:3").device) == "cuda:3"


def test_staging_memory_is_the_hosts_though_torch_has_another_default(
    runtime: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda nbytes, pin_memory, **given: empty(nbytes, **given))
    with torch.device("meta"):
        assert CudaDevice("cuda").host_memory(8).nbytes == 8


def test_torch_does_not_know_staging_memory_by_its_address(
    runtime: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it records an event when the memory is freed, and ends the process if a kernel of the user's has failed."""
    whole = torch.empty(1 << 10, dtype=torch.uint8)
    monkeypatch.setattr(torch, "empty", lambda nbytes, **_: whole[:nbytes])
    memory = CudaDevice("cuda").host_memory(8)
    assert memory.nbytes == 8
    assert memory.ctypes.data > whole.data_ptr()


def test_a_refused_registration_is_told_in_cudas_own_words(runtime: SimpleNamespace) -> None:
    runtime.cudaHostRegister = lambda *_: 2
    runtime.cudaGetErrorString = {2: "out of memory"}.__getitem__
    with pytest.warns(RuntimeWarning, match=r"the ring's 16 bytes \(out of memory\): batches go through a page-locked"):
        assert not CudaDevice("cuda:0").lock(np.zeros(16, np.uint8))


def test_a_wait_looks_until_the_event_is_done(runtime: SimpleNamespace) -> None:
    looks, steps = iter([False, False, True]), []
    event: Any = SimpleNamespace(query=lambda: next(looks), synchronize=lambda: steps.append("synchronize"))
    CudaDevice("cuda").wait_for(event)
    assert list(looks) == []
    assert steps == ["synchronize"]


def test_a_capturing_stream_is_told_what_to_do(runtime: SimpleNamespace) -> None:
    runtime.captures = False
    CudaDevice("cuda").refuse_capture()
    runtime.captures = True
    with pytest.raises(RuntimeError, match="the current stream of cuda:1 captures a CUDA graph"):
        CudaDevice("cuda").refuse_capture()


# ---- on a real device


@pytest.mark.cuda
@pytest.mark.parametrize("buffers", [1, 3])
def test_cuda_gets_every_batch_while_the_users_stream_still_computes(feeding: Any, buffers: int) -> None:
    device = f"cuda:{torch.cuda.device_count() - 1}"
    feed = feeding(CudaDevice(device), device_prefetch=buffers, transform={"scale": 0.5, "mean_value": [1, 2, 3]})
    mean = np.array([1, 2, 3], np.float32)[:, None, None]
    kept = []
    with torch.Stream(device):
        for _ in range(15):
            for target, shape in zip(feed.targets, feed.delivery.next_shapes(), strict=True):
                target.reshape(*shape)
            feed.delivery.deliver(feed.targets)
            torch.cuda._sleep(5_000_000)
            kept.append([target.data.clone() for target in feed.targets])
        torch.accelerator.synchronize(device)
    for number, (data, label) in enumerate(kept):
        wanted = np.arange(4 * number, 4 * number + 4) % 20
        np.testing.assert_array_equal(label.cpu().numpy(), wanted)
        np.testing.assert_array_equal(data.cpu().numpy(), (images()[wanted] - mean) * np.float32(0.5))


@pytest.mark.cuda
def test_cuda_subtracts_the_part_of_the_mean_under_each_crop(feeding: Any, tmp_path: Path) -> None:
    _assert_the_labels_are_left(feeding(CudaDevice("cuda:0"), transform=_write_mean_and_images(tmp_path)))


@pytest.mark.cuda
def test_the_ring_is_page_locked_until_close(feeding: Any) -> None:
    feed = feeding(CudaDevice("cuda:0"))
    feed.next()
    rows = torch.from_numpy(feed.pipeline.peek().tops["data"])
    assert rows.is_pinned()
    feed.delivery.close()
    assert not rows.is_pinned()


@pytest.mark.cuda
def test_memory_that_cannot_be_locked_is_said_and_leaves_no_error_behind() -> None:
    device = CudaDevice("cuda:0")
    memory = np.zeros(1 << 20, np.uint8)
    assert device.lock(memory)
    with pytest.warns(RuntimeWarning, match="refused to page-lock"):
        assert not CudaDevice("cuda:0").lock(memory)
    assert float(torch.ones(3, device="cuda:0").sum()) == 3
    device.unlock()


_ON_THE_SECOND = """
import numpy as np, torch
from blobfeed.readers.delivery.cuda_device import CudaDevice

device = CudaDevice("cuda:1")
memory = np.zeros(1 << 20, np.uint8)
assert device.lock(memory)
device.send(memory, device.memory(memory.nbytes))
event = device.event()
device.used(event)
device.send_after(event)
device.sent(event)
device.use_after(event)
device.wait_for(event)
device.host_memory(8)
device.unlock()
with device.current():
    del event
print(torch._C._cuda_hasPrimaryContext(0), torch._C._cuda_hasPrimaryContext(1))
"""


@pytest.mark.cuda
def test_no_context_is_made_on_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    # Without torch's race detector, which asks the current device for its stream.
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_CUDA_SANITIZER"}
    command = [sys.executable, "-c", _ON_THE_SECOND]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False", "True"]
