"""Which device buffer is filled, used and filled again: pure decisions, no device needed to test them."""

from __future__ import annotations

from enum import Enum


class _State(Enum):
    FREE = "free"
    FILLED = "filled"
    LENT = "lent"


class Rotation:
    """Buffers 0 … count-1, used in turn: filled in order, lent in the order in which they were filled.

    A filled buffer may still be in flight, and a free one still be read by a kernel that was queued before: whoever
    fills or uses one waits for its event. What this class sees to is that there is such an event to wait for.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"a rotation needs at least one buffer, got {count}")
        self._states = [_State.FREE] * count
        self._next_fill = 0
        self._next_lend = 0

    @property
    def filled(self) -> int:
        """Buffers that hold a batch which nobody has been lent yet."""
        return self._states.count(_State.FILLED)

    @property
    def next_filled(self) -> int | None:
        """The buffer that `lend` would give."""
        return self._next_lend if self._states[self._next_lend] is _State.FILLED else None

    @property
    def can_fill(self) -> bool:
        return self._states[self._next_fill] is _State.FREE

    def fill(self) -> int:
        """The buffer to fill now; raises RuntimeError where none is free."""
        self._move(self._next_fill, _State.FREE, _State.FILLED)
        buffer, self._next_fill = self._next_fill, self._after(self._next_fill)
        return buffer

    def lend(self) -> int:
        """The buffer filled longest ago; raises RuntimeError where none is."""
        self._move(self._next_lend, _State.FILLED, _State.LENT)
        buffer, self._next_lend = self._next_lend, self._after(self._next_lend)
        return buffer

    def give_back(self, buffer: int) -> None:
        """All work that reads `buffer` has been queued: it may be filled again, behind that work."""
        self._move(buffer, _State.LENT, _State.FREE)

    def _move(self, buffer: int, before: _State, after: _State) -> None:
        if self._states[buffer] is not before:
            raise RuntimeError(f"device buffer {buffer} is {self._states[buffer].value}, expected {before.value}")
        self._states[buffer] = after

    def _after(self, buffer: int) -> int:
        return (buffer + 1) % len(self._states)
