"""`num_loaders: auto`: the fewest loaders that keep the trainer from waiting, as long as the run lasts. Pure.

A window of time says how long the trainer waited, if slots lay ready behind it, and how many loaders were busy on
average: a loader is idle only while all slots are full, so the ring cannot hide a shortage.

    the trainer waits, or no slot is ready   more loaders are tried, as many as the figures ask for
    fewer loaders could do the work          the others end, after a calm time

A trial that does not increase the rate of rows is taken back: the cores may be taken by others. The next one comes
after a pause that doubles, and adds one loader. What a loader takes for a row says if the cores are shared: then fewer
are tried. It never settles: the step, the work and the machine change. The number of loaders does not affect the data.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_WINDOW_S = 0.2
_WINDOW_RELEASES = 8
_LONGEST_WINDOW_S = 1.0
"""The end of a window in which fewer releases have come."""

_NOTICEABLE = 0.03
"""The fraction of time that the trainer may wait and still count as not waiting."""

_WORTH_IT = 1.05
"""The minimum factor in the rate of rows for which more loaders are kept."""

_AS_GOOD = 0.98
"""The minimum factor for which fewer loaders are kept while the trainer waits."""

_BUSY = 0.8
"""The fraction of time that loaders may be busy after some have ended."""

_STEP_S = 0.025
"""The training step that the first number of loaders is meant for; heavier ones end some, lighter ones add some."""

_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 4.0
"""A trial that fails costs at most a part of 0.3 s; longer pauses would miss cores that become free."""

_LONGEST_CALM_S = 64.0
"""Loaders that are needed now and then stay in between."""

_OTHER_RATE = 1.25
"""The factor in the rate of rows, either way, from which on a trial that failed says nothing any more."""


def first_loaders(batch_s: float, most: int) -> int:
    """Return the number of loaders to begin with, for batches that take one loader `batch_s`."""
    return min(most, max(1, math.ceil(batch_s / _STEP_S)))


class Work(NamedTuple):
    """The work that loaders have done since the start of the run: their busy seconds together, and rows."""

    busy_s: float = 0.0
    rows: int = 0


class _Window(NamedTuple):
    end: float
    waited: float
    """The fraction of time that the trainer waited."""
    is_short: bool
    busy: float
    """The number of loaders that were busy, on average."""
    rate: float
    """Rows a second."""

    @property
    def needed(self) -> float:
        """The busy loaders that the trainer would need not to wait."""
        return self.busy / max(1e-3, 1 - self.waited)


class AutoScale:
    """Decides after windows of at least 8 releases and 0.2 s, or of a second; `wanted` is the number of loaders.

    A window lasts until there is a row for each loader: one may take seconds, and between two no loader seems busy.
    """

    def __init__(self, most: int, first: int = 1) -> None:
        """Begin with `first` loaders; there are never more than `most`."""
        self.wanted = first
        self._most = most
        self._begin(-math.inf, Work())
        self._trial: tuple[int, float] | None = None
        """The number of loaders before it, and their rate."""
        self._failed: tuple[float, float] | None = None
        """The end of the pause after a trial that failed, and the rate before it."""
        self._pause_s = _PAUSE_S
        self._row_s = math.inf
        """The least time that a loader took for a row, on average in a window."""
        self._short_at = math.inf
        self._calm_s = _PAUSE_S
        self._ended_some = False

    def observe(self, now: float, *, waited_s: float, ready: bool, loaders: int, work: Work) -> bool:
        """Record a release, for which the trainer waited `waited_s`; returns true if `wanted` has changed.

        `ready`: true if another one lies ready. `loaders`: those that can work now. `work`: all of it, until now.
        """
        self._releases += 1
        self._waited_s += waited_s
        elapsed = now - self._begun
        if self._begun == -math.inf:
            self._short_at = now
        if self._begun == -math.inf or loaders < self.wanted:  # one starts: this says nothing about so many
            self._begin(now, work)
            return False
        busy_s, rows = work.busy_s - self._work.busy_s, work.rows - self._work.rows
        is_long = self._releases >= _WINDOW_RELEASES or elapsed >= _LONGEST_WINDOW_S
        if elapsed < _WINDOW_S or not is_long or rows < self.wanted:
            return False
        waited = min(1.0, self._waited_s / elapsed)
        window = _Window(now, waited, waited > _NOTICEABLE or not ready, busy_s / elapsed, rows / elapsed)
        self._begin(now, work)
        before = self.wanted
        self._decide(window, busy_s / rows)
        return self.wanted != before

    def _begin(self, now: float, work: Work) -> None:
        self._begun, self._work, self._releases, self._waited_s = now, work, 0, 0.0

    def _decide(self, window: _Window, row_s: float) -> None:
        self._row_s = min(self._row_s, row_s)
        if self._trial is not None:
            (number, rate), self._trial = self._trial, None
            factor = _WORTH_IT if self.wanted > number else _AS_GOOD
            if window.is_short and window.rate < factor * rate:
                self._take_back(number, rate, window, row_s)
                return
            self._pause_s, self._failed = _PAUSE_S, None
        if not window.is_short:
            self._end_idle(window)
            return
        self._short_at = window.end
        if self._failed is None or self._is_over(*self._failed, window):
            self._try_another(window, row_s)

    def _take_back(self, number: int, rate: float, window: _Window, row_s: float) -> None:
        if self.wanted < number:
            self._row_s = row_s  # the work has become heavier, and the cores are not shared
        self.wanted = number
        self._failed = window.end + self._pause_s, rate
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def _is_over(self, until: float, rate: float, window: _Window) -> bool:
        return window.end >= until or not rate / _OTHER_RATE <= window.rate <= rate * _OTHER_RATE

    def _try_another(self, window: _Window, row_s: float) -> None:
        number = self.wanted
        if number * self._row_s < (number - 1) * row_s:  # they do the work of fewer
            self.wanted -= 1
        elif number < self._most:
            most = number + 1 if self._failed else 4 * number
            self.wanted = min(self._most, most, max(number + 1, math.ceil(window.needed)))
            self._calm_s = min(_LONGEST_CALM_S, self._calm_s * (2 if self._ended_some else 1))
            self._ended_some = False
        if self.wanted != number:
            self._trial = number, window.rate

    def _end_idle(self, window: _Window) -> None:
        """End loaders that the others could do without, once the trainer has not waited for a calm time."""
        enough = max(1, math.ceil(window.busy / _BUSY))
        if enough < self.wanted and window.end - self._short_at >= self._calm_s:
            self.wanted, self._ended_some, self._short_at = enough, True, window.end
