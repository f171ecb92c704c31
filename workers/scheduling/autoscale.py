"""`num_loaders: auto`: the smallest number of loaders that keeps the trainer from waiting. Pure.

It starts with one loader and adds one while the trainer still waits for a noticeable part of its time. A loader that
does not increase the rate of batches is removed: on few cores a second loader can even slow down the first one. The
number of loaders does not affect the data.
"""

from __future__ import annotations

_WINDOW_S = 0.25
_WINDOW_GROUPS = 8
_NOTICEABLE = 0.03
"""The fraction of time that the trainer may wait and still count as not waiting."""

_WORTH_IT = 1.05
"""The minimum factor in the rate of batches for which another loader is kept."""


class AutoScale:
    """Measures windows of at least 8 groups and a quarter of a second; `wanted` is the best number of loaders."""

    def __init__(self, most: int, now: float) -> None:
        self.wanted = 1
        self.settled = False
        self._most = most
        self._rate_before = 0.0
        self._skip_window = True  # in the first window the loaders were still starting
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._begun = now
        self._groups = 0
        self._waited_s = 0.0

    def observe(self, waited_s: float, now: float) -> bool:
        """Record a released group, for which the trainer waited `waited_s`; returns true after a decision."""
        self._groups += 1
        self._waited_s += waited_s
        elapsed = now - self._begun
        if self.settled or self._groups < _WINDOW_GROUPS or elapsed < _WINDOW_S:
            return False
        rate, waits = self._groups / elapsed, self._waited_s > _NOTICEABLE * elapsed
        self._begin(now)
        if self._skip_window:
            self._skip_window = False
            return False
        self._decide(rate, waits)
        return True

    def _decide(self, rate: float, waits: bool) -> None:
        if self.wanted > 1 and waits and rate < self._rate_before * _WORTH_IT:
            self.wanted -= 1
            self.settled = True
        elif not waits or self.wanted == self._most:
            self.settled = True
        else:
            self.wanted += 1
            self._rate_before = rate
            self._skip_window = True
