"""What the assembler does about once a second beside its work: what each loader's process uses, for the status board;
metrics, for who asked for them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from ..transport.status_board import Activity, StatusBoard

_EVERY_S = 1.0
_SHARE = 100
"""It may take one part of so many of the assembler's time."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Usage(NamedTuple):
    pid: int
    busy_ns: int
    cpu_ns: int
    delay_ns: int


class Upkeep:
    """`turn` is called whenever the assembler has done something."""

    def __init__(self, board: StatusBoard) -> None:
        self.next_turn = 0.0
        self._lines = [board.line(number) for number in range(board.loaders)]
        self._before: dict[int, _Usage] = {}

    def turn(self, now: float) -> None:
        for number, status in enumerate(self._lines):
            state = status.read()
            if state.activity is Activity.ABSENT or not state.pid:
                self._before.pop(number, None)
                continue
            busy_ns = status.busy_ns(time.monotonic_ns())
            if (found := _read_usage(state.pid, busy_ns)) is None:
                continue
            usage, resident = found
            before = self._before.get(number)
            if before is None or before.pid != usage.pid:
                before = usage  # what it took to start is not measured
            self._before[number] = usage
            status.note_usage(
                usage.busy_ns - before.busy_ns, usage.cpu_ns - before.cpu_ns, usage.delay_ns - before.delay_ns, resident
            )
        self.next_turn = now + max(_EVERY_S, _SHARE * (time.monotonic() - now))


def _read_usage(pid: int, busy_ns: int) -> tuple[_Usage, int] | None:
    """What the kernel says of a process, and its bytes of memory; None if it is gone, or this kernel does not say."""
    process = Path(f"/proc/{pid}")
    try:
        cpu_ns, delay_ns, _ = map(int, (process / "schedstat").read_text().split())
        resident = int((process / "statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None
    return _Usage(pid, busy_ns, cpu_ns, delay_ns), resident
