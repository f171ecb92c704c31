"""A delivery to a device goes on after whatever raises at whatever step, and gives everything back."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections import Counter
from typing import Any

import numpy as np
import pytest

from blobfeed import InexactValueError

torch = pytest.importorskip("torch")


from tests.support.played_device import PlayedDevice  # noqa: E402
from tests.support.race_detector import RaceDetector  # noqa: E402

from .feeding import feeding, wrong_on  # noqa: E402

__all__ = ["feeding"]


_STEPS = ("memory", "host_memory", "send", "sent", "send_after", "used", "use_after")


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


def test_after_an_exception_at_any_step_the_next_call_goes_on_with_the_same_batch(feeding: Any) -> None:
    ways = list(itertools.product(("before", "after"), (RuntimeError, KeyboardInterrupt)))
    feeds = [
        (nth, feeding(PlayedDevice(0), device_prefetch=buffers, num_loaders=0))
        for nth, buffers in ((1, 1), (2, 2), (5, 3))
    ]
    for step in _STEPS:
        raised: Counter[object] = Counter()
        for (nth, feed), (when, error) in itertools.product(feeds, ways):
            feed.go_to(device := PlayedDevice(patience=1))
            device.at = trouble = _Trouble(f"{when} {step}", nth, error, lasting=False)
            _assert_labels_though_raising(feed, nth + 3)
            feed.delivery.close()
            assert all(copy.done for copy in device.copies), (when, step)
            assert wrong_on(device) == [], (when, step)
            raised[when, error] += trouble.raised
        assert all(raised[way] for way in ways), step


def test_a_device_that_has_broken_says_so_each_time_and_close_gives_everything_back(feeding: Any) -> None:
    feed = feeding(PlayedDevice(0), device_prefetch=1, num_loaders=0)
    for step in _STEPS:
        feed.delivery.close()
        feed.go_to(device := PlayedDevice(patience=10**9))
        if step in ("send", "sent", "send_after", "used", "use_after"):
            feed.next()
        device.at = trouble = _Trouble(f"before {step}", 1, RuntimeError, lasting=True)
        while not trouble.raised:  # what was on the device already may still come
            with contextlib.suppress(RuntimeError):
                feed.next()
        for _ in range(3):
            with pytest.raises(RuntimeError, match=f"before {step}"):
                feed.next()
        with contextlib.suppress(RuntimeError) if step == "send_after" else contextlib.nullcontext():
            feed.delivery.close()
        assert all(copy.done for copy in device.copies), step
        if step in ("send_after", "used"):  # without events nothing can be ordered
            device.judge = RaceDetector()
        device.at = lambda step: None
        for _ in range(8):  # no slot is kept: the pipeline goes on without the delivery
            feed.pipeline.release(feed.pipeline.take())
        feed.delivery.close()


def test_delivery_and_pipeline_close_in_any_order_and_twice(feeding: Any) -> None:
    for order in (("pipeline", "delivery"), ("delivery", "pipeline")):
        feed = feeding(PlayedDevice(10**9))
        feed.next()
        for what in order * 2:
            getattr(feed, what).close()
        assert feed.delivery.progress.state()["position"] == 4


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_an_interrupt_at_any_step_close_leaves_nothing_that_is_still_read(feeding: Any, when: str) -> None:
    feed = feeding(PlayedDevice(0))
    for step, nth in itertools.product(_STEPS, (1, 3)):
        feed.go_to(device := PlayedDevice(patience=1))
        device.at = _Interrupt(f"{when} {step}", nth)
        with contextlib.suppress(KeyboardInterrupt):
            for _ in range(6):
                feed.next()
        feed.delivery.close()
        assert wrong_on(device) == [], (step, nth)


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, RuntimeError])
def test_a_batch_that_is_passed_over_after_a_half_sending_keeps_its_memory_until_it_has_arrived(
    feeding: Any, trouble: type[BaseException]
) -> None:
    """The copy of the data had begun, and no event was recorded behind it."""
    feed = feeding(PlayedDevice(patience=10**9), device_prefetch=1, prefetch_batches=1)
    feed.device.at = _Trouble("before send", 2, trouble, lasting=False)
    with pytest.raises(trouble):
        feed.next()
    feed.targets[0].data = torch.zeros(4, 3, 4, 5, dtype=torch.int8)  # in which its values do not fit
    feed.targets[1].reshape(4)
    with pytest.raises(InexactValueError):
        feed.delivery.deliver(feed.targets)
    for number in range(1, 7):
        np.testing.assert_array_equal(feed.next()[1], np.arange(4 * number, 4 * number + 4) % 20)
