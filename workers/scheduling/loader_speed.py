"""How many tasks a remote loader gets at a time, by measured speeds. Pure.

A batch waits for its last task. So a slow node, busy with other people's work perhaps, gets fewer tasks; it gets none
if the others would have done all that there is to do before it had done one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_ASSIGNED_REMOTE = 4
"""A task's way to another host and its rows' way back take milliseconds: meanwhile a remote loader works on others."""

_REST = 20
"""A remote loader that is too slow to be of use gets a task again after so many times what its last one took."""

_MEMORY = 0.7
"""Weight of the past in the moving mean of the time per row: a dozen tasks make a change of speed known."""


def moving_mean(before: float, now: float) -> float:
    return _MEMORY * before + (1 - _MEMORY) * now


@dataclass(slots=True)
class LoaderSpeed:
    """Of one loader; one of this host is never observed, and counts as no slower than the fastest."""

    seconds_per_row: float = 0.0
    """A moving mean; 0 until it has done a task."""
    slowness: int = 1
    """How many times longer than the fastest one it takes for a row."""
    rests: bool = False
    rests_until: float = 0.0
    """If it is far slower than the others: when it is tried again."""

    @property
    def most_tasks(self) -> int:
        """Tasks that a remote loader has at most: one until its speed is known."""
        return max(1, MAX_ASSIGNED_REMOTE // self.slowness) if self.seconds_per_row else 1

    def observe(self, rows: int, seconds: float, now: float) -> None:
        """A task of `rows` rows took `seconds` until `now`; one of no rows postprocesses a whole batch."""
        self.rests_until = now + _REST * seconds
        if rows:
            self.seconds_per_row = moving_mean(self.seconds_per_row or seconds / rows, seconds / rows)


def compare_speeds(speeds: Sequence[LoaderSpeed], open_tasks: int, now: float) -> None:
    """Set how slow each one is and whether it rests; `open_tasks`: those given out, and those still to be given."""
    known = [speed for speed in speeds if speed.seconds_per_row]
    if not known:
        return
    fastest = min(speed.seconds_per_row for speed in known)
    for speed in known:
        speed.slowness = max(1, round(speed.seconds_per_row / max(1e-9, fastest)))
    rows_meanwhile = sum(1 / speed.slowness for speed in speeds)  # made by all while the fastest makes one
    for speed in known:
        others_are_done_before = speed.slowness * rows_meanwhile > open_tasks
        speed.rests = speed.slowness > 1 and now < speed.rests_until and others_are_done_before
