"""A clock for deadlines of other processes, which stands still while a scheduler suspends the whole job."""

from __future__ import annotations

import math
import time

LONGEST_WAIT_S = 0.5
"""The longest wait between two looks at the clock. A wait of a second or more would count as a suspension."""

_LONGEST_STEP_S = 1.0


class AwakeClock:
    """A monotonic clock in seconds that does not count the time in which this process was suspended.

    It advances at most one second per look. A longer gap between two looks counts as a suspension and adds nothing: a
    task may have been about to end when it began. Between two looks the clock stands still. So a task that starts just
    before a suspension still has its full time.
    """

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._lost_s = 0.0
        self._woke_at = -math.inf

    @property
    def now(self) -> float:
        """The time of the last look."""
        return self._looked_at - self._lost_s

    def look(self) -> float:
        """Advance the clock and return `now`."""
        before, self._looked_at = self._looked_at, time.monotonic()
        if (gap_s := self._looked_at - before) > _LONGEST_STEP_S:
            self._lost_s += gap_s
            self._woke_at = self._looked_at
        return self.now

    def time_of(self, moment: float) -> float:
        """Convert a `moment` of time.monotonic; one before the last suspension becomes the end of that suspension."""
        return max(moment, self._woke_at) - self._lost_s
