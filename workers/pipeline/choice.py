"""`num_loaders: auto`: when does the trainer's process make batches, and when do loaders? Pure.

If samples are decoded, loaders are better, but they take a moment to start: the trainer makes the first batches
(HeadStart).

If rows are only copied, that is to be seen (LocalOrLoaders). It begins in the trainer's process: the first batch is
there at once, and in short runs no process is ever started. When the trainer has waited for data as long as it takes to
start processes, they are started, so a run never loses more than twice what the better way would have cost. But first
three windows of its own reading are measured: at the beginning it is slow, since each page of the file's map is touched
for the first time. If the loaders then bring fewer batches than the trainer itself did, they are ended. After that the
trainer's own reading goes on unless it gets slower than the loaders were, as it may when the data no longer lie in
memory.
"""

from __future__ import annotations

import enum
import math
from collections import deque

import numpy as np

_START_S = 0.3
"""What the start of processes takes."""

_WINDOW_S = 0.25
_NOTICEABLE = 0.03
"""Part of the time that the trainer may wait and still count as not waiting."""

_SETTLING_S = 1.0
"""Until the loaders are as many as they shall be, and what lay ready at first is used up."""

_COMPARED = 3
"""Windows of each way whose medians are compared. The best of all windows was noise: beside training steps of 10 ms the
two ways differ by a few per cent of the rate, and that is twice the time that the trainer waits."""

_MUCH_SLOWER = 0.7
_SLOW_WINDOWS = 2


class Choice(enum.Enum):
    """What to do before the next batch."""

    STAY = "stay"
    START = "start processes that go on `ahead` batches from here"
    CHANGE = "change over to the other way"


class HeadStart:
    """The trainer makes the first `ahead` batches while loaders start, and the loaders all others."""

    is_local = True

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.change_at: int | None = None

    def observe(self, batches: int, _waited_s: float, _now: float) -> Choice:
        """See LocalOrLoaders."""
        if not self.is_local:
            return Choice.STAY
        if self.change_at is None:
            return Choice.START
        return Choice.CHANGE if batches >= self.change_at else Choice.STAY

    def changed(self, _batches: int, _waited_s: float, _now: float) -> None:
        self.is_local = False


class LocalOrLoaders:
    """`is_local`: how batches are read now. `ahead`: batches that the trainer still makes while processes start."""

    def __init__(self, now: float) -> None:
        self.is_local = True
        self.ahead = 0
        self.settled = False
        """Nothing is to be decided any more."""
        self.change_at: int | None = None
        """After how many batches it is changed over; whoever starts loaders may set it to the end of a group."""
        self._local_rates: deque[float] = deque(maxlen=_COMPARED)
        self._loaders_rates: list[float] = []
        self._slow_windows = 0
        self._phase = now
        self._window = 0, 0.0, now
        """Since when the rate is measured: batches, seconds waited, and the time."""

    def observe(self, batches: int, waited_s: float, now: float) -> Choice:
        """So many batches have been taken, and the trainer has waited so long for data, both in all."""
        if self.settled:
            return Choice.STAY
        if self.change_at is not None:
            return Choice.CHANGE if batches >= self.change_at else Choice.STAY
        if now - self._window[2] < _WINDOW_S:
            return Choice.STAY
        before, waited_before, begun = self._window
        self._window = batches, waited_s, now
        rate, waits = (batches - before) / (now - begun), waited_s - waited_before > _NOTICEABLE * (now - begun)
        return (
            self._look_at_local(rate, waited_s, waits) if self.is_local else self._look_at_loaders(rate, now, batches)
        )

    def _look_at_local(self, rate: float, waited_s: float, waits: bool) -> Choice:
        self._local_rates.append(rate)
        if self._loaders_rates:
            is_slow = rate < _MUCH_SLOWER * np.median(self._loaders_rates)
            self._slow_windows = self._slow_windows + 1 if is_slow else 0
            is_worth_it = self._slow_windows >= _SLOW_WINDOWS
        else:
            is_worth_it = waits and waited_s > _START_S and len(self._local_rates) == _COMPARED
        if not is_worth_it:
            return Choice.STAY
        self.ahead = math.ceil(_START_S * rate)
        self.change_at = self._window[0] + self.ahead
        return Choice.START

    def _look_at_loaders(self, rate: float, now: float, batches: int) -> Choice:
        if now - self._phase < _SETTLING_S:
            return Choice.STAY
        self._loaders_rates.append(rate)
        if len(self._loaders_rates) < _COMPARED:
            return Choice.STAY
        if np.median(self._loaders_rates) >= np.median(self._local_rates):
            self.settled = True
            return Choice.STAY
        self.change_at = batches
        return Choice.CHANGE

    def changed(self, batches: int, waited_s: float, now: float) -> None:
        """It has been changed over."""
        self.change_at = None
        self.is_local = not self.is_local
        self.settled = not self.is_local and self._slow_windows >= _SLOW_WINDOWS
        self._phase = now
        self._window = batches, waited_s, now
