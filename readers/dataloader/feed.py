"""The trainer's end of the loaders: gives requests, and takes the answers out of the slots, in order."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any, cast

from ...supplies.given import GivenPlan
from ...supplies.growing_slots import GrowingSlot, GrowingSlots
from ...workers.api import Parameters, Statistics
from ...workers.base import OwnProcess, close_all, interrupts_deferred
from ...workers.pipeline import Held, ProcessFeed
from ...workers.processes import ForkServer
from ...workers.transport import Announce, Packed
from ..delivery import LOANS, Lendable, SlotLoans
from .fetching import Answer, DatasetMaker, Failed, MapRequest, StreamRequest
from .packing import read

_SIZES_KEPT = 64
"""The last batches, whose largest a slot is shrunk to, if it is much larger."""

_MODULES = ("torch", "torch.utils.data", __name__.rpartition(".")[0] + ".fetching")


class LoaderFeed:
    """Loaders that make what they are asked for. They start at once, and end with `close`.

    `ahead`: the most requests that are not answered. Raises ParameterError that names what cannot be sent.
    """

    def __init__(
        self, maker: DatasetMaker, parts: dict[str, object], parameters: Parameters, *, kind: str, ahead: int
    ) -> None:
        self.ahead = ahead
        self.home = OwnProcess("the DataLoader", "make a DataLoader in the process that reads from it")
        self._plan = GivenPlan.of(Packed(maker, _MODULES, parts), parameters, kind=kind, slots=ahead + LOANS + 1)
        self._sizes: deque[int] = deque(maxlen=_SIZES_KEPT)
        self._begin()

    def _begin(self) -> None:
        with interrupts_deferred():
            self._feed = ProcessFeed(self._plan)
            self._server: ForkServer | None = self._feed.server  # kept from one run to the next
        self._held = Held()
        self._given = self._taken = 0
        self._first = 0
        """The first batch of this loop: answers before it are dropped."""
        self._loans = SlotLoans[Announce](LOANS)

    def restart(self) -> None:
        """End the loaders, and start others, which have been asked for nothing."""
        close_all(self._feed.close, self._begin)

    @property
    def _ring(self) -> GrowingSlots:
        ring: Any = self._feed.shared.ring  # the plan's own
        return cast("GrowingSlots", ring)

    def _slot(self, announce: Announce) -> GrowingSlot:
        slot: GrowingSlot = self._ring.rows[announce.slot]
        return slot

    @property
    def has_room(self) -> bool:
        """True if a request may be given now."""
        return self._given - self._taken < self.ahead

    def give(self, request: MapRequest | StreamRequest, rows: int) -> None:
        """Have the loaders answer `request`. Waits for answers of an abandoned loop."""
        while not self.has_room:
            self._drop()
        shard = request.shard if isinstance(request, StreamRequest) else -1
        self._ring.requests.put(self._given, pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
        self._feed.give(self._given, request.epoch, rows, shard)
        self._given += 1

    def abandon(self) -> None:
        """Drop what was given and has not been taken; who has not begun with it need not."""
        for batch in range(self._taken, self._given):
            self._ring.requests.withdraw(batch)
        self._first = self._given

    def _drop(self) -> None:
        announce = self._feed.next_announce(self._taken, self._held)
        self._note_taken(announce.batch)
        self._give_back(announce.batch)

    def _note_taken(self, batch: int) -> None:
        if not self._taken:
            self._feed.note_start()
        self._held.batches[batch] = None
        self._taken = batch + 1

    def _give_back(self, batch: int) -> None:
        self._held.release(batch)
        self._feed.release(self._held)

    def take(self) -> Answer | Failed:
        """Return the next answer; waits for it at most `timeout_s`. Raises what ends a run."""
        self._release()
        while self._taken < self._first:
            self._drop()
        announce = self._feed.next_announce(self._taken, self._held)
        memory = self._slot(announce).open()
        self._sizes.append(len(memory))
        lends = self._loans.are_left
        whole = self._loans.lend(announce, Lendable([memory])) if lends else [memory.copy()]
        answer = _answer(read(memory, whole.pop()))
        self._note_taken(announce.batch)
        if not lends:
            self._give_back(announce.batch)
        return answer

    def _release(self) -> None:
        """Give slots back on which nothing lies any more."""
        for returned in self._loans.returned():
            self._slot(returned).shrink(2 * max(self._sizes))
            self._give_back(returned.batch)

    def statistics(self) -> Statistics:
        return self._feed.statistics()

    def states(self) -> Any:
        return self._feed.states()

    def close(self) -> None:
        """End the loaders; in a fork of the process that has started them do nothing."""
        if self.home.is_this:
            self._feed.close()
            self._server = None


def _answer(parts: tuple[Any, ...]) -> Answer | Failed:
    return Answer(*parts) if len(parts) == len(Answer._fields) else Failed(*parts)
