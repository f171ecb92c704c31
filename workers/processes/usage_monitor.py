"""The assembler's periodic measurements of each loader, for the status board and metrics."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from ...watching import MetricsFile, openmetrics
from ..api import Parameters
from ..plan import usable_cores
from ..transport import Activity, LoaderStatus, StatusBoard, read_board

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
    """Measures about once a second: the assembler calls `turn` when `next_turn` has passed."""

    def __init__(self, board: StatusBoard, parameters: Parameters) -> None:
        self.next_turn = 0.0
        self._board = board
        self._rank = parameters.own_rank
        self._file = MetricsFile(Path(parameters.metrics)) if parameters.metrics else None
        self._lines = [board.line(number) for number in range(len(board.lines))]
        self._before: dict[int, _Before] = {}

    def turn(self, now: float) -> None:
        for number, status in enumerate(self._lines):
            self._measure(number, status)
        if self._file is not None:
            self._write(self._file)
        self.next_turn = now + max(_EVERY_S, _SHARE * (time.monotonic() - now))

    def end(self) -> None:
        """Write the metrics file a last time, so that it has the final counts."""
        if self._file is not None:
            self._write(self._file)

    def _write(self, file: MetricsFile) -> None:
        file.write(openmetrics(read_board(self._board), usable_cores(), self._rank))

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
