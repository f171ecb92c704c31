"""`num_loaders: auto`: when does the trainer's process make batches, and when do loaders? Pure.

If samples are decoded, loaders are better, but they take a moment to start: the trainer makes the first batches
(HeadStart).

If rows are only copied, that is to be seen (LocalOrLoaders). It begins in the trainer's process: the first batch is
there at once, and in short runs no process is ever started. When the trainer has waited for data as long as it takes to
start processes, they are started, so a run never loses more than twice what the better way would have cost. But first
three windows of its own reading are measured, and more while its pace still changes. If the loaders then bring fewer
batches than the trainer itself did, they are ended.

The way that was worse is tried again while the trainer waits: after 20 s, then after 40 and so on, since a neighbour on
the machine may have spoilt the first comparison; and at once if the way in use gets much slower than the other one was,
as the trainer's own reading does when the data no longer lie in memory.
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

_EVEN = 1.25
_PATIENCE_S = 3.0
"""If the trainer's newest window differs by more from the usual one, it is not judged yet: at first it touches the
pages of a map for the first time, and a second may go into compiling the conversion. But no more than so much waiting
is lost by that."""

_MUCH_SLOWER = 0.7
_SLOW_WINDOWS = 2

_HOPELESS = 0.5
"""If a trial's first window has less than this part of the other way's rate, the trial ends with it."""

_AGAIN_S = 20.0


class Choice(enum.Enum):
    """What to do before the next batch."""

    STAY = "stay"
    START = "start processes that go on `ahead` batches from here"
    CHANGE = "change over to the other way"


class HeadStart:
    """The trainer makes the first `ahead` batches while loaders start, and the loaders all others."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.change_at: int | None = None
        self.next_look = 0.0

    def observe(self, batches: int, _waited_s: float, _now: float) -> Choice:
        """See LocalOrLoaders."""
        if self.change_at is None:
            return Choice.START
        return Choice.CHANGE if batches >= self.change_at else Choice.STAY

    def changed(self, _batches: int, _waited_s: float, _now: float) -> None:
        self.change_at, self.next_look = None, math.inf


class LocalOrLoaders:
    """`is_local`: how batches are read now. `ahead`: batches that the trainer still makes while processes start."""

    def __init__(self, now: float) -> None:
        self.is_local = True
        self.ahead = 0
        self.change_at: int | None = None
        """After how many batches it is changed over; whoever starts loaders may set it to the end of a group."""
        self.on_trial = False
        """The way in use goes on only if it is the better one."""
        self._rates: deque[float] = deque(maxlen=_COMPARED)
        """Of the way in use."""
        self._other_rate = 0.0
        """When it was left; 0: it has not been tried."""
        self._slow_windows = 0
        self._again_s = _AGAIN_S
        self._again_at = math.inf
        self._phase = now
        self._window = 0, 0.0, now
        """Since when the rate is measured: batches, seconds waited, and the time."""
        self.next_look = now + _WINDOW_S
        """Before that `observe` says nothing else than STAY."""

    def observe(self, batches: int, waited_s: float, now: float) -> Choice:
        """So many batches have been taken, the last one `now`, and the trainer has waited so long for data in all."""
        if self.change_at is not None:
            return Choice.CHANGE if batches >= self.change_at else Choice.STAY
        if now < self.next_look:
            return Choice.STAY
        before, waited_before, begun = self._window
        self._window, self.next_look = (batches, waited_s, now), now + _WINDOW_S
        if not self.is_local and now - self._phase < _SETTLING_S:
            return Choice.STAY
        rate, waits = (batches - before) / (now - begun), waited_s - waited_before > _NOTICEABLE * (now - begun)
        self._rates.append(rate)
        if not (self._has_failed(rate, now) if self.on_trial else self._wants_trial(rate, waits, waited_s, now)):
            return Choice.STAY
        self.ahead = math.ceil(_START_S * rate) if self.is_local else 0
        self.change_at, self.next_look = batches + self.ahead, 0.0
        return Choice.START if self.is_local else Choice.CHANGE

    def _wants_trial(self, rate: float, waits: bool, waited_s: float, now: float) -> bool:
        """Of the other way."""
        is_slow = waits and rate < _MUCH_SLOWER * self._other_rate
        self._slow_windows = self._slow_windows + 1 if is_slow else 0
        if not waits or len(self._rates) < _COMPARED:
            return False
        if not self._other_rate:
            is_even = 1 / _EVEN < rate / float(np.median(self._rates)) < _EVEN
            return waited_s > (_START_S if is_even else _PATIENCE_S)
        return self._slow_windows >= _SLOW_WINDOWS or now >= self._again_at

    def _has_failed(self, rate: float, now: float) -> bool:
        """Whether the trial has shown that the other way is better."""
        is_hopeless = len(self._rates) == 1 and rate < _HOPELESS * self._other_rate
        if not is_hopeless and len(self._rates) < _COMPARED:
            return False
        self._again_at, self._again_s = now + self._again_s, 2 * self._again_s
        self.on_trial = bool(np.median(self._rates) < self._other_rate)
        return self.on_trial

    def changed(self, batches: int, waited_s: float, now: float) -> None:
        """It has been changed over: to a trial, or back from one."""
        self.change_at = None
        self.is_local, self.on_trial = not self.is_local, not self.on_trial
        self._other_rate = float(np.median(self._rates))
        self._rates.clear()
        self._slow_windows = 0
        self._phase = now
        self._window, self.next_look = (batches, waited_s, now), now + _WINDOW_S
