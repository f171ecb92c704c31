"""The progress of a long scan, on one line of the terminal, if there is one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TextIO

from ...workers.base import Closing, moving

_FIRST_S = 1.0
_STEP_S = 0.5
_CLEAR_LINE = "\r\033[K"


class Progress(Closing):
    """Says nothing of what takes less than a second, and leaves nothing behind on the screen."""

    def __init__(self, terminal: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal or sys.stderr
        self._clock = clock
        self._begun = clock()
        self._due = self._begun + _FIRST_S if self._terminal is not None and self._terminal.isatty() else math.inf
        self._said = False

    def tell(self, path: str, samples: int) -> None:
        """`samples` have been found by now, the last ones in the file at `path`."""
        moving(f"looking for samples in {path}")
        now = self._clock()
        if now < self._due:
            return
        self._due, self._said = now + _STEP_S, True
        rate = samples / (now - self._begun)
        self._terminal.write(f"{_CLEAR_LINE}looking for samples in {path}: {samples:,} found, {rate:,.0f} a second")
        self._terminal.flush()

    def close(self) -> None:
        if self._said:
            self._terminal.write(_CLEAR_LINE)
            self._terminal.flush()
