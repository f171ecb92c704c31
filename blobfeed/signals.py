"""What signals do to `blobfeed train`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .trainer.solving.progress import StopRequest

_STOPS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def asked_by_signals(sigint: str = "stop", sighup: str = "snapshot") -> Iterator[StopRequest]:
    """Within its context, signals ask to stop after the iteration, or to save a snapshot, or do nothing.

    A second Ctrl-C (or SIGTERM) after one that asked to stop raises KeyboardInterrupt.
    """
    asked = StopRequest()
    effects: dict[int, str] = {signal.SIGINT: sigint, signal.SIGHUP: sighup, signal.SIGTERM: "stop"}

    def note(number: int, frame: FrameType | None) -> None:
        if effects[number] == "stop":
            asked.requested = True
            for each in _STOPS:
                signal.signal(each, signal.default_int_handler)
            # Written last, so that a reader can rely on it. Not by print: the signal may have interrupted a print,
            # whose buffer cannot be entered twice.
            os.write(2, b"\nstopping after this iteration; press Ctrl-C again to stop at once\n")
        elif effects[number] == "snapshot":
            asked.snapshot_wanted = True

    before = {number: signal.signal(number, note) for number in effects}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
