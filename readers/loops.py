"""What one `for batch in reader` is: arithmetic over a pipeline's states, no data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from ..workers.order.batches import Batches
from ..workers.plan.state import State

LOOP_START = "loop_start"
"""In a reader's state: the position where its loop began, if nothing else says so."""


class Loops(ABC):
    """Cuts a pipeline's batches into loops of some epochs each; with `epochs` None there is one, without end."""

    @property
    def batches(self) -> int | None:
        """Batches of one whole loop; None if it is endless, or if only its end will tell."""
        return None

    def start(self, state: Mapping[str, int | str]) -> int | None:
        """The position where the loop that `state` lies in began, if a state has to say so."""
        return None

    def left(self, state: Mapping[str, int | str]) -> int | None:
        """Batches from `state` to the end of its loop; None as above."""
        return None

    @abstractmethod
    def next_loop(self, state: Mapping[str, int | str]) -> State:
        """The state in which the loop after the one that `state` lies in begins."""

    def end_epoch(self, state: Mapping[str, int | str]) -> int | None:
        """The first epoch behind the loop that `state` lies in, where the loop's end is to be seen by that."""
        return None

    def pipeline_epochs(self, state: Mapping[str, object]) -> int | None:
        """The parameter `epochs` for a pipeline that begins with `state`, which nobody has checked yet."""
        return None


@dataclass(frozen=True, slots=True)
class IndexedLoops(Loops):
    """Loops over samples that have indices: the pipeline itself is endless, so the next loop's batches lie ready.

    With `drop` and `partial` a loop begins and ends where an epoch does. With `wrap`, where an epoch may end inside a
    batch, every loop has the same number of full batches, enough for its epochs, and the next loop goes on with the
    batch that follows: nothing is left out or repeated, and `batches` does not change from loop to loop. So the loops
    begin where epochs do not, and a state says where its loop began: its batches may be of another size than ours.

    Positions count from the first epoch on. In a state of epochs that a sampler draws, all as long, they count within
    `epoch`.
    """

    endless: Batches
    """From the first epoch on; every rank has as many."""
    epochs: int | None

    @property
    def batches(self) -> int | None:
        return self.endless.begun_at(0, self.epochs).total

    def start(self, state: Mapping[str, int | str]) -> int | None:
        if self.epochs is None or self.endless.parameters.last_batch != "wrap":
            return None
        position, each = self._position(state), self.endless.round_rows
        of_our_rounds = position - position % (-(-self._loop_samples // each) * each)  # where a state does not say
        start = int(state.get(LOOP_START, of_our_rounds))
        return start if position - start < self._loop_samples else position

    def left(self, state: Mapping[str, int | str]) -> int | None:
        position = self._position(state)
        if self.epochs is None:
            return None
        if (start := self.start(state)) is not None:
            return -(-(start + self._loop_samples - position) // self.endless.round_rows)
        return self.endless.begun_at(position, (position // self._loop_samples + 1) * self.epochs).total

    def next_loop(self, state: Mapping[str, int | str]) -> State:
        position, left = self._position(state), self.left(state)
        if left is None:
            return dict(state)
        if self.start(state) is None:
            return self._moved(state, (position // self._loop_samples + 1) * self._loop_samples)
        position += left * self.endless.round_rows
        return self._moved({**state, LOOP_START: position}, position)

    def _position(self, state: Mapping[str, int | str]) -> int:
        return int(state.get("epoch", 0)) * self.endless.samples + int(state["position"])

    def _moved(self, state: Mapping[str, int | str], position: int) -> State:
        if "epoch" not in state:
            return {**state, "position": position}
        epoch, position = divmod(position, self.endless.samples)
        return {**state, "epoch": epoch, "position": position}

    @property
    def _loop_samples(self) -> int:
        return self.endless.samples * (self.epochs or 1)


@dataclass(frozen=True, slots=True)
class SampledLoops(Loops):
    """Loops over epochs that a sampler draws, whose lengths differ, or nobody knows beforehand.

    A loop ends before the first round that begins in an epoch that is not its own: the same for all ranks.
    """

    epochs: int | None

    def next_loop(self, state: Mapping[str, int | str]) -> State:
        epoch = self.end_epoch(state)
        return dict(state) if epoch is None else {**state, "epoch": epoch, "position": 0}

    def end_epoch(self, state: Mapping[str, int | str]) -> int | None:
        return None if self.epochs is None else (int(state["epoch"]) // self.epochs + 1) * self.epochs


@dataclass(frozen=True, slots=True)
class StreamLoops(Loops):
    """Loops over a stream, of which nobody knows beforehand how long they are.

    Each loop has a pipeline that ends with its epochs: no function of a user's is asked for an epoch that may never be
    read.
    """

    epochs: int | None

    def next_loop(self, state: Mapping[str, int | str]) -> State:
        if self.epochs is None:
            return dict(state)
        begin = (int(state["epoch"]) // self.epochs + 1) * self.epochs
        return {**state, "epoch": begin, "position": 0, "end": 0}

    def pipeline_epochs(self, state: Mapping[str, object]) -> int | None:
        if self.epochs is None:
            return None
        epoch = state.get("epoch")
        return (epoch // self.epochs + 1) * self.epochs if isinstance(epoch, int) else self.epochs
