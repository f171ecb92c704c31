"""Ctrl-C at a chosen line of a call of the trainer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import blobfeed
from blobfeed import BlobfeedError


def quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except (KeyboardInterrupt, BlobfeedError):
        return


class Tracer:
    """Counts the lines that are run, but those of this folder that stand for C; interrupts before line `stop_at`.

    `points`: the first line with each new `fingerprint`: what an interrupt before any other would leave is the same.
    """

    _OURS = ("send",)
    _MODEL = str(Path(__file__).parent)
    _TRACED = (str(Path(blobfeed.__file__).parent), str(Path(__file__).parent.parent))
    """And no other code: the garbage collector may call some at any moment."""

    def __init__(self, fingerprint: Callable[[], object], stop_at: int = -1) -> None:
        self.points: list[int] = []
        self._fingerprint = fingerprint
        self._stop_at = stop_at
        self._lines = 0
        self._last = fingerprint()

    def __enter__(self) -> Tracer:
        self._before = sys.gettrace()
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter_frame(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self._TRACED):
            return None
        stands_for_c = code.co_filename.startswith(self._MODEL) and code.co_name not in self._OURS
        return None if stands_for_c else self._line

    def _line(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._lines += 1
            if self._lines == self._stop_at:
                raise KeyboardInterrupt
            if self._stop_at < 0 and (now := self._fingerprint()) != self._last:
                self._last = now
                self.points.append(self._lines)
        return self._line
