"""The assembler's periodic measurements of each loader, for the status board and metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..transport import Activity, LoaderStatus, StatusBoard

_PAGE = os.sysconf("SC_PAGE_SIZE")
_EVERY_S = 1.0
_SHARE = 100
"""The measurements may take at most 1/100 of the assembler's time."""


class Usage(NamedTuple):
    """The usage of a process: `cpu_ns` on a core, `delay_ns` runnable without one, `resident` bytes of memory."""

    cpu_ns: int
    delay_ns: int
    resident: int


class _Before(NamedTuple):
    pid: int
    busy_ns: int
    usage: Usage


class UsageMonitor:
    """Measures about once a second: the assembler calls `turn` when `next_turn` has passed.

    `metrics`: writes those of the board; None if none are wanted.
    """

    def __init__(self, board: StatusBoard, metrics: Callable[[StatusBoard], None] | None) -> None:
        self.next_turn = 0.0
        self._board = board
        self._metrics = metrics
        self._lines = [board.line(number) for number in range(len(board.lines))]
        self._before: dict[int, _Before] = {}

    def turn(self, now: float) -> None:
        for number, status in enumerate(self._lines):
            self._measure(number, status)
        self._write()
        self.next_turn = now + max(_EVERY_S, _SHARE * (time.monotonic() - now))

    def end(self) -> None:
        """Write the metrics file a last time, so that it has the final counts."""
        self._write()

    def _write(self) -> None:
        if self._metrics is not None:
            self._metrics(self._board)

    def _measure(self, number: int, status: LoaderStatus) -> None:
        state = self._board.lines[number].state
        if state.activity is Activity.ABSENT or status.is_remote or (usage := usage_of(state.pid)) is None:
            self._before.pop(number, None)
            return
        now = _Before(state.pid, status.busy_ns(time.monotonic_ns()), usage)
        before = self._before.get(number, now)
        if before.pid != now.pid:
            before = now  # the start of a process is not measured
        self._before[number] = now
        status.note_usage(
            now.busy_ns - before.busy_ns,
            usage.cpu_ns - before.usage.cpu_ns,
            usage.delay_ns - before.usage.delay_ns,
            usage.resident,
        )


def usage_of(pid: int) -> Usage | None:
    """Read the kernel's figures of a process; None if the process is gone, or if this kernel has none."""
    process = Path(f"/proc/{pid}")
    try:
        cpu_ns, delay_ns, _ = map(int, (process / "schedstat").read_text().split())
        return Usage(cpu_ns, delay_ns, int((process / "statm").read_text().split()[1]) * _PAGE)
    except (OSError, ValueError, IndexError):
        return None
