"""Batches on their way to a device: on a device that is played, whose copies take as long as they like, and on CUDA."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.readers.delivery import make_tops
from blobfeed.workers.api import Hooks
from blobfeed.workers.loading import Conversion

from blobfeed import EndOfData, InexactValueError, ParameterError
from tests.support.standin_files import images, narrowed, write_hdf5

torch = pytest.importorskip("torch")

from blobfeed.readers.delivery.cuda_convert import DeviceConversion  # noqa: E402
from blobfeed.readers.delivery.cuda_device import CudaDevice  # noqa: E402

from tests.support.played_device import PlayedDevice  # noqa: E402

from .feeding import Target, assert_the_labels_are_left, feeding, write_mean_and_images  # noqa: E402

__all__ = ["feeding"]


@pytest.mark.parametrize("buffers", [1, 3])
def test_every_batch_arrives_once_and_whole_however_long_copies_take(feeding: Any, buffers: int) -> None:
    transform = {"scale": 0.5, "mean_value": [1, 2, 3]}
    device = PlayedDevice(0)
    feed = feeding(device, device_prefetch=buffers, prefetch_batches=1, transform=transform)
    mean = np.array([1, 2, 3], np.float32)[:, None, None]
    for patience in (0, 1000):
        if patience:
            feed.delivery.close()
            feed.go_to(device := PlayedDevice(patience))
        for number in range(feed.first, feed.first + 12):
            wanted = np.arange(4 * number, 4 * number + 4) % 20
            data, label = feed.next()
            np.testing.assert_array_equal(label, wanted)
            np.testing.assert_array_equal(data, (images()[wanted] - mean) * np.float32(0.5))
        assert device.judge.kernels > 12 * 4  # copies of data and labels, and what is computed of them


def test_a_stream_that_captures_a_graph_is_refused_and_no_batch_is_lost(feeding: Any) -> None:
    device = PlayedDevice(0)
    feed = feeding(device)
    feed.next()
    device.captures = True
    for _ in range(2):
        with pytest.raises(RuntimeError):
            feed.next()
    device.captures = False
    np.testing.assert_array_equal(feed.next()[1], np.arange(4, 8))


def test_a_reader_that_began_in_inference_mode_goes_on_outside_of_it(feeding: Any) -> None:
    with torch.inference_mode():
        feed = feeding(PlayedDevice(1), transform={"scale": [0.5, 1, 2], "mean_value": 1})
        feed.next()
    np.testing.assert_array_equal(feed.next()[1], np.arange(4, 8))
    with torch.inference_mode():
        np.testing.assert_array_equal(feed.next()[1], np.arange(8, 12))
    np.testing.assert_array_equal(feed.next()[1], np.arange(12, 16))


def test_what_travels_lies_in_page_locked_memory(feeding: Any, tmp_path: Path) -> None:
    """Crops too: a copy from other memory makes the trainer wait for the device."""
    device = PlayedDevice(0)
    feed = feeding(device, transform=write_mean_and_images(tmp_path))
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
    assert feed.released == list(range(len(device.copies) // 2))  # data and labels: slots are free
    feed.next()
    assert ahead.done
    np.testing.assert_array_equal(feed.targets[1].data.numpy(), ahead.as_sent)


def test_a_batch_that_is_not_ready_is_not_waited_for(feeding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = feeding(device := PlayedDevice(0), device_prefetch=1)
    monkeypatch.setattr(feed.pipeline, "is_ready", lambda: False)
    feed.next()
    assert len(device.copies) == 2  # data and labels of the batch that was asked for


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


def test_an_exception_of_a_signals_handler_ends_the_step_and_its_batch_comes_again(
    feeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> bool:
        raise TimeoutError

    feed = feeding(PlayedDevice(0), device_prefetch=1)
    feed.next()
    with monkeypatch.context() as patch:
        patch.setattr(feed.pipeline, "is_ready", interrupted)
        with pytest.raises(TimeoutError):
            feed.next()
    np.testing.assert_array_equal(feed.next()[1], np.arange(4, 8))


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
    with pytest.raises(InexactValueError, match="'data'"):
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
    there = feed.targets[0] = Target()
    there.data = torch.zeros(here.shape, dtype=torch.float16)
    feed.targets[1].reshape(4)
    feed.delivery.deliver(feed.targets)
    np.testing.assert_array_equal(there.data.numpy(), here)
    for put in (lambda: on_host.put(feed.pipeline.peek(), here), lambda: feed.delivery.deliver(feed.targets)):
        with pytest.raises(InexactValueError, match=r"\b200\b.*\b65504\b"):
            put()


def test_a_scaled_top_is_not_cut_to_whole_numbers_on_a_device(feeding: Any) -> None:
    feed = feeding(PlayedDevice(0), transform={"scale": 0.5})
    feed.targets[0] = Target()
    feed.targets[0].data = torch.zeros(4, 3, 4, 5, dtype=torch.int64)
    feed.targets[1].reshape(*feed.delivery.next_shapes()[1])
    with pytest.raises(ParameterError):
        feed.delivery.deliver(feed.targets)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("into", ["float16", "float32", "float64"])
def test_the_arithmetic_is_the_same_on_every_device(device: str, into: str) -> None:
    images = np.random.default_rng(0).random((2, 3, 4, 5)) * 255
    means = [None, *(np.full(shape, 104.00698793, np.float32) for shape in ((), (1, 1, 1), (1, 1, 5), (3, 4, 5)))]
    scales: tuple[Any, ...] = (1.0, 1 / 255, np.full((1, 1, 5), 1 / 3, np.float32))
    for stored, mean, scale in itertools.product(("uint8", "int32", "float16", "float64"), means, scales):
        rows = images.astype(stored)
        conversion = Conversion(scale, mean)
        here = np.zeros(rows.shape, into)
        conversion.put(rows, here)
        there = torch.zeros(rows.shape, dtype=getattr(torch, into), device=device)
        on = PlayedDevice(0) if device == "cpu" else CudaDevice(device)
        DeviceConversion(conversion, on.constant).put(torch.from_numpy(rows).to(device), there, None)
        assert there.cpu().numpy().tobytes() == here.tobytes(), (stored, mean, scale)


def test_blobs_of_another_shape_are_refused(feeding: Any) -> None:
    feed = feeding(PlayedDevice(0))
    with pytest.raises(ValueError, match=r"\(0,\).*\(4, 3, 4, 5\)"):
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


def test_each_row_loses_the_part_of_the_mean_under_its_crop(feeding: Any, tmp_path: Path) -> None:
    transform = write_mean_and_images(tmp_path)
    feed = feeding(PlayedDevice(0), transform=transform)
    assert_the_labels_are_left(feed)
    feed.delivery.close()
    feed.go_to(PlayedDevice(1000))
    assert_the_labels_are_left(feed)


# ---- the judge: torch's race detector over the trace of the played device


def _sends_at_once(feed: Any) -> None:
    feed.device.send_after = lambda event: None


def _uses_at_once(feed: Any) -> None:
    feed.device.use_after = lambda event: [copy.arrive() for copy in event.copies]


def _records_once(feed: Any, step: str) -> None:
    for event in feed.device.events:
        getattr(feed.device, step)(event)
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
    feed.device.wait = lambda: None


_MISTAKES = [
    (_sends_at_once, "the copy to the device on stream 1 does not wait for .* on stream 0"),
    (_uses_at_once, "aten.* on stream 0 does not wait for the copy to the device on stream 1"),
    (_notes_use_before_the_work, "the copy to the device on stream 1 does not wait for .* on stream 0"),
    (_notes_sent_before_the_copy, "aten.* on stream 0 does not wait for the copy to the device on stream 1"),
    (_never_waits_for_copies, "staging on stream -1 does not wait for the copy to the device on stream 1"),
    (_frees_what_is_read, "the next owner's write on stream 1 does not wait for .* on stream 0"),
]
"""A mistake, and the words of the judge about it."""


@pytest.mark.parametrize(("mistake", "found"), _MISTAKES)
def test_the_judge_finds_each_mistake(feeding: Any, mistake: Callable[[Any], None], found: str) -> None:
    feed = feeding(PlayedDevice(1), device_prefetch=1, epochs=1)
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
