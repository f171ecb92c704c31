"""The trainer's end of the loaders: gives requests, and takes the answers out of the slots, in order."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...workers.api import Parameters, Statistics
from ...workers.pipeline import ProcessFeed
from ...workers.plan import GivenPlan
from ...workers.processes import interrupts_deferred
from ...workers.transport import GrowingSlot, GrowingSlots, Packed
from .fetching import Answer, DatasetMaker, Failed, MapRequest, StreamRequest
from .packing import Loan, read

_LOANS = 3
"""The batches that lie in their slots while the user keeps them. While there are so many, the next one is a copy."""

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
        plan = GivenPlan.of(Packed(maker, _MODULES, parts), parameters, kind=kind, slots=ahead + _LOANS + 1)
        self._feed = ProcessFeed(plan)
        self._given = self._taken = 0
        self._first = 0
        """The first batch of this loop: answers before it are dropped."""
        self._returned: deque[tuple[int, GrowingSlot]] = deque()
        """What nothing lies on any more. Arrays may end in any thread, so that only `deque.append` runs there."""
        self._on_loan = 0
        self._sizes: deque[int] = deque(maxlen=_SIZES_KEPT)

    @property
    def _ring(self) -> GrowingSlots:
        ring = self._feed.shared.ring
        assert isinstance(ring, GrowingSlots)
        return ring

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
        announce = self._feed.next_announce()
        with interrupts_deferred():
            self._feed.accept(announce.group)
            self._taken = announce.group + 1
            self._feed.release(announce.group)

    def take(self, commit: Callable[[Answer | Failed], object]) -> None:
        """Hand the next answer to `commit`, all at once; waits for it at most `timeout_s`. Raises what ends a run."""
        self._release()
        while self._taken < self._first:
            self._drop()
        announce = self._feed.next_announce()
        slot: Any = self._ring.views[announce.slot]
        memory = slot.open()
        self._sizes.append(len(memory))
        if self._on_loan < _LOANS:
            lent = np.asarray(Loan(memory, partial(self._returned.append, (announce.group, slot))))
            answer = _answer(read(memory, lent))
            del lent
            lends = 1
        else:
            answer = _answer(read(memory, memory.copy()))
            lends = 0
        with interrupts_deferred():
            self._feed.accept(announce.group)
            self._taken = announce.group + 1
            self._on_loan += lends
            if not lends:
                self._feed.release(announce.group)
            commit(answer)

    def _release(self) -> None:
        """Give slots back on which nothing lies any more."""
        while self._returned:
            group, slot = self._returned[0]
            if group >= self._taken:  # an interrupt came before it was taken
                self._returned.popleft()
                continue
            slot.shrink(2 * max(self._sizes))
            with interrupts_deferred():
                self._feed.release(group)
                self._on_loan -= 1
                self._returned.popleft()

    def statistics(self) -> Statistics:
        return self._feed.statistics()

    def states(self) -> Any:
        return self._feed.states()

    def close(self) -> None:
        self._feed.close()


def _answer(parts: tuple[Any, ...]) -> Answer | Failed:
    return Answer(*parts) if len(parts) == len(Answer._fields) else Failed(*parts)
