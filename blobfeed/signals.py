"""What signals do to `blobfeed train`."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Self

from .trainer.solving.progress import StopRequest

_STOPS = (signal.SIGINT, signal.SIGTERM)


class SignalRequest(StopRequest):
    """Within its context, signals ask to stop after the iteration, or to save a snapshot, or do nothing.

    A second Ctrl-C (or SIGTERM) after one that asked to stop raises KeyboardInterrupt.
    """

    def __init__(self, sigint: str = "stop", sighup: str = "snapshot") -> None:
        self._snapshot_wanted = False
        self._effects: dict[int, str] = {signal.SIGINT: sigint, signal.SIGHUP: sighup, signal.SIGTERM: "stop"}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self._effects}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        effect = self._effects[number]
        if effect == "stop":
            self.requested = True
            for each in _STOPS:
                signal.signal(each, signal.default_int_handler)
            # Written last, so that a reader can rely on it. Not by print: the signal may have interrupted a print,
            # whose buffer cannot be entered twice.
            os.write(2, b"\nstopping after this iteration; press Ctrl-C again to stop at once\n")
        elif effect == "snapshot":
            self._snapshot_wanted = True

    def take_snapshot(self) -> bool:
        """Whether a snapshot was asked for since the last call."""
        wanted, self._snapshot_wanted = self._snapshot_wanted, False
        return wanted
