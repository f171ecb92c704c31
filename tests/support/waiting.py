"""Waiting for conditions: never for a time, always with a deadline.

No test depends on how fast the machine is, or what else it has to do. How long something takes is a figure of
`make faults` or `make bench`; a test only demands that it ends, within a deadline that a busy machine keeps too.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 60.0
_POLL_S = 0.005


def wait_until(holds: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Return as soon as `holds()` is true; fail with `what` at the deadline."""
    left = wait_until_none(lambda: [] if holds() else [what], deadline_s)
    assert not left, f"after {deadline_s:g} s still not: {what}"


def wait_until_none(left: Callable[[], list[str]], deadline_s: float) -> list[str]:
    """Return what `left` still finds at the deadline, or an empty list as soon as it finds nothing."""
    end = time.monotonic() + deadline_s
    begun = time.monotonic()
    while (found := left()) and begun < end:
        # A look may be one at all processes of the machine, and what is waited for needs the core.
        time.sleep(max(_POLL_S, min(time.monotonic() - begun, 10 * _POLL_S)))
        begun = time.monotonic()
    return found


def readable(descriptor: int, deadline_s: float = DEADLINE_S) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(deadline_s * 1000))


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has, whoever has to wait for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
