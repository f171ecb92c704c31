"""The rotation of device buffers as a state machine: no buffer is written to while it may be read."""

from __future__ import annotations

from collections import deque

import pytest
from blobfeed.readers.delivery.rotation import Rotation
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule


class Rotating(RuleBasedStateMachine):
    """Beside the rotation stands what a reader would remember: which buffers hold what, oldest first."""

    @initialize(count=st.integers(1, 4))
    def make(self, count: int) -> None:
        self.rotation = Rotation(count)
        self.count = count
        self.filled: deque[int] = deque()
        self.lent: deque[int] = deque()
        self.fills = 0

    @precondition(lambda self: self.rotation.can_fill)
    @rule()
    def fill(self) -> None:
        buffer = self.rotation.fill()
        assert buffer not in self.filled
        assert buffer not in self.lent
        assert buffer == self.fills % self.count  # in turn: the one that was used longest ago
        self.fills += 1
        self.filled.append(buffer)

    @precondition(lambda self: self.filled)
    @rule()
    def lend(self) -> None:
        expected = self.filled.popleft()
        assert self.rotation.next_filled == expected
        assert self.rotation.lend() == expected
        self.lent.append(expected)

    @precondition(lambda self: self.lent)
    @rule()
    def give_back(self) -> None:
        self.rotation.give_back(self.lent.popleft())

    @precondition(lambda self: not self.rotation.can_fill)
    @rule()
    def fill_without_room(self) -> None:
        with pytest.raises(RuntimeError, match="expected free"):
            self.rotation.fill()

    @precondition(lambda self: not self.filled)
    @rule()
    def lend_what_is_not_there(self) -> None:
        assert self.rotation.next_filled is None
        with pytest.raises(RuntimeError, match="expected filled"):
            self.rotation.lend()

    @invariant()
    def counts(self) -> None:
        assert self.rotation.filled == len(self.filled)
        assert self.rotation.can_fill == (len(self.filled) + len(self.lent) < self.count)


TestRotating = Rotating.TestCase
TestRotating.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_rotation_needs_a_buffer() -> None:
    with pytest.raises(ValueError, match="at least one buffer, got 0"):
        Rotation(0)
