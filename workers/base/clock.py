"""A clock for deadlines of other processes, which stands still while a scheduler suspends the whole job."""

from __future__ import annotations

import math
import time

LONGEST_WAIT_S = 0.5
"""Between two looks at the clock a wait may take so long; a look every second would be taken for a suspension."""

_LONGEST_STEP_S = 1.0


class AwakeClock:
    """Monotonic seconds without those in which this process was suspended: nothing could be done in them.

    It advances at most a second a look. Over a longer gap between two looks it does not advance at all, for a task
    may have been about to end when the job was suspended. Between two looks it stands still: if the job is suspended
    behind a look, a task that begins then has its whole time.
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
        """Let it advance; returns `now`."""
        before, self._looked_at = self._looked_at, time.monotonic()
        if (gap_s := self._looked_at - before) > _LONGEST_STEP_S:
            self._lost_s += gap_s
            self._woke_at = self._looked_at
        return self.now

    def time_of(self, moment: float) -> float:
        """This clock's time of a `moment` by time.monotonic; of one before the last suspension, that of its end."""
        return max(moment, self._woke_at) - self._lost_s
