"""Which of the assembler's messages are for the trainer now. Pure; each call may be interrupted and repeated."""

from __future__ import annotations

from ..transport.messages import Announce, End, Failure, Resent, ToTrainer


class Reception:
    """`held`: the groups that the trainer has accepted and not released. `dropped`: messages that were not expected."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.dropped = 0
        self._resends = 0
        self._awaited = 0
        self._accepted: set[int] = set()
        self._all_accepted_below = 0

    @property
    def has_begun(self) -> bool:
        """Whether any group has been accepted."""
        return bool(self._accepted or self._all_accepted_below)

    def wants(self, message: ToTrainer) -> Announce | Failure | End | None:
        """`message`, if the trainer has still to be told of it."""
        if isinstance(message, Resent):
            self._awaited = 0 if message.number == self._awaited else self._awaited
            return None
        if self._awaited:
            return None  # it comes again
        if isinstance(message, Announce) and not self._is_new(message.group):
            if message.group not in self.held or not self._resends:
                self.dropped += 1  # a frame of ours that somebody sent again
            return None
        return message

    def ask_again(self) -> int:
        """A message may have been lost: the number for `Resend`. What comes before `Resent` of that number is void."""
        self._resends += 1
        self._awaited = self._resends
        return self._resends

    def accept(self, group: int) -> bool:
        """`group` has been received: the next one is another. False if it was accepted before."""
        if not self._is_new(group):
            return False
        self.held.add(group)
        self._accepted.add(group)
        while self._all_accepted_below in self._accepted:
            self._all_accepted_below += 1
            self._accepted.discard(self._all_accepted_below - 1)
        return True

    def release(self, group: int) -> None:
        self.held.discard(group)

    def _is_new(self, group: int) -> bool:
        return group >= self._all_accepted_below and group not in self._accepted
